"""The data that a job trains on, as one of its workers reads it, and the steps that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.data.feed import Feed
from brim.data.streams import StreamMark
from brim.domain.batch import Schedule, Span, cut
from brim.domain.quantities import counted
from brim.errors import SpecError
from brim.storage.trails import trails_of_the_dead
from brim.train.checks.click_models import check_sizes
from brim.train.exchange.carried import Carried
from brim.train.job_parts import JobParts
from brim.train.software import versions
from brim.train.witness import Witness
from brim.wire.messages import Facts, Introduce, Warn


class TrainingData:
    """The training data of a job.

    Args:
        parts: of the job on this worker.

    Attributes:
        epochs: that the job has in total; 0 before its loop begins.
        feed: reads the data that was used last, or None.
        witness: compares what it yields with what other workers read, where it is a stream.
        is_introduced: the master knows the facts of this job.
    """

    def __init__(self, parts: JobParts) -> None:
        self._parts = parts
        self.epochs = 0
        self.feed: Feed | None = None
        self.witness: Witness | None = None
        self.is_introduced = False
        self._data: object = None
        self._facts: dict[str, Any] = {}

    @property
    def schedule(self) -> Schedule:
        """The steps of the job, once its data is known."""
        schedule = self._parts.state.schedule
        assert schedule is not None, "batches plans it"
        return schedule

    def is_used(self, data: object) -> bool:
        """Return whether this very data is read now."""
        return self.feed is not None and self._data is data

    def use(self, feed: Feed, data: object) -> None:
        """Read from a feed when `Job.batches` is asked for some data.

        Raises:
            SpecError: the data has no samples, or is not supported.
        """
        feed.trail = self._parts.trail
        feed.warn = lambda text: self._parts.members.tell(Warn(message=text))
        feed.check()
        if not feed.samples:
            field = "dataset('train')" if self._parts.spec.file else "job.batches(data)"
            raise SpecError(field, got="no samples", need="at least one")
        if not self._parts.spec.file:  # whose model may have a `forward` of the file
            check_sizes(self._parts.model, data)
        self.close()
        self.feed, self._data = feed, data
        self.witness = Witness(self._parts, feed) if feed.is_stream else None

    def contents_of(self, marks: Mapping[int, StreamMark]) -> int | None:
        """Return a step's mark of the contents of a stream; None where no worker reads all of it."""
        is_whole = self.feed is not None and self.feed.marks_of is not None and not self.feed.shards
        return marks[0].digest % (1 << 32) if is_whole and 0 in marks else None

    def look_into_deaths(self) -> None:
        """Look into the last reads of dead workers of this host.

        Raises:
            UserCodeError: a sample kills the process that reads it.
        """
        if self.feed is not None and self._parts.run_dir is not None:
            for steps in trails_of_the_dead(self._parts.run_dir):
                self.feed.look_into(steps)

    def close(self) -> None:
        """Read no more."""
        if self.feed is not None:
            self.feed.close()

    def end(self) -> None:
        """Read no more, for the job is over."""
        self.close()
        if self._parts.trail is not None:
            self._parts.trail.remove()

    def plan(self, feed: Feed, epochs: int, *, test_samples: int = 0) -> None:
        """Set the steps of the job, and report them.

        Args:
            feed: of the data of the epochs to come.
            epochs: that the job has in total.
            test_samples: number of samples that it is measured on, for the record.

        Raises:
            SpecError: the data does not fit the job, or differs from that of earlier epochs.
        """
        parts, state = self._parts, self._parts.state
        agreed("global-batch-size", feed.global_batch_size, parts.spec.global_batch_size, default=1)
        if parts.spec.exact and feed.global_batch_size < parts.spec.micro_batches:
            raise SpecError(
                "global_batch_size",
                got=str(feed.global_batch_size),
                need=f"at least 1 sample for each of the {parts.spec.micro_batches} micro-batches "
                "of a step",
                hint=f"{parts.spec.micro_batches} or more, or fewer micro_batches",
            )
        self._check_carried(feed)
        schedule = Schedule(
            samples=feed.samples, global_batch_size=feed.global_batch_size, epochs=epochs
        )
        if state.schedule not in (None, schedule):
            raise SpecError(
                "job.batches",
                got=f"{counted(schedule.samples, 'sample')} in steps of {schedule.global_batch_size}",
                need=f"{state.schedule.samples:,} in steps of {state.schedule.global_batch_size}, "
                "as in the epochs before",
                hint="one dataset for all epochs",
            )
        parts.optimization.check_horizon(epochs, schedule.steps)
        state.plan(schedule, mark=f"{state.epoch} {feed.mark}" if feed.mark else "")
        self._facts = {
            "block_size": feed.block_size,
            "order": feed.order,
            "order_size": feed.order_size,
            "quarantined": int(getattr(feed.dataset, "quarantined", 0)),
            "quarantine_path": str(getattr(feed.dataset, "quarantine_path", "") or ""),
            "test_samples": test_samples or self._facts.get("test_samples", 0),
        }
        if self.epochs:
            self.introduce()

    def introduce(self) -> None:
        """Tell the master the facts of this job, unless it knows them."""
        if not self.is_introduced:
            self.is_introduced = True
            self._parts.members.tell(Introduce(facts=self.facts()))

    def _check_carried(self, feed: Feed) -> None:
        carried_states = {
            name: carried
            for name, carried in self._parts.carried.items()
            if isinstance(carried, Carried)
        }
        if carried_states and feed.order == "shuffled":
            raise SpecError(
                "job.carry",
                got="data that is shuffled",
                need="data in which a sample goes on where the one a step before it ended",
                hint="job.batches(data, shuffle=False)",
            )
        for name, carried in carried_states.items():
            if carried.places != feed.global_batch_size:
                raise SpecError(
                    f"carried {name!r}",
                    got=f"{carried.places} places",
                    need=f"{feed.global_batch_size}: one for each sample of a step",
                    hint="job.carry(name, start, dim=1) where dimension 1 of start is that of the "
                    "samples",
                )

    def part_of(self, loaders: int) -> int:
        """Return this worker's part of the processes that read on its host.

        The part is at least one, where there are any. A server reads nothing.
        """
        members = self._parts.members
        if members.rank not in members.neighbours:
            return 0
        part = cut(Span(0, loaders), len(members.neighbours))[
            members.rank - members.neighbours.start
        ]
        return max(len(part), min(loaders, 1))

    def facts(self) -> Facts:
        """Return the facts of this job, for its record and its master."""
        parts, schedule = self._parts, self.schedule
        usual = {"order": "sampler", "order_size": schedule.samples, "test_samples": 0}
        return Facts(
            samples=schedule.samples,
            steps=schedule.steps,
            steps_per_epoch=schedule.steps_per_epoch,
            global_batch_size=schedule.global_batch_size,
            epochs=schedule.epochs,
            seed=parts.spec.seed,
            clip_norm=parts.spec.clip_norm,
            on_nan=parts.spec.on_nan,
            parameters=sum(parameter.numel() for parameter in parts.model.parameters()),
            versions=versions(),
            start_method=parts.start_method,
            tables=parts.embeddings.facts(),
            transport=parts.spec.transport,
            **{**usual, **self._facts},
        )


def agreed(name: str, in_script: int | None, on_command_line: int, *, default: int) -> int:
    """Return the one number that the script and the command line agree on.

    Args:
        name: of the option.
        in_script: by the script, or None.
        on_command_line: by the command line, or 0.
        default: where neither says one.

    Raises:
        SpecError: they say different numbers, or one below 1.
    """
    if in_script is not None and on_command_line and in_script != on_command_line:
        raise SpecError(
            f"--{name}",
            got=str(on_command_line),
            need=f"{in_script}, as the script has it",
            hint=f"leave out --{name}",
        )
    number = on_command_line or default if in_script is None else in_script
    if number < 1:
        raise SpecError(name, got=str(number), need="a whole number from 1")
    return number
