"""The ledger of a run, from its records and from nothing that its workers claim."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from brim.domain.accounting import Ledger, audit
from brim.domain.order import EpochOrder
from brim.errors import SpecError
from brim.telemetry.history import RunHistory


def audit_run(run_dir: Path, history: RunHistory) -> Ledger:
    """The ledger of a run.

    Raises:
        SpecError: the run died before it knew its data.
    """
    dataset, started, spec = history.dataset, history.started, history.spec
    if dataset is None or started is None:
        raise SpecError(
            str(run_dir),
            got="a command, which reads its data itself"
            if history.verb == "restart"
            else "a run that never read its data",
            need="one that trained",
            hint="brim report",
        )
    seed = int(str(spec.get("seed", 0)))
    per_epoch = started.steps_per_epoch
    epochs, last_epoch = (
        started.steps // per_epoch,
        None,
    )  # the spec does not know of a loop of its own
    if _was_stopped(history):
        epochs, rest = -(-history.step // per_epoch), history.step % per_epoch
        last_epoch = rest * int(str(spec.get("global_batch_size", 0))) if rest else None

    @lru_cache(maxsize=1)
    def epoch_order(epoch: int) -> EpochOrder:
        size = dataset.order_size or dataset.samples
        return EpochOrder(seed=seed, epoch=epoch, size=size, block_size=dataset.block_size)

    def samples(epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        if dataset.order == "shuffled" and history.verb == "train":
            return epoch_order(epoch).samples(start, stop)
        return np.arange(start, stop)  # as they lie, or as they come

    return audit(
        history.steps,
        history.restores,
        samples_per_epoch=dataset.samples,
        epochs=epochs,
        order=None if dataset.order in ("sampler", "stream") else samples,
        last_epoch=last_epoch,
    )


def _was_stopped(history: RunHistory) -> bool:
    """Return whether the script ended its job early: it is done, and not all steps were made."""
    ended, started = history.ended, history.started
    done = ended is not None and ended.summary.get("exit") == "done"
    return done and started is not None and history.step < started.steps
