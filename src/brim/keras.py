"""Trains a compiled Keras model as a job: `fit` replaces `model.fit`.

Importing this module before Keras chooses Keras' torch backend.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from brim.errors import SpecError
from brim.host.installation import command_for
from brim.train.keras.network import choose_backend

__all__ = ["fit"]

choose_backend()

# Arguments of `model.fit` that have another name here.
_INSTEAD = {
    "batch_size": "global_batch_size=, samples per step whatever the number of workers",
    "class_weight": "sample weights, as the third part of the data: (x, y, weights)",
    "initial_epoch": "brim resume, which continues where the job stopped",
    "sample_weight": "the third part of the data: (x, y, weights)",
    "steps_per_epoch": "data with a length: every sample counts once an epoch",
    "validation_batch_size": "leave it out: it changes no result",
    "validation_freq": "leave it out: validation data is measured after each epoch",
    "validation_split": "validation_data=",
    "validation_steps": "a smaller validation_data=",
    "verbose": "leave it out: brim status shows progress",
    "x": "the data as one argument: (x, y)",
    "y": "the data as one argument: (x, y)",
}


def fit(
    model: Any,
    data: Any = None,
    *,
    epochs: int | None = None,
    global_batch_size: int | None = None,
    validation_data: Any = None,
    callbacks: Any = None,
    shuffle: bool | None = None,
    **options: Any,
) -> Any:
    """Train a compiled Keras model, alone or as a worker of a job.

    It does what `model.fit(…)` does. Its loss is computed for each micro-batch; metrics are merged
    over all workers, and come out the same for any number of them.

    Args:
        model: a `keras.Model` on the torch backend, compiled with a loss and one of
            `keras.optimizers`. A model that is not built yet is built from the first samples.
        data: `(x, y)` or `(x, y, sample_weights)` of arrays or tensors, each with one entry per
            sample; or a dataset or DataLoader of torch whose samples are such tuples.
        epochs: passes over the data; None takes `--epochs`.
        global_batch_size: samples per step, whatever the number of workers; None takes that of the
            DataLoader, or `--global-batch-size`.
        validation_data: as `data`, measured after each epoch; or None.
        callbacks: `keras.callbacks` that act on epochs; each worker calls them.
        shuffle: False reads the data in its order; None shuffles, or takes the DataLoader's order.
        options: of `brim.join`: `seed`, `micro_batches`, `clip_norm`, `on_nan`, `threads`, `audit`.

    Returns:
        Keras' History, with the logs of all epochs, also of those before a resume. Its `job` is
        the job, which is done: `if history.job.rank == 0: model.save("model.keras")`.

    Raises:
        SpecError: Keras is missing or has another backend, or something is used that brim does not
            support; the message names it.
    """
    for name in sorted(_INSTEAD.keys() & options.keys()):
        raise SpecError(
            f"brim.keras.fit({name}=)",
            got="an argument of model.fit",
            need="those of brim.keras.fit",
            hint=_INSTEAD[name],
        )
    if find_spec("keras") is None:
        raise SpecError(
            "brim.keras.fit", got="no Keras", need="Keras 3", hint=command_for("train", "keras")
        )
    from brim.train.entry.keras import fitting_of

    fitting = fitting_of(model, data, validation_data=validation_data, callbacks=callbacks)
    return fitting.train(
        epochs=epochs, global_batch_size=global_batch_size, shuffle=shuffle, options=options
    )
