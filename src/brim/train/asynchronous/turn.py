"""A worker's turn: it takes the state from the shared memory, changes it, and puts it back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from brim.coordination.job.participant import Interrupted
from brim.coordination.job.turns import Allotment
from brim.embeddings.embedding import Embeddings
from brim.errors import SpecError
from brim.train.asynchronous.applied import AppliedBatches
from brim.train.asynchronous.home import Home
from brim.train.state.digests import Digests, describe_difference, digests_of
from brim.train.state.flattening import flatten
from brim.train.state.job_state import TrainingState

APPLIED = "brim: applied batches"  # its name among the states that a user registers
_LOCK_TIMEOUT = (
    60.0  # seconds: a turn that takes longer is one of a process that hangs, which its agent ends
)


class Asynchrony:
    """The state of a job that its workers change in turns.

    Args:
        state: on this worker.
        embeddings: whose tables all workers of the host share.
        descriptor: of the memory for the rest.

    Attributes:
        is_in_epoch: workers are at different batches now, so nothing can be done together.
    """

    def __init__(self, state: TrainingState, embeddings: Embeddings, descriptor: int) -> None:
        self._state, self._embeddings, self._home = state, embeddings, Home(descriptor)
        self._applied = AppliedBatches()
        self._is_settled = False  # the shared memory has what this worker had, or what came of it
        self._digests: Digests = {}
        self.is_in_epoch = False
        state.register(APPLIED, self._applied)

    # Epochs ---------------------------------------------------------------------------------------

    def begin_epoch(self, batches: int) -> None:
        self._applied.begin(batches)
        self.is_in_epoch = True

    def end_epoch(self) -> None:
        self._applied.end()

    def allotment(self, members: int) -> Allotment:
        """Return the division of batches from here on."""
        free = self._applied.unapplied(stopped=self._state.stop_after is not None)
        return Allotment(free=free, members=members, base=self._state.committed)

    def mark(self, batch: int) -> None:
        """A batch of this epoch is applied."""
        self._applied.mark(batch)

    # Turns ----------------------------------------------------------------------------------------

    def settle(self, round: int) -> None:
        """Put the state where all find it. All have it alike, and wait."""
        with self._home.locked(patience=_LOCK_TIMEOUT):
            self._home.round = round
            self._home.begin(self._state.get(), self._state.committed)

    def begin(self) -> None:
        """The state is where all find it: from here on workers are at different batches."""
        self._is_settled = True
        self._digests = _by_hand(self._state.get())

    @contextlib.contextmanager
    def turn(self, round: int) -> Iterator[None]:
        """Be the one worker that changes the state.

        Raises:
            Interrupted: the round is over, and another goes on from the last commit.
        """
        with self._home.locked(patience=_LOCK_TIMEOUT):
            if self._home.round != round:
                raise Interrupted
            self._check_unchanged()
            yield

    def refresh(self, step: int) -> None:
        """Take the state after so many steps, which others may have made."""
        if self._state.committed != step and not self._copy(step):
            self._state.put(self._home.load(step))
            self._state.keep_put()

    @torch.no_grad()
    def _copy(self, step: int) -> bool:
        """Copy tensors in place where nothing else differs, and return whether that was so.

        It is quicker than to put the whole state.
        """
        stored_tree, stored = self._home.view(step)
        current_tree, current = flatten(self._state.get())
        if (
            set(current_tree["registered"]) != {APPLIED}
            or current_tree["extra"]
            or not _is_like(current_tree, stored_tree)
        ):
            return False  # what the user's objects give may be copies
        if [(tensor.dtype, tensor.shape) for tensor in current] != [
            (tensor.dtype, tensor.shape) for tensor in stored
        ]:
            return False
        torch._foreach_copy_(current, stored)
        self._state.committed = stored_tree["committed"]
        return True

    def store(self) -> None:
        """Leave the state to all; it counts once it is committed."""
        tree = self._state.get()
        self._home.store(tree, self._state.committed)
        self._digests = _by_hand(tree)

    def end(self) -> None:
        """All have applied their last batch: have the state that came of it."""
        self.refresh(self._home.newest)

    def catch_up(self, step: int) -> None:
        """Take the state of the last commit.

        No worker can finish a turn of a round that is over.
        """
        if not self._is_settled:
            return
        with self._home.locked(patience=_LOCK_TIMEOUT):
            self._home.round = 0
            self._embeddings.take_back(step)
            self.refresh(step)

    def _check_unchanged(self) -> None:
        """Check that no line of the script changed the state that another worker will replace.

        Raises:
            SpecError: one did.
        """
        now = _by_hand(self._state.get())
        if now != self._digests:
            difference = describe_difference([self._digests, now], ["it", "now"]).partition(
                " differs"
            )[0]
            raise SpecError(
                "your training loop",
                got=f"{difference} changed by hand within an epoch",
                need="a change between epochs, on all workers: with --async they are at different "
                "batches within one",
                hint="give a scheduler to brim.join, or train without --async",
            )


def _is_like(current: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Return whether two states differ in their number of steps, and in tensors, alone."""
    return current.keys() == stored.keys() and all(
        current[name] == stored[name] for name in current if name != "committed"
    )


def _by_hand(tree: Mapping[str, Any]) -> Digests:
    """Return digests of the values that scripts change by hand.

    Rates, registered states and the like.
    """
    optimizers = tree["optimizer"] if isinstance(tree["optimizer"], list) else [tree["optimizer"]]
    registered = {name: value for name, value in tree["registered"].items() if name != APPLIED}
    return digests_of(
        {
            "optimizer": [optimizer["param_groups"] for optimizer in optimizers],
            "registered": registered,
        }
    )
