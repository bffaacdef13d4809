"""The parts of a job on one worker: the network, its optimizers, and the other members."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brim.domain.job import JobSpec
from brim.embeddings.embedding import Embeddings
from brim.errors import SpecError
from brim.host.clock import monotonic
from brim.storage.trails import Trail
from brim.tensors.chance import Sources
from brim.train.asynchronous.turn import Asynchrony
from brim.train.captured.captured_steps import CapturedSteps
from brim.train.checkpoints import Checkpoints
from brim.train.checks.attributes import Attributes, Values
from brim.train.context import WorkerContext
from brim.train.exchange.carried import Carried, Sums
from brim.train.exchange.contribution import Contributions
from brim.train.exchange.layout import Layout
from brim.train.membership import Loner, Members, Membership
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization
from brim.wire.messages import WorkerMessage


@dataclass(slots=True, kw_only=True)
class JobParts:
    """The parts that the loop, its rounds and its steps share.

    Attributes:
        spec: the options of the job.
        model: the network; several are in a `ModuleList`.
        device: where its parameters are.
        members: the connection to the other workers.
        optimization: the optimizers, their schedulers and the scaler.
        embeddings: the tables that are trained by rows.
        contributions: what a micro-batch adds to a step.
        attributes: what the network keeps in plain attributes.
        sources: of random numbers.
        state: what all members must have alike.
        checkpoints: of this state.
        asynchrony: this worker's part in asynchronous training, or None.
        carried: hidden states and sums that go from step to step, by name.
        tables: descriptor of the memory that holds the tables of this host; None where the worker
            trains alone.
        trail: of what this worker reads; None where it trains alone.
        run_dir: of the run on this host; None where it trains alone.
        start_method: how this process was started, for the record.
        seconds: spent on each kind of work since the last report.
        notes: warnings of the user's code before training, to be told once.
        captured: programs of this worker's steps; None where all passes are eager.
    """

    spec: JobSpec
    model: nn.Module
    device: torch.device
    members: Members
    optimization: Optimization
    embeddings: Embeddings
    contributions: Contributions
    attributes: Attributes
    sources: Sources
    state: TrainingState
    checkpoints: Checkpoints
    asynchrony: Asynchrony | None
    tables: int | None
    trail: Trail | None
    run_dir: Path | None
    start_method: str
    carried: dict[str, Carried | Sums] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    notes: list[str] = field(default_factory=list)
    captured: CapturedSteps | None = None

    @property
    def takes_turns(self) -> bool:
        """Return whether workers apply their batches in turns, each a whole step."""
        return self.asynchrony is not None and self.members.world_size > 1

    def check_attributes(self, left: Values | None) -> Values:
        """Check what a micro-batch has left in attributes of the network.

        Replayed steps have the values of the first ones built in, and workers that train
        asynchronously never compare theirs: there a script sets none either.

        Args:
            left: by the one before it in the same step; None for the first.

        Returns:
            The values.
        """
        if self.asynchrony is not None or (self.captured and not self.captured.refused):
            self.attributes.check(need="one that stays as it is, with --capture and with --async")
        return self.attributes.check_step(left)

    def carry(self, name: str, carried: Carried | Sums) -> None:
        """Carry values from step to step, before the loop begins.

        Raises:
            SpecError: the name is taken.
        """
        if self.captured is not None:
            self.captured.refuse("states are carried from step to step")
        self.state.register(name, carried)
        self.carried[name] = carried

    def add_up(self, name: str, size: int) -> Sums:
        """Add up so many numbers over the micro-batches of an epoch, in `batch.carried[name]`.

        Raises:
            SpecError: the training is asynchronous, or the name is taken.
        """
        if self.asynchrony is not None:
            raise not_asynchronous(f"{name}, which are added up over steps")
        sums = Sums(size, device=self.device)
        self.carry(name, sums)
        return sums

    def layout(self) -> Layout:
        """Return the layout of a micro-batch's contribution to a step."""
        carried = [tensor for carried in self.carried.values() for tensor in carried.tensors]
        tables = self.embeddings
        return Layout(
            [*self.contributions.like, *carried],
            tables.weights,
            tables.partitions,
            gradients=len(self.contributions.parameters),
        )

    def spent(self, work: str, start: float) -> float:
        """Count the seconds since then as spent on a kind of work; return the time."""
        now = monotonic()
        self.seconds[work] += now - start
        return now


def assemble(
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    spec: JobSpec,
    context: WorkerContext | None,
    scheduler: Any,
    scheduler_interval: str | None,
    monitor: str | None,
    scaler: torch.amp.GradScaler | None,
) -> JobParts:
    """Assemble a job of a user's objects: see `Job`.

    Raises:
        SpecError: these do not go together.
    """
    network = model if isinstance(model, nn.Module) else nn.ModuleList(model)
    for parameter in network.parameters():
        parameter.grad = None  # of passes before it joins, as those of a search for a learning rate
    members: Members = Membership(context) if context else Loner()  # first: SIGTERM is heard now
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    schedulers = (
        scheduler if isinstance(scheduler, (list, tuple)) else [scheduler] * (scheduler is not None)
    )
    optimization = Optimization(
        network,
        optimizers,
        schedulers=schedulers,
        interval=scheduler_interval,
        monitor=monitor,
        scaler=scaler,
        clip_norm=spec.clip_norm,
    )
    obstacle = "a GradScaler" if scaler is not None else ""
    embeddings = Embeddings(network, optimizers, spec, obstacle=obstacle)
    if spec.servers and not embeddings.weights:
        raise _nothing_to_serve(spec)
    contributions = Contributions(network, losses=len(optimizers), by_rows=embeddings.names)
    state = TrainingState(network, optimization, embeddings, spec=spec)
    embeddings.committed = lambda: state.committed

    def tell(message: WorkerMessage) -> None:
        parts.members.tell(message)

    checkpoints = Checkpoints(
        state,
        spec,
        context=context,
        tell=tell,
        listen=lambda seconds: parts.members.listen(seconds),
    )
    asynchrony = None
    if context is not None and spec.asynchronous is not None:
        if scaler is not None:
            raise not_asynchronous("a GradScaler, whose scale follows from step to step")
        asynchrony = Asynchrony(state, embeddings, context.memory)
        checkpoints.asynchrony = asynchrony
    parts = JobParts(
        spec=spec,
        model=network,
        device=next((parameter.device for parameter in network.parameters()), torch.device("cpu")),
        members=members,
        optimization=optimization,
        embeddings=embeddings,
        contributions=contributions,
        attributes=state.attributes,
        sources=Sources(network, *optimizers),
        state=state,
        checkpoints=checkpoints,
        asynchrony=asynchrony,
        tables=context.tables if context else None,
        trail=_trail_of(context),
        run_dir=Path(context.run_dir) if context else None,
        start_method=context.start_method if context else "alone",
    )
    return parts


def _trail_of(context: WorkerContext | None) -> Trail | None:
    """Return a new trail; None where the disk takes none, for it is no more than a help."""
    if context is None:
        return None
    with contextlib.suppress(OSError):
        trail = Trail(Path(context.run_dir), context.worker)
        context.before_failing.append(trail.remove)
        return trail
    return None


def not_asynchronous(feature: str) -> SpecError:
    """Return the error of asynchronous training beside something that needs steps in order."""
    return SpecError(
        "--async",
        got=f"it beside {feature}",
        need="steps that may be applied in any order",
        hint="train without --async",
    )


def _nothing_to_serve(spec: JobSpec) -> SpecError:
    return SpecError(
        "--ps",
        got=f"{spec.servers} for a model without an embedding that is trained by rows",
        need="nn.Embedding or nn.EmbeddingBag on the CPU, of a million elements or with "
        "sparse=True, and SGD without "
        "momentum, Adagrad or SparseAdam: servers own these tables, and nothing else",
        hint="--ps 0",
    )
