"""The training loop that any number of workers run together.

It leads from epoch to epoch and from round to round: what happens when another worker dies, joins
or leaves is in here, so that a user's loop sees micro-batches and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from brim.coordination.job import steps
from brim.coordination.job.audits import AuditPlan
from brim.coordination.job.participant import Interrupted, PeerLost, RoundChanged
from brim.coordination.job.steps import Act, Action, Settle, Stand
from brim.data.feed import Feed, Reads, requests
from brim.domain.seeds import mix
from brim.errors import EnvironmentFault, InternalError, SpecError
from brim.host.clock import monotonic
from brim.tensors.memory import have_room, make_own
from brim.train.asynchronous.turn import Asynchrony
from brim.train.job_parts import JobParts
from brim.train.membership import LookAhead
from brim.train.round import Round, agree, enter, settle_tables
from brim.train.state.transfer import weights_sha256
from brim.train.step import MicroBatch, Steps
from brim.train.training_data import TrainingData, agreed
from brim.wire.messages import Completed, Evaluated, failure_of

# Contributions that a step has at a time beside the one that was rehearsed: sums of subtrees of the
# 8 micro-batches that are usual, and one that is computed for an audit.
_CONTRIBUTIONS = 3
# Stands in for a step number when seeding what is not part of a step.
_EPOCH = 1 << 42


class _WhileItLasts:
    """A common action, which some errors within it end without leaving the caller.

    Code behind the `with` also runs where the round has ended: `ends` has dealt with the error,
    which goes no further. So it is not dead behind a block that returns.

    Args:
        ends: deals with an error, and says whether that ended the action only.
    """

    def __init__(self, ends: Callable[[BaseException], bool]) -> None:
        self._ends = ends

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and self._ends(error)


class Loop:
    """The loop of a job on one worker.

    Args:
        parts: of the job.
        data: that it trains on.

    Attributes:
        steps: that this worker makes.
        has_left: this worker was asked to leave.
        is_over: the job is done.
    """

    def __init__(self, parts: JobParts, data: TrainingData) -> None:
        self._parts, self._data = parts, data
        self.steps = Steps(parts, data)
        self.has_left = False
        self._has_made_all = False  # and stood at the end of the job with the others
        self.is_over = False
        self._round: Round | None = None
        self._previous: Round | None = None  # the last one, without what takes memory
        self._is_look_due = False  # ahead, since the state is to be written
        # Nothing but a neighbour's state has changed the state since all compared it.
        self._at_hold = False
        self._is_state_checked = False
        self._epoch_read = -1  # the last epoch whose batches were asked for

    @property
    def has_begun(self) -> bool:
        """Return whether the user's code has asked for its epochs."""
        return self._data.epochs > 0

    @property
    def is_amid_epoch(self) -> bool:
        """Return whether workers are at different batches of an epoch."""
        return self._parts.asynchrony is not None and self._parts.asynchrony.is_in_epoch

    @property
    def stands_together(self) -> bool:
        """Return whether all members of the round stand at the same line of the script.

        They do where the round has made a step. Where it has made none, some came from elsewhere;
        and servers do not come by a line within a loop over batches.
        """
        members = self._parts.members
        no_servers_within = (
            self.steps.under_way is None or len(members.workers) == members.world_size
        )
        has_stepped = self._round is not None and self._round.commits > 0
        return has_stepped and not self.is_over and no_servers_within and not self.is_amid_epoch

    # Epochs ---------------------------------------------------------------------------------------

    def epochs(self, epochs: int | None = None) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, from 0.

        Args:
            epochs: how many epochs the job has in total; None takes `--epochs`.

        Raises:
            SpecError: the loop was left early, or the job is over.
            SystemExit: this worker was asked to leave, and has left.
        """
        parts = self._parts
        self.check_first()
        self._data.epochs = agreed("epochs", epochs, parts.spec.epochs, default=1)
        facts = None if parts.state.schedule is None else self._data.facts()
        self._data.is_introduced = facts is not None
        self._get_ready()
        parts.embeddings.open(parts.tables)
        parts.members.join(parts.layout(), facts)
        with parts.embeddings.in_use():
            yield from self._epochs_to_come()

    def _epochs_to_come(self) -> Iterator[int]:
        parts = self._parts
        while True:
            if not self._at_boundary():
                if self.is_over:
                    return
                continue
            if parts.state.epoch >= min(
                self._data.epochs, parts.state.stop_after or self._data.epochs
            ):
                if self._has_finished():
                    return
                continue
            parts.sources.seed(mix(parts.spec.seed, _EPOCH, parts.state.epoch))
            yield parts.state.epoch
            self._close_epoch()

    def check_first(self) -> None:
        """Check that no loop over the epochs of this job was begun before.

        Raises:
            SpecError: one was.
        """
        if self._data.epochs:
            raise SpecError(
                "your training loop",
                got=f"another loop over a job that {'has ended' if self.is_over else 'has begun'}, "
                f"with {self._data.epochs} "
                f"{'epoch' if self._data.epochs == 1 else 'epochs'}",
                need="one loop over all epochs of a job",
                hint="for epoch in job.epochs(N): for batch in job.batches(train, "
                "global_batch_size=512): ...",
            )

    # Rounds ---------------------------------------------------------------------------------------

    def _get_ready(self) -> None:
        """Prepare the first round, before this worker counts.

        The others would else wait for it in that round.
        """
        parts = self._parts
        trained = [part for part in parts.model.parameters() if part.requires_grad]
        make_own([*trained, *parts.model.buffers()])  # frozen pages stay shared
        have_room(parts.contributions.like, copies=_CONTRIBUTIONS)
        parts.sources.seed(0)
        if self._data.feed is not None and self._data.feed.is_computed:
            self._data.feed.indices(0, self._data.schedule.span(0))

    def while_it_lasts(self) -> _WhileItLasts:
        """A common action of the members of a round, which ends where the round does."""
        return _WhileItLasts(self._on_rounds_end)

    def _on_rounds_end(self, error: BaseException) -> bool:
        """Handle the end of a common action; return whether the next round is to be entered."""
        match error:
            case RoundChanged():
                self._leave_round()
            case Interrupted() | PeerLost():
                self._leave_round()
                self._parts.members.await_replacement()
            case LookAhead():
                self._parts.checkpoints.wants_ahead = False
                previous = self._previous
                self._is_look_due = previous is not None and previous.can_look_ahead
            case SystemExit() if self._has_made_all:  # the job is complete, over another round
                self._end()
            case SystemExit():
                self.has_left = True
                self._leave_round()
                self._parts.checkpoints.drain()
                self._data.end()
                return False
            case _:
                return False
        return True

    def _leave_round(self) -> None:
        # The next round may put another state in place of this one.
        self._parts.checkpoints.await_copy()
        self._parts.checkpoints.end_round()
        if self._round is not None:
            self._round.stop_reading()
            self._round.exchange.close()
            self._previous = self._round.emptied()
        self._round = None
        self.steps.give_up()

    def _in_round(self) -> Round:
        """Return the present round, or the next one once it is there."""
        parts = self._parts
        if self._round is None:
            self._round = enter(parts)
            # Someone of this host may still be adding up in the round before, in the memory that
            # all share: what follows begins once all have agreed.
            at_hold, self._at_hold = self._at_hold, False
            agree(parts, at_hold=at_hold)
            settle_tables(parts)
        return self._round

    def _at_boundary(self) -> bool:
        """Do the work between two steps; False where the round ended over it."""
        with self.while_it_lasts():
            self._between_steps(self._in_round(), patience=None)
            return True
        return False

    def _between_steps(self, round: Round, *, patience: float | None) -> None:
        """Follow the consequences of the last commit.

        Args:
            patience: seconds to wait for its answer, where this worker is alone in its round; None
                waits for it.
        """
        self.steps.under_way = None
        if self._parts.state.committed and not self._is_state_checked:
            self._is_state_checked = True  # once there is one: optimizers make theirs in a step
            self._parts.optimization.check_carried()
        actions = steps.boundary(
            held=round.held, due=self._parts.state.due, is_first=round.rank == 0, patience=patience
        )
        steps.follow(actions, partial(self._do_between, round))

    def _do_between(self, round: Round, action: Action) -> None:
        """Do the next of the work between two steps."""
        parts = self._parts
        match action:
            case Settle(timeout):
                parts.members.settle(timeout)
            case Act.COMPARE if round.held:
                if parts.asynchrony is None:
                    # One by itself compares nothing, and has no digests.
                    self._at_hold = parts.members.world_size > 1
                    agree(parts)
            case Act.COMPARE:
                parts.embeddings.check_unchanged()
                agree(parts)
                parts.state.due = False
            case Act.CHECKPOINT:
                parts.checkpoints.begin(ends_epoch=self._ends_epoch)
            case _:
                raise InternalError(f"{action} does not come between steps")

    # Steps ----------------------------------------------------------------------------------------

    @property
    def _ends_epoch(self) -> bool:
        """Return whether the step that was committed last is the last of an epoch.

        The answer is as far as the job's data is known yet.
        """
        schedule = self._parts.state.schedule
        return schedule is not None and self._parts.state.committed % schedule.steps_per_epoch == 0

    def use(self, feed: Feed, data: object) -> None:
        """Read the following batches from a feed: see `TrainingData.use`.

        Samples that were read ahead from elsewhere are dropped.
        """
        if self._round is not None:
            self._round.stop_reading()
        self._data.use(feed, data)

    def batches_of_epoch(self, feed: Feed) -> Iterator[MicroBatch]:
        """Yield this worker's micro-batches of every step of the current epoch.

        Raises:
            SpecError: they were asked for before.
        """
        parts = self._parts
        if self._epoch_read == parts.state.epoch:
            raise SpecError(
                "your training loop",
                got=f"a second loop over job.batches in epoch {parts.state.epoch}",
                need="one loop over the batches of an epoch",
                hint="job.evaluate(test, metrics) measures; ConcatDataset joins a second training "
                "set, and StackDataset reads two side by side",
            )
        self._epoch_read = parts.state.epoch
        if parts.state.has_lines_between:
            # What stands in front of this loop was done before this worker came.
            parts.state.put_again()
        parts.state.keep_put()
        parts.state.order = feed.order_crc32(parts.state.epoch) if feed.order == "sampler" else 0
        end = (parts.state.epoch + 1) * self._data.schedule.steps_per_epoch
        if parts.asynchrony is not None:
            yield from self._asynchronous_epoch(parts.asynchrony, feed, end)
            return
        spec, keeps = parts.spec, parts.checkpoints
        keeps.wants_ahead = spec.exact and spec.audit and not feed.is_stream
        try:
            while parts.state.committed < end and parts.state.stop_after is None:
                with self.while_it_lasts():
                    yield from self._steps_of(self._in_round(), feed, end)
                if self._is_look_due and self._previous is not None:
                    self._is_look_due = False
                    yield from self._look_ahead(self._previous, feed)
        finally:
            keeps.wants_ahead = False
        self.steps.under_way = None

    def _look_ahead(self, previous: Round, feed: Feed) -> Iterator[MicroBatch]:
        """Have a micro-batch of the next step computed, for the state that is to be written."""
        parts = self._parts
        coming_requests = requests(
            self._data.schedule,
            parts=previous.parts,
            micro_batches=(0,),
            after=parts.state.committed,
            audited=lambda _: 0,
        )
        self._round = previous
        loaders = self._data.part_of(feed.loaders)
        previous.reads = Reads(
            feed.read(islice(coming_requests, 1), loaders=loaders), is_quick=False
        )
        try:
            yield from self.steps.look_ahead(previous, previous.reads)
        finally:
            self._leave_round()

    def _steps_of(self, round: Round, feed: Feed, end: int) -> Iterator[MicroBatch]:
        """Steps until the epoch ends; leaves by RoundChanged where the round is over before."""
        parts = self._parts
        while parts.state.committed < end and parts.state.stop_after is None:
            # Of a long step a hundredth is enough for the answer, of a short one the answer may
            # come within the next: where it says that the round is over, what was begun of that
            # step is given up.
            self._between_steps(round, patience=0.01 * round.pace)
            if round.reads is None:
                self._data.look_into_deaths()
                # Of one micro-batch a step, one worker has all: the loop's body runs once a step.
                if parts.spec.exact and parts.spec.audit and round.parts > 1:
                    members = self._parts.members
                    round.audits = AuditPlan(
                        round.shares,
                        round.first,
                        is_across=not feed.has_shards,
                        newcomers=members.newcomers if members.has_experience else None,
                        second_epoch=self._data.schedule.steps_per_epoch,
                    )
                coming_requests = requests(
                    self._data.schedule,
                    parts=round.parts,
                    micro_batches=round.mine,
                    after=parts.state.committed,
                    audited=round.audited,
                )
                loaders = self._data.part_of(feed.loaders)
                read = feed.read(
                    coming_requests, loaders=loaders, meanwhile=partial(self._wait_for_data, round)
                )
                round.reads = Reads(read, is_quick=feed.is_quick)
            yield from self.steps.micro_batches(round, round.reads, parts.state.committed)

    def _wait_for_data(self, round: Round) -> None:
        self._parts.members.wait_for_data(self._parts.state.committed, monotonic() - round.asked)

    def _asynchronous_epoch(
        self, asynchrony: Asynchrony, feed: Feed, end: int
    ) -> Iterator[MicroBatch]:
        """Yield this worker's batches of an epoch, and take the state that came of all batches."""
        asynchrony.begin_epoch(self._data.schedule.steps_per_epoch)
        try:
            while asynchrony.is_in_epoch:
                with self.while_it_lasts():
                    yield from self._turns(asynchrony, self._in_round(), feed, end)
                    asynchrony.is_in_epoch = False
        finally:
            asynchrony.is_in_epoch = False  # also where the loop is left
        self.steps.under_way = None

    def _turns(
        self, asynchrony: Asynchrony, round: Round, feed: Feed, end: int
    ) -> Iterator[MicroBatch]:
        """Batches until none is left; others' updates are taken over with each turn."""
        parts = self._parts
        # A checkpoint that is due is begun first: newcomers come by a boundary, and wait there.
        self._between_steps(round, patience=None)
        base, members = parts.state.committed, parts.members.world_size
        allotment = asynchrony.allotment(members)
        if members > 1:
            # others are going to change the tables that it is taken of
            parts.checkpoints.await_copy()
            if round.rank == 0:
                asynchrony.settle(round.number)
            parts.members.arrive(base, "settled")
            asynchrony.begin()
            round.looked_at = base
        batch = allotment.first(round.rank)
        while batch is not None:
            self._between_steps(round, patience=0.01 * round.pace)
            number = end - self._data.schedule.steps_per_epoch + batch
            coming_requests = requests(
                self._data.schedule, parts=1, micro_batches=round.mine, after=number
            )
            loaders = self._data.part_of(feed.loaders)
            read = feed.read(
                islice(coming_requests, 1), loaders=loaders, meanwhile=parts.members.poll
            )
            round.reads = Reads(read, is_quick=False)
            yield from self.steps.micro_batches(round, round.reads, number)
            round.stop_reading()
            batch = (
                None
                if parts.state.stop_after is not None
                else allotment.next(parts.state.committed - 1)
            )
        if members > 1:
            parts.members.arrive(end, "epoch")
            asynchrony.end()
            # The commits of all: so they find out alike whether all stand here.
            round.commits = parts.state.committed - base

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer | None) -> float | None:
        """Do the backward pass of the current micro-batch: see `Job.step`."""
        own_steps, round = self.steps, self._round
        if own_steps.under_way is None or not own_steps.under_way.has_batch or round is None:
            if not own_steps.is_given_up:
                raise SpecError(
                    "job.step",
                    got="a second call for one batch",
                    need="one call for every batch",
                    hint="add the losses: job.step(loss_real + loss_fake)",
                )
            return None
        done = own_steps.take(round, loss, optimizer)
        if done is None:
            return None
        step, index = done
        with self.while_it_lasts():
            return own_steps.commit(round, step).losses[index]
        own_steps.is_given_up = True
        return None

    # The ends of epochs and of the job ------------------------------------------------------------

    def _close_epoch(self) -> None:
        """The user's code is done with an epoch."""
        parts = self._parts
        parts.embeddings.check_unchanged()
        end = (parts.state.epoch + 1) * (
            parts.state.schedule.steps_per_epoch if parts.state.schedule else 1
        )
        if parts.state.committed < end and parts.state.stop_after is None:
            raise self.left_early()
        measured = parts.state.metrics if parts.state.measured == parts.state.committed else {}
        parts.optimization.end_epoch(measured)
        parts.state.epoch += 1
        for carried in parts.carried.values():
            carried.begin_epoch()
        if parts.asynchrony is not None:
            parts.asynchrony.end_epoch()
        self.steps.under_way = None
        # Every worker says so, and the master takes the first: a worker named to say it may be dying.
        parts.members.tell(
            Evaluated(epoch=parts.state.epoch, step=parts.state.committed, metrics=measured)
        )
        parts.state.due = parts.state.due or parts.checkpoints.is_due_at_epochs_end()

    def left_early(self) -> SpecError:
        schedule = self._parts.state.schedule
        place = (
            "before its first step"
            if schedule is None
            else f"after step {self._parts.state.committed} of {schedule.steps}"
        )
        return SpecError(
            "your training loop",
            got=f"a loop that was left {place}",
            need="a loop to its end: other workers would stop at a different sample",
            hint="job.stop() ends a job early, at the same step on all workers",
        )

    def _has_finished(self) -> bool:
        """Agree on the end, have the first worker write it, and wait until all of that is safe."""
        parts = self._parts
        parts.embeddings.check_unchanged()
        with self.while_it_lasts():
            steps.follow(steps.end(is_first=parts.members.rank == 0), self._do_last)
            self._end()
        return self.is_over

    def _end(self) -> None:
        self._parts.checkpoints.drain()
        self.is_over = True
        self._leave_round()
        self._data.end()

    def _do_last(self, action: Action) -> None:
        """Do the next of a job's last work."""
        parts = self._parts
        match action:
            case Act.COMPARE:
                agree(parts)
            case Stand(phase):
                parts.members.arrive(parts.state.committed, phase)
                if parts.state.plan_as_found(self._data.epochs):
                    self._data.introduce()
            case Act.WRITE:
                try:
                    parts.checkpoints.now()
                except EnvironmentFault as fault:
                    parts.members.tell(failure_of(fault))
                    raise
            case Act.COMPLETE:
                digest = weights_sha256(parts.model)
                parts.members.tell(Completed(weights_sha256=digest, metrics=parts.state.metrics))
            case Act.AWAIT_DISMISSAL:
                self._has_made_all = True
                parts.members.wait_for_dismissal()
            case _:
                raise InternalError(f"{action} does not end a job")
