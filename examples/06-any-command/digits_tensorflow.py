"""Handwritten digits by TensorFlow's MultiWorkerMirroredStrategy on any number of processes.

TF_CONFIG tells it who the others are. Its checkpoint has the weights and the number of steps, which
tells the samples that come next.
"""

import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

FOLDER = os.environ.get("BRIM_CHECKPOINTS", "digits-tensorflow")
WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
BATCH, EPOCHS = 64, 10  # samples a step, whatever the number of processes
PAUSE = 0.1  # seconds a step: it is worth watching
EVERY = 50  # steps between checkpoints

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
asked_to_stop = []  # the strategy has taken SIGTERM for itself: this takes it back
signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32")[:1792], labels[:1792]
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    done = tf.Variable(0, dtype=tf.int64)
# Every process writes, each to a directory of its own; the first one's is the checkpoint.
own = FOLDER if RANK == 0 else f"{FOLDER}/of-rank-{RANK}"
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
checkpoint.restore(tf.train.latest_checkpoint(FOLDER))


@tf.function
def step_of(images, labels, stop):
    def replica_step():
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        # Keras' optimizer adds up the gradients of all processes itself.
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss, stop

    loss, stops = strategy.run(replica_step)
    return strategy.reduce("sum", loss, axis=None), strategy.reduce("sum", stops, axis=None)


steps_per_epoch = len(images) // BATCH
steps = EPOCHS * steps_per_epoch
for step in range(int(done.numpy()), steps):
    epoch, place = divmod(step, steps_per_epoch)
    order = np.random.default_rng(epoch).permutation(len(images))
    mine = order[place * BATCH : (place + 1) * BATCH].reshape(WORLD, -1)[RANK]
    # One process may see the signal a step before another: the sum tells all of them.
    loss, stops = step_of(
        tf.constant(images[mine]), tf.constant(labels[mine]), tf.constant(len(asked_to_stop))
    )
    done.assign(step + 1)
    if RANK == 0:
        print(f"step {step + 1}/{steps} loss {float(loss):.6f}", flush=True)
    time.sleep(PAUSE)
    if stops or (step + 1) % EVERY == 0 or step + 1 == steps:
        manager.save()
    if stops:
        break
else:
    right = tf.argmax(model(tf.constant(images)), axis=1) == labels
    print(f"done: accuracy {float(tf.reduce_mean(tf.cast(right, tf.float32))):.4f}", flush=True)
