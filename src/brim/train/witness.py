"""Compares the items that each worker's iteration over a stream has yielded.

Each worker iterates over all of a stream, or of its shards, and keeps its own samples. If two
iterations differ, some samples count twice and others never, and nothing else would show it. So
each step ends with the digest of all that was yielded, all compare theirs in the first two steps of
a round, now and then, and at the end of an epoch, and what they agreed on goes into the state of
the job: so a newcomer, or a job that is resumed, compares its own iteration with those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from brim.data.feed import Feed
from brim.data.streams import StreamMark, reads_differently
from brim.errors import SpecError
from brim.train.job_parts import JobParts

_AT_LEAST_EVERY = 64  # steps
_EPOCH = "epoch"  # beside the numbers of shards

Marks = dict[int, StreamMark]  # of shards, by their number


class Witness:
    """The marks of a job's streams, as far as its workers have compared them.

    Args:
        parts: of the job on this worker.
        feed: reads its training data.
    """

    def __init__(self, parts: JobParts, feed: Feed) -> None:
        self._parts, self._feed = parts, feed
        if parts.asynchrony is None:  # else each is at a step of its own
            feed.marks_of = self._marks_of

    def _marks_of(self, epoch: int) -> Marks:
        """Return the marks on which all have agreed in an epoch."""
        streams = self._parts.state.streams
        if streams.get(_EPOCH) != [epoch]:
            return {}
        return {int(name): StreamMark(*mark) for name, mark in streams.items() if name != _EPOCH}

    def compare(self, epoch: int, marks: Marks, *, commits: int, ends_epoch: bool) -> None:
        """Compare the marks of a step before it counts; all members call this in each step.

        Args:
            epoch: of the step.
            marks: of the shards that this worker has read from, at the end of the step.
            commits: steps that the round has made.
            ends_epoch: this step is the last of its epoch.

        Raises:
            SpecError: two have read something else at the same positions.
        """
        if self._feed.marks_of is None or not (ends_epoch or _is_due(commits)):
            return
        members, answers_of_all = self._parts.members, [marks]
        if members.world_size > 1:
            payload = msgspec.msgpack.encode(marks)
            answers = members.arrive(self._parts.state.committed, "streams", payload).payloads
            answers_of_all = [msgspec.msgpack.decode(answer, type=Marks) for answer in answers]
        agreed = self._agreed(epoch, answers_of_all, members.names)
        all_marks = {**self._marks_of(epoch), **agreed}
        self._parts.state.streams = {
            _EPOCH: [epoch],
            **{str(shard): list(all_marks[shard]) for shard in sorted(all_marks)},
        }

    def _agreed(
        self, epoch: int, marks_of_all: Sequence[Mapping[int, StreamMark]], names: Sequence[str]
    ) -> Marks:
        """Return the marks of all. Raises SpecError where two of them differ."""
        agreed: Marks = {}
        first: dict[int, str] = {}
        for name, marks in zip(names, marks_of_all, strict=True):
            for shard, mark in marks.items():
                if agreed.setdefault(shard, mark) != mark:
                    raise _differ(self._feed, epoch, mark, [first[shard], name])
                first.setdefault(shard, name)
        return agreed


def _is_due(commits: int) -> bool:
    """Return whether marks are compared behind so many steps of a round.

    >>> [commits for commits in range(200) if _is_due(commits)]
    [0, 1, 3, 7, 15, 31, 63, 127, 191]
    """
    steps = commits + 1
    return steps & (steps - 1) == 0 or steps % _AT_LEAST_EVERY == 0


def _differ(feed: Feed, epoch: int, mark: StreamMark, names: Sequence[str]) -> SpecError:
    return reads_differently(
        feed.dataset,
        f"different samples in {' and '.join(names)} among the first {mark.position:,} of epoch "
        f"{epoch + 1}",
    )
