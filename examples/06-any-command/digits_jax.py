"""Handwritten digits by JAX on any number of processes, as `jax.distributed` has them.

Its checkpoint has the weights and the number of steps, which tells the samples that come next.
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits-jax")
BATCH = 64  # samples a step, whatever the number of processes
EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PAUSE = 0.1  # seconds a step: it is worth watching
EVERY = 50  # steps between checkpoints

if "JAX_COORDINATOR_ADDRESS" in os.environ:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
mesh = Mesh(jax.devices(), ("batch",))
divided, whole = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32")[:1792], labels[:1792]
optimizer = optax.adam(1e-2)


def new_weights():
    wide, narrow = jax.random.split(jax.random.key(0))
    return {
        "wide": jax.random.normal(wide, (64, 64)) / 8,
        "narrow": jax.random.normal(narrow, (64, 10)) / 8,
    }


def loss_of(weights, images, labels):
    logits = jax.nn.relu(images @ weights["wide"]) @ weights["narrow"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def step_of(weights, state, images, labels):
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(weights, updates), state, loss


def save(step, weights, state):
    """Write a checkpoint, whole or not at all; the first process does it."""
    if jax.process_index() == 0:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((weights, state))]
        np.savez(f"{FOLDER}/writing.npz", *leaves, step=step)
        os.replace(f"{FOLDER}/writing.npz", f"{FOLDER}/checkpoint.npz")
    multihost_utils.sync_global_devices("saved")


def restored(weights, state):
    path = f"{FOLDER}/checkpoint.npz"
    if not os.path.exists(path):
        return 0, weights, state
    with np.load(path) as file:
        leaves = [file[f"arr_{index}"] for index in range(len(file.files) - 1)]
        step = int(file["step"])
    weights, state = jax.tree.unflatten(jax.tree.structure((weights, state)), leaves)
    return step, weights, state


os.makedirs(FOLDER, exist_ok=True)
weights = new_weights()
begin, weights, state = restored(weights, optimizer.init(weights))
weights, state = jax.device_put((weights, state), whole)
steps_per_epoch = len(images) // BATCH
steps = EPOCHS * steps_per_epoch
for step in range(begin, steps):
    epoch, place = divmod(step, steps_per_epoch)
    order = np.random.default_rng(epoch).permutation(len(images))
    batch = order[place * BATCH : (place + 1) * BATCH]
    mine = batch.reshape(jax.process_count(), -1)[jax.process_index()]
    weights, state, loss = step_of(
        weights,
        state,
        jax.make_array_from_process_local_data(divided, images[mine]),
        jax.make_array_from_process_local_data(divided, labels[mine]),
    )
    if jax.process_index() == 0:
        print(f"step {step + 1}/{steps} loss {float(loss):.6f}", flush=True)
    time.sleep(PAUSE)
    # JAX itself listens for SIGTERM, and agrees with all processes on the step to stop at.
    stop = multihost_utils.reached_preemption_sync_point(step)
    if stop or (step + 1) % EVERY == 0 or step + 1 == steps:
        save(step + 1, weights, state)
    if stop:
        break
else:
    right = jnp.argmax(jax.nn.relu(images @ weights["wide"]) @ weights["narrow"], -1) == labels
    print(f"done: accuracy {float(right.mean()):.4f}", flush=True)
