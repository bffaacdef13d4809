"""Audits: a micro-batch that is computed twice must give the same bits.

`coordination/job/audits.py` plans which ones. This module holds what came of them on one worker, and
puts a difference into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from brim.coordination.job.audits import NOT_KEPT, TO_KEEP, AuditPlan, Finding
from brim.data.feed import MicroBatchRequest
from brim.train.state.digests import Digests, digests_of, root_of

SAMPLES = "samples"
_COMMITTED = "committed"
_IN_STATE = (
    "Something else than the weights, the seed and the samples decides what it comes to: most often "
    "a network, a queue or a running value that the script keeps beside the model given to "
    "brim.join (a target network, a memory bank), a random generator of its own, or the rank."
)
_IN_DATA = (
    "The workers read different files or splits, or the data depends on more than indices and the "
    "seed: a transform draws from a generator of its own, or reading changes what is read."
)
_TO_READ = (
    "draw from torch's, numpy's or Python's global generator, return copies of samples, and seed what "
    "splits the data"
)
NOT_DETERMINISTIC = (
    "\n  or: kernels of this device add up in any order; torch.use_deterministic_algorithms(True) "
    "tells these two apart"
)


@dataclass(slots=True, kw_only=True)
class StepAudit:
    """The audit of one step, on one worker.

    Args:
        own: the number of this worker's micro-batch that another one computes as well; None where
            it computes none.

    Attributes:
        made: the digests of that one.
        seen: the digests of the micro-batch that this worker computed again.
    """

    own: int | None
    made: Digests = field(default_factory=dict)
    seen: Digests = field(default_factory=dict)

    def covers(self, request: MicroBatchRequest) -> bool:
        """Return whether a micro-batch is one of the two."""
        return request.is_audit or request.micro == self.own

    def take(self, request: MicroBatchRequest, samples: str, results: Mapping[str, Any]) -> None:
        """Take the results of one of the two.

        Args:
            request: that it is.
            samples: the digest of its samples.
            results: tensors by name.
        """
        digests = digests_of({SAMPLES: samples, **results})
        if request.is_audit:
            self.seen = digests
        else:
            self.made = digests

    def early_digests(self, committed: int) -> dict[str, Any]:
        """Return the digests of the repeated micro-batch of this worker, for a checkpoint.

        Args:
            committed: steps of its state.
        """
        return {_COMMITTED: committed, **_by_kind(self.seen)}

    def apart_from(self, early: Mapping[str, Any], *, step: int) -> str:
        """Return a warning where the first micro-batch came to something else before the job stood.

        Empty where it did not, and where this worker has another micro-batch.

        Args:
            early: of the checkpoint that the job goes on from; empty where it has none.
            step: the steps that are committed.
        """
        if self.own != 0 or early.get(_COMMITTED) != step:
            return ""
        digests = _by_kind(self.made)
        kind_apart = next((kind for kind in digests if digests[kind] != early.get(kind)), "")
        if not kind_apart:
            return ""
        subject, reason, hint = f"another {kind_apart}", NOT_KEPT, TO_KEEP
        if kind_apart == SAMPLES:
            subject, reason, hint = "other samples", _IN_DATA, _TO_READ
        return (
            f"micro-batch 0 of step {step + 1} has {subject} than before the job was suspended: its weights "
            f"will not be those of a job that was not\n  {reason}\n  hint: {hint}"
        )

    @property
    def word(self) -> bytes:
        """Return the word on it for the others, one digest for each of the two."""
        roots = [root_of(digests) if digests else b"" for digests in (self.made, self.seen)]
        return msgspec.msgpack.encode(roots)

    @property
    def tables(self) -> bytes:
        """Return all digests of the two, for the others."""
        return msgspec.msgpack.encode([self.made, self.seen])


def _by_kind(digests: Digests) -> dict[str, str]:
    """Return one digest of the samples, of the loss, of the gradient, and so on."""
    kinds = dict.fromkeys(path.partition(" ")[0] for path in digests)
    return {
        kind: root_of(
            {path: digest for path, digest in digests.items() if path.partition(" ")[0] == kind}
        ).hex()
        for kind in kinds
    }


def findings_of(plan: AuditPlan, words: Sequence[bytes], *, step: int) -> list[Finding]:
    """Return the disagreements in the `StepAudit.word` of each rank in a step."""
    roots = [msgspec.msgpack.decode(word, type=tuple[bytes, bytes]) for word in words]
    return plan.findings(roots, step)


def describe(finding: Finding, tables: Sequence[bytes], names: Sequence[str], *, step: int) -> str:
    """Say which micro-batch differs and where, and the usual cause.

    Args:
        finding: of the step.
        tables: `StepAudit.tables` of each rank.
        names: of the workers, by rank.
        step: its number, from 1.
    """
    owned, _ = msgspec.msgpack.decode(tables[finding.owner], type=tuple[Digests, Digests])
    _, seen = msgspec.msgpack.decode(tables[finding.auditor], type=tuple[Digests, Digests])
    different = [path for path in owned if seen.get(path) != owned[path]]
    different += [path for path in seen if path not in owned]
    owner, auditor = names[finding.owner], names[finding.auditor]
    workers = f"twice by {owner}" if owner == auditor else f"by {owner} and by {auditor}"
    prefix = "" if owner == auditor else "the workers do not agree: "
    if different[0] == SAMPLES:
        subject, reason, hint = "from other samples", _IN_DATA, _TO_READ
    else:
        rest = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
        subject, reason, hint = f"with different {different[0]}{rest}", _IN_STATE, TO_KEEP
    return (
        f"{prefix}micro-batch {finding.micro} of step {step} was computed {workers}, {subject}\n  {reason}\n"
        f"  hint: {hint}"
    )
