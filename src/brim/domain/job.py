"""A training job as its user specified it.

Pure: parsing a command line or a file happens at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.domain.checkpointing import EACH_EPOCH, Best, Interval
from brim.domain.faults import FROM_OUTSIDE, Fault, FaultKind, describe
from brim.domain.inference import Inference
from brim.errors import SpecError, did_you_mean

START_METHODS = ("auto", "fork", "spawn")
TRANSPORTS = ("auto", "distributed")
DEVICES = ("auto", "cpu", "cuda")
EMBEDDINGS = ("auto", "dense")
ON_NAN = ("warn", "skip", "stop")
GLOBAL_BATCH_SIZE = 512  # of a training file, where neither it nor its user says
LARGEST_COUNT = 10**9  # of anything; what follows from counts is kept in 64 bits
LARGEST_MEMORY = 1 << 60
LOG_LIMIT = 256 << 20  # bytes: of 64 workers that all print without end, 3.5 MiB each are left
_LEAST_LOG_LIMIT = 1 << 20  # the logs of a few processes, in whole blocks of a disk
# A seed is mixed into torch's 64-bit generators and travels as a signed number.
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """How many workers a job may have: it starts with `minimum` (a gang) and grows to `maximum`."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= LARGEST_COUNT:
            need = "1 <= MINIMUM <= MAXIMUM"
            if self.maximum > LARGEST_COUNT:
                need = f"at most {LARGEST_COUNT:,}"
            raise SpecError("--workers", got=repr(str(self)), need=need, hint="--workers 1:4")

    def __str__(self) -> str:
        """As `parse` reads it."""
        return (
            f"{self.minimum}" if self.minimum == self.maximum else f"{self.minimum}:{self.maximum}"
        )

    @classmethod
    def parse(cls, text: str, *, field: str = "--workers") -> WorkerRange:
        """Read `4` or `1:4`, which was written in `field`.

        Raises:
            SpecError: anything else, or a range that is empty.

        >>> WorkerRange.parse("1:4")
        WorkerRange(minimum=1, maximum=4)
        """
        low, colon, high = text.partition(":")
        hint = f"{field.split()[0]} 1:4"
        try:
            return cls(minimum=int(low), maximum=int(high if colon else low))
        except ValueError:
            need = "a whole number from 1, or MINIMUM:MAXIMUM"
            raise SpecError(field, got=repr(text), need=need, hint=hint) from None
        except SpecError as wrong:
            raise SpecError(field, got=wrong.got, need=wrong.need, hint=hint) from None


def default_micro_batches(workers: WorkerRange) -> int:
    """The parts of a step where nobody says: 8, so that runs with 1 to 8 workers agree bit for bit.

    A job whose maximum is larger takes the next power of two at or above it, so that every worker
    has work.

    >>> default_micro_batches(WorkerRange.parse("1:4")), default_micro_batches(WorkerRange.parse("9"))
    (8, 16)
    """
    return max(8, fewest_micro_batches(workers))


def fewest_micro_batches(workers: WorkerRange) -> int:
    """What `--micro-batches auto` stands for: the smallest power of two that has work for every
    worker.

    A step of few samples takes less time in few parts. The result is the same for 1 worker to as
    many as there are parts, and for no more.

    >>> [fewest_micro_batches(WorkerRange.parse(workers)) for workers in ("1", "1:4", "3", "9")]
    [1, 4, 4, 16]
    """
    return 1 << (workers.maximum - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Everything that a run was asked to do; written into its directory and never changed.

    Args:
        file: path of the training file (level 1), or empty where `command` is given.
        command: a command that runs the user's own loop (level 2), for instance `("python",
            "loop.py")`.
        parameters: the values of `--set`, by name.
        epochs: passes over the data; 0 stands for 1, or for what a command's own loop says.
        global_batch_size: samples of a step; 0 stands for what the user's DataLoader or loop says,
            else 512.
        env: environment variables of the template and the workers, set before any of the user's
            code runs.
        micro_batches: parts that the global batch of a step is cut into; fixed for the job's life.
            0 stands for `default_micro_batches(workers)` and is replaced by it here.
        exact: canonical reduction (the same bits for any number of workers) or, if false, the sum
            over one large batch per worker.
        clip_norm: upper bound of the gradient's 2-norm over all parameters; None leaves it alone.
        on_nan: what becomes of a step whose loss is not a number: `warn` applies it, `skip` leaves
            it out, `stop` ends the job.
        threads: torch threads per worker.
        loaders: processes on each host that read data beside the step, shared out among its
            workers; 0 reads in the step, None does as a DataLoader says, and in the step where
            there is none.
        checkpoint_every: steps or seconds between checkpoints; neither writes one at the end of
            each epoch, and every 5 minutes within it.
        checkpoints: where they are: a path from the root or a URL; empty for the run's directory.
        keep: how many of the newest are kept.
        keep_best: by which metric one more is kept, or None.
        heartbeat_timeout: seconds of silence after which a worker whose process is stopped is
            declared lost and killed.
        hang_timeout: seconds without progress after which a worker is killed; None: never.
        memory: bytes that a worker may have, with the processes that it starts; a worker with more
            is ended and replaced. None: no limit.
        log_limit: bytes that the logs of its processes may have together, on each host; the oldest
            lines of the longest logs go first.
        spares: warm workers kept ready beyond those that train, to replace a lost one at once.
        start_method: `fork` (from the warm template), `spawn`, or `auto`.
        transport: `auto` (shared memory within a host, TCP between hosts) or `distributed`
            (torch.distributed: NCCL on GPUs, else gloo).
        device: `cpu`, `cuda`, or `auto`.
        delay: steps that embeddings trained by rows change late.
        embeddings: `dense`, or `auto`: large ones are trained by rows where that gives the same
            bits.
        servers: members beside the workers that take no share of the batch, and own the tables of
            embeddings that are trained by rows.
        asynchronous: how many batches a worker may be ahead of the slowest, where each computes and
            applies whole batches by itself; the result depends on timing, so `exact` is false then.
            None: all workers compute each step together.
        agents: nodes to wait for before the first round.
        directory: where relative paths of `file`, `command` and `parameters` begin; empty for
            wherever the job's processes are started.
        inference: what to do with a model that is trained already; None trains one.
    """

    file: str = ""
    command: tuple[str, ...] = ()
    parameters: dict[str, str]
    env: dict[str, str] = field(default_factory=dict)
    workers: WorkerRange
    epochs: int = 0
    global_batch_size: int = 0
    micro_batches: int = 0
    seed: int = 0
    exact: bool = True
    clip_norm: float | None = None
    on_nan: str = "warn"
    threads: int = 1
    loaders: int | None = None
    faults: tuple[Fault, ...] = ()
    checkpoint_every: Interval = EACH_EPOCH
    checkpoints: str = ""
    keep: int = 2
    keep_best: Best | None = None
    heartbeat_timeout: float = 3.0
    hang_timeout: float | None = 1800.0
    memory: int | None = None
    log_limit: int = LOG_LIMIT
    spares: int = 1
    start_method: str = "auto"
    transport: str = "auto"
    device: str = "auto"
    embeddings: str = "auto"
    delay: int = 0
    servers: int = 0
    asynchronous: int | None = None
    agents: int = 1
    directory: str = ""
    inference: Inference | None = None

    def __post_init__(self) -> None:
        if self.micro_batches == 0:
            object.__setattr__(self, "micro_batches", default_micro_batches(self.workers))
        if not self.command:
            object.__setattr__(self, "epochs", self.epochs or 1)
        if self.asynchronous is not None:
            object.__setattr__(self, "exact", False)
        self.validate()

    def validate(self) -> None:
        """Check every field that can be wrong by itself or beside another.

        Raises:
            SpecError: naming the option, what it was given, what it needs and how to mend it.
        """
        self._check_source()
        self._check_env()
        self._check_counts()
        self._check_batches()
        self._check_choices()
        self._check_quantities()
        self._check_asynchronous()
        self._check_servers()
        self._check_faults()

    def _check_source(self) -> None:
        if self.file and self.command:
            raise SpecError(
                "FILE",
                got=f"both {self.file!r} and a command",
                need="a training file or a command, not both",
                hint="brim train FILE.py, or brim run -- python loop.py",
            )
        for name in self.parameters:
            if not name.isidentifier():
                raise SpecError(
                    f"--set {name}",
                    got=repr(name),
                    need="a name made of letters, digits and _",
                    hint="--set learning_rate=0.01",
                )

    def _check_env(self) -> None:
        for name in self.env:
            if name.startswith("BRIM_"):
                raise SpecError(
                    f"--env {name}",
                    got="a name that begins with BRIM_",
                    need="another one: those are brim's own",
                    hint=f"--env {name.removeprefix('BRIM_') or 'NAME'}=VALUE",
                )
            if not (name.isidentifier() and name.isascii()):
                raise SpecError(
                    f"--env {name}",
                    got=repr(name),
                    need="a name made of letters, digits and _",
                    hint="--env OMP_NUM_THREADS=2",
                )

    def _check_counts(self) -> None:
        for name, got, least, hint in (
            ("--epochs", self.epochs, 0 if self.command else 1, "--epochs 2"),
            ("--global-batch-size", self.global_batch_size, 0, "--global-batch-size 512"),
            ("--micro-batches", self.micro_batches, 1, "leave it out for the default of 8"),
            ("--threads", self.threads, 1, "--threads 1"),
            ("--loaders", self.loaders or 0, 0, "0 reads in the step"),
            ("--ps", self.servers, 0, "--ps 1, or 0 for none"),
            ("--agents", self.agents, 1, "--agents 1"),
            ("--keep", self.keep, 1, "--keep 2"),
            ("--spares", self.spares, 0, "0 keeps none"),
            ("--seed", self.seed, 0, "--seed 0"),
            ("--delay", self.delay, 0, "0 changes embeddings in the step itself"),
        ):
            if got < least:
                raise SpecError(name, got=str(got), need=f"a whole number from {least}", hint=hint)
            if got > LARGEST_COUNT and name != "--seed":
                raise SpecError(name, got=f"{got:,}", need=f"at most {LARGEST_COUNT:,}", hint=hint)
        if self.seed > LARGEST_SEED:
            raise SpecError(
                "--seed", got=str(self.seed), need=f"at most {LARGEST_SEED}", hint="--seed 0"
            )

    def _check_batches(self) -> None:
        if 0 < self.global_batch_size < self.micro_batches:
            raise SpecError(
                "--global-batch-size",
                got=str(self.global_batch_size),
                need=f"at least 1 sample for each of the {self.micro_batches} micro-batches of a "
                "step",
                hint=f"--global-batch-size {self.micro_batches} or more, or a smaller "
                "--micro-batches",
            )
        if self.exact and self.workers.maximum > self.micro_batches:
            raise SpecError(
                "--micro-batches",
                got=f"{self.micro_batches} for up to {self.workers.maximum} workers",
                need="at least one micro-batch for each worker",
                hint=f"--micro-batches {default_micro_batches(self.workers)}, or leave it out",
            )

    def _check_choices(self) -> None:
        for name, got, known in (
            ("--start-method", self.start_method, START_METHODS),
            ("--transport", self.transport, TRANSPORTS),
            ("--device", self.device, DEVICES),
            ("--embeddings", self.embeddings, EMBEDDINGS),
            ("--on-nan", self.on_nan, ON_NAN),
        ):
            if got not in known:
                raise SpecError(
                    name,
                    got=repr(got),
                    need="one of " + ", ".join(known),
                    hint=did_you_mean(got, known),
                )

    def _check_quantities(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise SpecError(
                "--clip-norm",
                got=f"{self.clip_norm:g}",
                need="a number above 0",
                hint="leave it out to clip nothing",
            )
        if not 0 < self.heartbeat_timeout < float("inf"):
            raise SpecError(
                "--heartbeat-timeout",
                got=f"{self.heartbeat_timeout:g}",
                need="a duration above 0",
                hint="--heartbeat-timeout 3s",
            )

        if self.hang_timeout is not None and not 0 < self.hang_timeout < float("inf"):
            raise SpecError(
                "--hang-timeout",
                got=f"{self.hang_timeout:g}",
                need="a duration above 0, or none",
                hint="--hang-timeout 30m",
            )
        if self.memory is not None and not 0 < self.memory <= LARGEST_MEMORY:
            raise SpecError(
                "--memory",
                got=f"{self.memory:,} bytes",
                need="a size above 0, and at most 1,048,576 TiB",
                hint="--memory 4GiB",
            )
        if not _LEAST_LOG_LIMIT <= self.log_limit <= LARGEST_MEMORY:
            raise SpecError(
                "--log-limit",
                got=f"{self.log_limit:,} bytes",
                need=f"at least {_LEAST_LOG_LIMIT >> 20} MiB, and at most 1,048,576 TiB",
                hint="--log-limit 256MiB",
            )

    def _check_servers(self) -> None:
        if not self.servers:
            return
        for option, in_the_way in (
            ("--no-exact", not self.exact),
            ("--transport distributed", self.transport == "distributed"),
            ("--embeddings dense", self.embeddings == "dense"),
        ):
            if in_the_way:
                raise SpecError(
                    "--ps",
                    got=f"{self.servers} beside {option}",
                    need="embeddings that are trained by rows, in memory that servers share with "
                    "workers",
                    hint=f"leave out {option}, or --ps",
                )
        if self.inference is not None:
            raise SpecError(
                "--ps", got=f"{self.servers} servers", need="a job that trains", hint="--ps 0"
            )

    def _check_asynchronous(self) -> None:
        if self.asynchronous is None:
            return
        if not 0 <= self.asynchronous <= LARGEST_COUNT:
            raise SpecError(
                "--async",
                got=str(self.asynchronous),
                need="a whole number from 0",
                hint="--async 4",
            )
        for name, got, need in (
            ("--transport distributed", self.transport == "distributed", "shared memory"),
            ("--agents", self.agents > 1, "one host"),
            ("--ps", self.servers > 0, "workers alone"),
            ("--delay", self.delay > 0, "rows that change at once"),
        ):
            if got:
                raise SpecError(
                    "--async",
                    got=f"it beside {name}",
                    need=f"{need}: asynchronous workers share the network in the memory of one "
                    "host",
                    hint=f"leave out {name.split()[0]}, or --async",
                )

    def _check_faults(self) -> None:
        wanted = self.workers.maximum
        for fault in sorted(self.faults, key=lambda fault: fault.step):
            text = describe(fault)
            if fault.kind in FROM_OUTSIDE:
                raise SpecError(
                    "--faults",
                    got=repr(text),
                    need="a fault that the job can perform itself",
                    hint=f"brim chaos FILE.py --kinds {fault.kind.replace(' ', '-')} performs it "
                    "from outside",
                )
            wanted += fault.count * (-1 if fault.kind is FaultKind.REMOVE else 1)
            wanted -= fault.kind is FaultKind.TERM
            if wanted < 1 and fault.kind is FaultKind.REMOVE:
                raise SpecError(
                    "--faults",
                    got=f"{text!r}, which leaves {wanted} workers",
                    need="at least 1 worker that stays",
                    hint="remove fewer; brim suspend ends a run",
                )
            self._check_ranks(fault, wanted)

    def _check_ranks(self, fault: Fault, wanted: int) -> None:
        if not self.exact:
            return
        if wanted > self.micro_batches:
            raise SpecError(
                "--faults",
                got=f"{describe(fault)!r}, which makes {wanted} workers",
                need=f"at most {self.micro_batches} workers, one for each micro-batch of a step",
                hint=f"--micro-batches {wanted}, or add fewer",
            )
        if fault.rank >= self.micro_batches + self.servers:
            most = f"the most workers{' and servers' if self.servers else ''} this job can have"
            raise SpecError(
                "--faults",
                got=repr(describe(fault)),
                need=f"a rank below {self.micro_batches + self.servers}, {most}",
                hint="ranks count from 0",
            )
