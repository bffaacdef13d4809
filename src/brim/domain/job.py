"""A training job as its user specified it. Pure: parsing a command line or a file happens at the edge."""

from __future__ import annotations

from dataclasses import dataclass

from brim.domain.faults import Fault
from brim.errors import SpecError

__all__ = ["JobSpec", "WorkerRange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """How many workers a job may have: it starts with `minimum` (a gang) and grows to `maximum`."""

    minimum: int
    maximum: int

    @classmethod
    def parse(cls, text: str) -> WorkerRange:
        """Read `4` or `1:4`.

        Raises:
            SpecError: anything else, or a range that is empty.

        >>> WorkerRange.parse("1:4")
        WorkerRange(minimum=1, maximum=4)
        """
        low, colon, high = text.partition(":")
        try:
            bounds = cls(minimum=int(low), maximum=int(high if colon else low))
        except ValueError:
            raise SpecError(
                "--workers", got=repr(text), need="a whole number or MINIMUM:MAXIMUM", hint="--workers 1:4"
            ) from None
        if not 1 <= bounds.minimum <= bounds.maximum:
            raise SpecError("--workers", got=repr(text), need="1 <= MINIMUM <= MAXIMUM", hint="--workers 1:4")
        return bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Everything that a run was asked to do; written into its directory and never changed.

    Args:
        file: path of the training file (level 1), or empty where `command` is given.
        command: a command that runs the user's own loop (level 2), for instance `("python", "loop.py")`.
        parameters: the values of `--set`, by name.
        micro_batches: parts that the global batch of a step is cut into; fixed for the job's life.
        exact: canonical reduction (the same bits for any number of workers) or, if false, the sum over
            one large batch per worker.
        clip_norm: upper bound of the gradient's 2-norm over all parameters; None leaves it alone.
        threads: torch threads per worker.
        checkpoint_every: steps between checkpoints; 0 writes one at the end of each epoch.
        heartbeat_timeout: seconds of silence after which a worker is declared lost and killed.
        spares: warm workers that each agent keeps ready to replace a lost one.
        start_method: `fork` (from the warm template), `spawn`, or `auto`.
        transport: `auto` (shared memory within a host, TCP between hosts) or `distributed` (torch.distributed:
            NCCL on GPUs, else gloo).
        device: `cpu`, `cuda`, or `auto`.
        agents: nodes to wait for before the first round.
    """

    file: str = ""
    command: tuple[str, ...] = ()
    parameters: dict[str, str]
    workers: WorkerRange
    epochs: int = 1
    global_batch_size: int = 512
    micro_batches: int = 8
    seed: int = 0
    exact: bool = True
    clip_norm: float | None = None
    threads: int = 1
    faults: tuple[Fault, ...] = ()
    checkpoint_every: int = 0
    heartbeat_timeout: float = 3.0
    spares: int = 1
    start_method: str = "auto"
    transport: str = "auto"
    device: str = "auto"
    agents: int = 1
