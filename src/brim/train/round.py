"""A round as one of its members is in it: its beginning, and the members' agreements."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import msgspec

from brim.coordination.job.audits import AuditPlan
from brim.coordination.job.reduction import Block, ReductionPlan
from brim.data.feed import Reads
from brim.embeddings.rows import RowSums
from brim.errors import EnvironmentFault, UserCodeError
from brim.host.clock import monotonic
from brim.train.exchange.accumulate import Accumulator
from brim.train.exchange.early import EarlySums
from brim.train.exchange.folding import Exchange, LocalExchange
from brim.train.job_parts import JobParts
from brim.train.membership import parts_of
from brim.train.state.digests import Digests, describe_difference, root_of
from brim.train.state.job_state import ATTRIBUTES, SAME_DATA, SAMPLES, STOP

_LONG = 2.0  # seconds of a micro-batch that nobody waits for where a job is suspended
_RATE = re.compile(r"param_groups\.\d+\.lr\b")


@dataclass(slots=True, kw_only=True)
class Round:
    """A round that this worker is in.

    Attributes:
        number: of the round.
        exchange: by which its members add up their contributions.
        accumulator: of this worker's micro-batches.
        blocks: of these, which the accumulator leaves for others.
        rows: of embeddings, added up in the same way.
        early: gives away sums before the last backward pass is done; None where nobody asks.
        rank: of this worker.
        leads_host: it is the first worker of its host.
        parts: that each step is cut into.
        mine: those of this rank.
        shares: those of each rank.
        first: the step with which it begins.
        audits: which of them are computed twice; None where none are.
        reads: the data of the steps to come, or None before the first.
        commits: number of steps that the round has made.
        looked_at: the last step behind which a checkpoint would have been begun, where workers take
            turns.
        asked: when this worker asked for its next micro-batch.
        pace: seconds of this worker's last step, to the commit.
        held: its last commit was the last of the round.
    """

    number: int
    exchange: Exchange
    accumulator: Accumulator
    blocks: tuple[Block, ...]
    rows: RowSums
    early: EarlySums | None
    rank: int
    leads_host: bool
    parts: int
    mine: range
    shares: tuple[range, ...]
    first: int
    audits: AuditPlan | None = None
    reads: Reads | None = None
    commits: int = 0
    looked_at: int = 0
    asked: float = 0.0
    pace: float = 0.0
    held: bool = False

    def audited(self, step: int) -> int | None:
        """Return the micro-batch of a step that this rank computes for an audit, or None."""
        if self.audits is None or not self.audits.covers(step):
            return None
        owner = self.audits.owner_for(self.rank, step)
        return None if owner is None else self.audits.micro_of(owner, step)

    @property
    def can_look_ahead(self) -> bool:
        """Return whether a micro-batch of the next step may be computed before the state is written.

        One that takes long would be waited for.
        """
        micro_seconds = self.pace / max(1, len(self.mine))
        return self.parts > 1 and micro_seconds < _LONG

    def emptied(self) -> Round:
        """Return the same without large memory, in which nothing is added up."""
        return replace(
            self,
            exchange=LocalExchange(),
            accumulator=Accumulator(self.parts, (), {}),
            blocks=(),
            rows=RowSums(self.parts, ()),
            early=None,
            audits=None,
            reads=None,
        )

    def stop_reading(self) -> None:
        """Drop samples that were read ahead."""
        if self.reads is not None:
            self.reads.close()
            self.reads = None


def enter(parts: JobParts) -> Round:
    """Wait for the next round, and enter it.

    Raises:
        SystemExit: this worker was asked to leave.
    """
    exchange = parts.members.next_round(parts.checkpoints)
    members = parts.members
    cut_in, rank = parts_of(parts.spec, len(members.workers)), members.rank
    plan = ReductionPlan(cut_in, (members.world_size,), members.shares)
    if parts.asynchrony is not None:  # each computes whole steps, as who is alone
        cut_in, rank, plan = 1, 0, ReductionPlan(1, (1,), (1,))
    blocks = plan.rank_blocks(rank)
    accumulator = Accumulator(cut_in, blocks, exchange.rows)
    entered = Round(
        number=members.round,
        exchange=exchange,
        accumulator=accumulator,
        blocks=blocks,
        rows=RowSums(cut_in, blocks),
        early=_early_sums(parts, exchange, accumulator) if blocks else None,
        rank=members.rank,
        leads_host=members.rank == members.neighbours.start,
        parts=cut_in,
        mine=plan.micro_batches(rank),
        shares=tuple(map(plan.micro_batches, range(plan.world_size))),
        first=parts.state.committed,
    )
    parts.contributions.begin()
    return entered


def _early_sums(parts: JobParts, exchange: Exchange, accumulator: Accumulator) -> EarlySums | None:
    """The sums that go out early.

    None where nobody takes them, where a device computes beside its process, and where several
    losses add up to one gradient.
    """
    if len(exchange.pieces) < 2 or parts.device.type != "cpu":
        return None
    if len(parts.optimization.optimizers) > 1:
        return None

    def have_ready(count: int) -> None:
        exchange.have_ready(parts.state.committed, count)

    return EarlySums(parts.contributions.parameters, exchange.pieces, accumulator, have_ready)


def agree(parts: JobParts, *, at_hold: bool = False) -> None:
    """Compare the state with those of the other members.

    Args:
        parts: of the job on this worker.
        at_hold: they compared it before, at the end of the last round, and nothing of the user's
            ran since.

    Raises:
        UserCodeError: they differ, which only state unknown to brim can cause.
    """
    parts.check_attributes(None)
    members = parts.members
    if members.world_size == 1:
        return
    step, started = parts.state.committed, monotonic()
    digests = parts.state.digests(unless_put=at_hold)
    roots = members.arrive(step, "agree", root_of(digests)).payloads
    parts.spent("agree", started)
    if len(set(roots)) == 1:
        return
    payloads = members.arrive(step, "differ", msgspec.msgpack.encode(digests)).payloads
    tables = _comparable([msgspec.msgpack.decode(payload, type=Digests) for payload in payloads])
    difference = describe_difference(tables, members.names)
    if not difference:
        return
    text = f"the workers do not agree after step {step}: {difference}\n  {_advice(difference)}"
    old = [table for rank, table in enumerate(tables) if rank not in members.newcomers]
    differing = [rank for rank in members.newcomers if tables[rank] != old[0]]
    if differing and all(table == old[0] for table in old):
        members.turn_away(differing, text)
    raise UserCodeError(f"{text}\n  The last checkpoint on which all agreed is kept.")


def _comparable(tables: list[dict[str, bytes]]) -> list[dict[str, bytes]]:
    """Leave out attributes that some members have not set yet: they had no micro-batch so far."""
    absent = {
        path
        for path in set().union(*tables)
        if path.startswith(ATTRIBUTES) and not all(path in table for table in tables)
    }
    return [
        {path: digest for path, digest in table.items() if path not in absent} for table in tables
    ]


def settle_tables(parts: JobParts) -> None:
    """Bring this host's tables to the state of the last commit.

    All members have left the round before.
    """
    tables, members, step = parts.embeddings, parts.members, parts.state.committed
    if not tables.names:
        return
    is_first = members.rank == members.neighbours.start
    was_here = tables.is_shown and not members.is_newcomer
    # Where workers take turns there is one host, whose tables are as far as the last turn.
    is_there = tables.step == step or (parts.asynchrony is not None and tables.step is not None)
    has_tables = was_here or is_there
    if is_first:
        # What can be taken back is forgotten here. So tables that lack a step are those of no step
        # until another host has given them: one that restored theirs would take them for whole.
        tables.step = step if has_tables else None
        tables.take_back(step)
    has_parts = [has_tables]
    if members.world_size > 1:
        word = b"1" if has_tables else b""
        has_parts = [bool(payload) for payload in members.arrive(step, "tables", word).payloads]
    if not any(has_parts):
        raise _tables_are_gone(step)
    if members.world_size > 1 and members.hand_over(has_parts, tables):
        members.arrive(step, "handed over")
    if is_first:
        tables.step = step
    tables.show()


def _tables_are_gone(step: int) -> EnvironmentFault:
    """The error where those with the tables died before newcomers had them.

    Newcomers have the rest of the state, which is of no use without them: all give up, and others
    go on from a checkpoint.
    """
    return EnvironmentFault(
        f"the embeddings of step {step} are lost: the last workers that held them died before "
        "others had copies",
        retryable=True,
    )


def _advice(difference: str) -> str:
    """Return advice for a difference between workers, by its kind."""
    if difference.startswith(SAMPLES):
        return f"Their training data has the same length and other samples.\n  hint: {SAME_DATA}"
    if difference.startswith(STOP):
        return (
            "They do not agree on job.stop(): the script decides by variables that a newcomer does "
            "not have.\n"
            '  hint: keep them in a dict, and name it: job.register_state("best", best)'
        )
    if difference.startswith(ATTRIBUTES):
        return (
            "A forward pass sets it once, and each worker did so from its own samples.\n"
            "  hint: set it in __init__, or run one batch through the model before brim.join"
        )
    if _RATE.search(difference.partition(" differs")[0]):
        return (
            "They have different learning rates: something that brim does not carry sets them.\n"
            "  hint: pass the scheduler: brim.join(..., scheduler=scheduler), or job.register_state what "
            "computes them"
        )
    return (
        "brim carries parameters, buffers, optimizers, schedulers and what job.register_state "
        "names.\n"
        "  What differs was changed by something else: a variable of the script, the rank, or the "
        "clock.\n"
        "  hint: job.register_state(name, thing), or change it in the same way on all workers"
    )
