"""The plan of audits: which micro-batches are computed a second time, and by which worker.

Pure.

The part of a micro-batch in a step is a function of the state, the seed and the samples. A script
that makes it depend on more (a network that brim does not know, a running value, the rank) is found
out when another worker computes the same micro-batch, or the same worker does, out of order: the
bits differ.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TO_KEEP = (
    "give networks to brim.join([model, target], optimizer), make values buffers of the model, or "
    'change them once a step and name them: job.register_state("bank", bank)'
)
NOT_KEPT = (
    "Something that no checkpoint has decides what a step comes to: most often a network, a queue or a "
    "running value that the script keeps beside the model. Or the new worker has a processor of "
    "another kind, or a device that adds up in any order."
)
_EARLY = (0, 1, 4, 16, 64)  # steps of a round: most mistakes show in the first two
_INTERVAL = 256  # steps; with one micro-batch a worker, an audit takes as long as its step


class Finding(NamedTuple):
    """A micro-batch that came out in two ways.

    Args:
        micro: its number.
        owner: the rank that has it.
        auditor: the rank that computed it again.
    """

    micro: int
    owner: int
    auditor: int


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The audits of one round: each rank computes the first micro-batch of the next rank, too.

    A rank without another one computes its own first micro-batch again, as the last but one of its
    step. Old members and newcomers lie on one circle, so that some newcomer is audited by an old
    member wherever a round has both.

    Everybody waits for the first step of a round that goes on with experienced members. These were
    audited in it before: there only newcomers are, and all from the second step on.

    Args:
        shares: the micro-batches of each rank; ranks that compute none take no part.
        first: the step with which the round begins.
        is_across: ranks read each other's samples; else each one computes its own micro-batch again.
        newcomers: ranks that have made no step, where others have; None where nobody has.
        second_epoch: its first step: another worker sees samples there whose values a script may have
            kept from the first one.

    >>> plan = AuditPlan((range(0, 3), range(3, 3), range(3, 4)), first=10)
    >>> plan.owner_for(0, 10), plan.micro_of(2, 10), plan.owner_for(2, 10), plan.owner_for(1, 10)
    (2, 3, 0, None)
    >>> [step for step in range(10, 600) if plan.covers(step)]
    [10, 11, 14, 26, 74, 266, 522]
    >>> plan = AuditPlan((range(0, 3), range(3, 4)), first=10, newcomers=frozenset({1}))
    >>> plan.owner_for(0, 10), plan.owner_for(1, 10), plan.owner_for(1, 11), plan.micro_of(0, 10)
    (1, None, 0, None)
    """

    shares: tuple[range, ...]
    first: int
    is_across: bool = True
    newcomers: frozenset[int] | None = None
    second_epoch: int | None = None

    def covers(self, step: int) -> bool:
        """Return whether micro-batches of this step are computed twice."""
        age = step - self.first
        if age == 0 and self.newcomers is not None:
            return any(self.shares[rank] for rank in self.newcomers)
        return age in _EARLY or age % _INTERVAL == 0 or step == self.second_epoch

    def micro_of(self, rank: int, step: int) -> int | None:
        """Return the micro-batch of a rank that is computed twice in a step; None: it has none."""
        share = self.shares[rank]
        return share.start if share and self._is_audited(rank, step) else None

    def owner_for(self, auditor: int, step: int) -> int | None:
        """Return the rank whose micro-batch the auditor computes in a step, or None."""
        if not self.shares[auditor]:
            return None
        ranks = range(auditor + self.is_across, auditor + 1 + len(self.shares))
        owner = next(
            rank % len(self.shares) for rank in ranks if self.shares[rank % len(self.shares)]
        )
        return owner if self._is_audited(owner, step) else None

    def _is_audited(self, rank: int, step: int) -> bool:
        return step > self.first or self.newcomers is None or rank in self.newcomers

    def findings(self, words: Sequence[tuple[bytes, bytes]], step: int) -> list[Finding]:
        """Return the results of a step that disagree.

        Args:
            words: of each rank, a digest of its own micro-batch and of the one that it audited;
                empty where it had no samples.
            step: its number.

        >>> AuditPlan((range(0, 1), range(1, 2)), first=0).findings([(b"a", b"b"), (b"b", b"x")], 0)
        [Finding(micro=0, owner=0, auditor=1)]
        """
        found = []
        for auditor, (_, seen) in enumerate(words):
            owner = self.owner_for(auditor, step)
            if owner is not None and seen and seen != words[owner][0]:
                found.append(Finding(self.shares[owner].start, owner, auditor))
        return found


def newcomers_apart(
    findings: Sequence[Finding], newcomers: Collection[int]
) -> tuple[frozenset[int], Finding]:
    """Return the newcomers that cause a disagreement, and the finding that shows it.

    Args:
        findings: of a step; at least one.
        newcomers: ranks that have made no step, where another one has.

    Returns:
        Their ranks, and a finding with one of them; none of them, and another finding, where
        those that have made steps differ among themselves.

    >>> one, other = Finding(0, 0, 1), Finding(3, 1, 2)
    >>> newcomers_apart([one, other], {1}) == ({1}, one)
    True
    >>> newcomers_apart([one, other], {2}) == (set(), one)
    True
    """
    ranks: set[int] = set()
    for finding in findings:
        involved = {finding.owner, finding.auditor}.intersection(newcomers)
        if not involved:
            return frozenset(), finding
        ranks |= involved
    return frozenset(ranks), findings[0]
