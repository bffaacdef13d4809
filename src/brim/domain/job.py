"""A training job as its user specified it, and the options by which users specify it.

Pure: parsing a command line or a file happens at the edge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from brim.domain.checkpointing import EACH_EPOCH, Best, Interval
from brim.domain.faults import FROM_OUTSIDE, Fault, FaultKind, describe, parse_faults
from brim.domain.inference import Inference
from brim.domain.options import (
    DURATION,
    DURATION_OR_NEVER,
    LARGEST_COUNT,
    NUMBER,
    PLACE,
    SWITCH,
    Kind,
    Option,
    choice,
    option,
    options_of,
    pairs,
    size,
    text,
    whole,
)
from brim.domain.quantities import DURATION_PATTERN, counted
from brim.domain.services import Service
from brim.errors import SpecError

GLOBAL_BATCH_SIZE = 512  # of a training file, where neither it nor its user says
LOG_LIMIT = 256 << 20  # bytes: of 64 workers that all print without end, 3.5 MiB each are left
_LEAST_LOG_LIMIT = 1 << 20  # the logs of a few processes, in whole blocks of a disk
# A seed is mixed into torch's 64-bit generators and travels as a signed number.
_LARGEST_SEED = 2**63 - 1
PER_WORKER, PER_NODE = "worker", "node"
WORLD_MAX = "BRIM_WORLD_MAX"  # by which a command at the restart level finds the most processes
AUTOMATIC = "auto"  # `--micro-batches auto`
_HEXADECIMAL = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRange:
    """The number of workers that a job may have: from `minimum` (a gang) to `maximum`.

    The job starts with the minimum and grows.
    """

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= LARGEST_COUNT:
            need = "1 <= MINIMUM <= MAXIMUM"
            if self.maximum > LARGEST_COUNT:
                need = f"at most {LARGEST_COUNT:,}"
            raise SpecError("--workers", got=repr(str(self)), need=need, hint="--workers 1:4")

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return (
            f"{self.minimum}" if self.minimum == self.maximum else f"{self.minimum}:{self.maximum}"
        )

    @property
    def words(self) -> str:
        """The range with its noun.

        >>> WorkerRange(minimum=1, maximum=1).words, WorkerRange(minimum=1, maximum=4).words
        ('1 worker', '1:4 workers')
        """
        return f"{self} worker{'' if self.maximum == 1 else 's'}"

    def times(self, count: int) -> WorkerRange:
        """Return the range of things that exist `count` times per worker."""
        return WorkerRange(minimum=count * self.minimum, maximum=count * self.maximum)

    @classmethod
    def parse(cls, text: str, *, field: str = "--workers") -> WorkerRange:
        """Read `4` or `1:4`, which was written in `field`.

        Raises:
            SpecError: anything else, or a range that is empty.

        >>> WorkerRange.parse("1:4")
        WorkerRange(minimum=1, maximum=4)
        """
        low, colon, high = text.partition(":")
        hint = f"{field.split()[0]}{'' if field.startswith('-') else ':'} 1:4"
        hint = "1:4" if field.isupper() else hint
        try:
            return cls(minimum=int(low), maximum=int(high if colon else low))
        except ValueError:
            need = "a whole number from 1, or MINIMUM:MAXIMUM"
            raise SpecError(field, got=repr(text), need=need, hint=hint) from None
        except SpecError as wrong:
            raise SpecError(field, got=wrong.got, need=wrong.need, hint=hint) from None


def default_micro_batches(workers: WorkerRange) -> int:
    """The default parts of a step: 8, so that runs with 1 to 8 workers agree bit for bit.

    A job whose maximum is larger takes the next power of two at or above it, so that every worker
    has work.

    >>> default_micro_batches(WorkerRange.parse("1:4")), default_micro_batches(WorkerRange.parse("9"))
    (8, 16)
    """
    return max(8, fewest_micro_batches(workers))


def fewest_micro_batches(workers: WorkerRange) -> int:
    """The number that `--micro-batches auto` stands for.

    The number is the smallest power of two that has work for every worker. A step of few samples
    takes less time in few parts. The result is the same for 1 worker to as many as there are parts,
    and for no more.

    >>> [fewest_micro_batches(WorkerRange.parse(workers)) for workers in ("1", "1:4", "3", "9")]
    [1, 4, 4, 16]
    """
    return 1 << (workers.maximum - 1).bit_length()


def _read_parts(text: str, option: str) -> int | str:
    if text == AUTOMATIC or (text.isascii() and text.isdigit() and int(text)):
        return text if text == AUTOMATIC else int(text)
    flag = option.split()[0]
    raise SpecError(
        option,
        got=repr(text),
        need=f"a whole number from 1, or {AUTOMATIC}",
        hint=f"{flag} 8, or {flag} {AUTOMATIC}",
    )


_WORKERS = Kind(
    metavar="N|MIN:MAX", read=lambda text, option: WorkerRange.parse(text, field=option)
)
_PARTS = Kind(
    metavar=f"N|{AUTOMATIC}",
    read=_read_parts,
    check=whole(minimum=1, hint="leave it out for the default of 8").check,
    written_as=(int, str),
    minimum=1,
    maximum=LARGEST_COUNT,
    pattern=AUTOMATIC,
    example=AUTOMATIC,
)


def _check_interval(interval: Interval, option: str) -> None:
    whole(minimum=0).check(interval.steps, option)


_INTERVAL = Kind(
    metavar="STEPS|DURATION",
    read=lambda text, option: Interval.parse(text, field=option),
    check=_check_interval,
    written_as=(int, str),
    minimum=0,
    maximum=LARGEST_COUNT,
    pattern=f"[0-9]+|{DURATION_PATTERN}",
    example="50 or 30s",
)
_BEST = Kind(metavar="METRIC[:max|:min]", read=lambda text, option: Best.parse(text, field=option))
_FAULTS = Kind(metavar="TEXT", read=lambda text, _: parse_faults(text))


def _check_pattern(pattern: str, option: str) -> None:
    problem = ""
    try:
        if pattern and "step" not in re.compile(pattern).groupindex:
            problem = "without a group of the name step"
    except (re.error, OverflowError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise SpecError(
            option,
            got=f"{pattern!r} ({problem})",
            need="a regular expression with a group of the name step",
            hint=f"{option.split()[0]} 'step (?P<step>[0-9]+)/(?P<total>[0-9]+)'",
        )


_PATTERN = Kind(metavar="REGEX", read=lambda text, _: text, check=_check_pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The spec of a run: all that it was asked to do.

    The spec is written into the run's directory and never changed. The fields with an `option` are
    for its user to set; `help` describes each, and comments are for readers of this code.

    Args:
        file: path of the training file (level 1), or empty where `command` is given.
        command: a command that runs the user's own loop (level 2), for instance `("python",
            "loop.py")`.
        directory: where relative paths of `file`, `command` and `parameters` begin; empty for
            wherever the job's processes are started.
        inference: the use of a trained model; None trains one.
        service: each worker keeps a replica of this online service, which is the command; None: it is
            none.
        include: globs of files beside the code that are sent with it.
        bundle: the sha256 of the bundle whose code is run, of which `file`, or the script of
            `command`, is a file; empty where the file is run where it is.
        tty: `command` is interactive: its one process has a terminal, at which its user is.
        terminal_at: `HOST:PORT` of the master that leads to this user; empty: it is on this host.
    """

    file: str = ""
    command: tuple[str, ...] = ()
    directory: str = ""
    inference: Inference | None = None
    service: Service | None = None
    include: tuple[str, ...] = ()
    bundle: str = ""
    tty: bool = False
    terminal_at: str = ""

    parameters: dict[str, str] = pairs(
        text("NAME=VALUE"),
        flag="--set",
        help="Give the file a parameter, which it reads with brim.param. May be repeated.",
        decides=True,
    )
    # Set before any of the user's code runs, in the template and the workers.
    env: dict[str, str] = pairs(
        text("NAME[=VALUE]"),
        help="Set an environment variable of the workers; NAME alone passes on its present value. "
        "The run's records keep it. May be repeated.",
    )
    workers: WorkerRange = option(
        _WORKERS,
        default="1",
        help="Use this many workers: 4, or 1:4 to start with 1 and grow to 4. The number does not "
        "change the result.",
    )
    # They take no share of the batch.
    servers: int = option(
        whole(minimum=0, hint="--ps 1, or 0 for none"),
        default=0,
        flag="--ps",
        help="Start this many parameter servers: processes beside the workers that keep embeddings "
        "trained by rows. Their updates take CPU time. As long as they live, the death of a worker "
        "loses no step.",
    )
    # 0, of a command alone: as its own loop says.
    epochs: int = option(
        whole(minimum=1),
        unset=0,
        help="Pass over the training data this many times. [default: 1, or as a script says]",
        decides=True,
    )
    # 0: as the user's DataLoader or loop says, else GLOBAL_BATCH_SIZE.
    global_batch_size: int = option(
        whole(minimum=1),
        unset=0,
        help="Use this many samples per step, with any number of workers. [default: 512, or as a "
        "script says]",
        decides=True,
    )
    # Fixed for the job's life; 0 is replaced by `default_micro_batches(workers)` below.
    micro_batches: int = option(
        _PARTS,
        unset=0,
        help="Compute each step in this many parts; auto: as few as give every worker a part. "
        "[default: 8, or more for more workers]",
        decides=True,
    )
    seed: int = option(
        whole(minimum=0, maximum=_LARGEST_SEED, hint="--seed 0"),
        default=0,
        help="Seed everything that is random with this: the order of the data, dropout.",
        decides=True,
    )
    faults: tuple[Fault, ...] = option(
        _FAULTS,
        default="",
        help='Break things on purpose: "kill rank 1 at step 40; add 2 at step 60".',
    )
    # False: the sum over one large batch per worker.
    exact: bool = option(
        SWITCH,
        default=True,
        flag="--exact/--no-exact",
        help="Compute the same weights, bit for bit, at any number of workers; --no-exact is "
        "somewhat faster.",
        decides=True,
    )
    # In synchronous training that is exact.
    audit: bool = option(
        SWITCH,
        default=True,
        flag="--audit/--no-audit",
        help="Compute some micro-batches twice, to find results that depend on more than weights, "
        "seed and samples.",
    )
    # Of training files, and of own loops with a step function; on CPUs.
    capture: bool = option(
        SWITCH,
        default=False,
        help="Record the calls of one forward and backward pass, and replay them for all micro-batches of "
        "a step: the same weights in less time. model, loss and forward must have no other effects. In "
        "your own loop: @job.step_function.",
    )
    # Of a command alone.
    restart: bool = option(
        SWITCH,
        unset=False,
        flag="--restart/--no-restart",
        help="Run a command unchanged, with torchrun's variables, and restart it at each change of its "
        "workers; it continues from its own checkpoints. [default: unless its code calls brim.join]",
    )
    per: str = option(
        choice(PER_WORKER, PER_NODE),
        default=PER_WORKER,
        help="At the restart level: start the command once for each worker, or once on each node, "
        "where it starts a process for each worker itself, as torchrun does.",
    )
    grace: float = option(
        DURATION,
        default="20s",
        help="At the restart level: give the command this long from SIGTERM to SIGKILL, to write a "
        "checkpoint.",
    )
    progress: str = option(
        _PATTERN,
        default="",
        help="At the restart level: read the progress in what the command prints, by a regular "
        "expression with the groups step and, where it is printed, total: 'step (?P<step>[0-9]+)'.",
    )
    # Over all parameters.
    clip_norm: float | None = option(
        NUMBER,
        unset=None,
        help="Clip the gradient to this 2-norm. [default: no clipping]",
        decides=True,
    )
    on_nan: str = option(
        choice("warn", "skip", "stop"),
        default="warn",
        help="Warn and train on, skip the update, or stop the run when a loss is not a number.",
    )
    threads: int = option(
        whole(minimum=1), default=1, help="Use this many torch threads per worker.", decides=True
    )
    # Shared out among the workers of a host; 0 reads in the step.
    loaders: int | None = option(
        whole(minimum=0),
        unset=None,
        help="Read data in this many processes per host, beside the step; 0: within the step. "
        "[default: num_workers of a DataLoader, else 0]",
    )
    checkpoint_every: Interval = option(
        _INTERVAL,
        default=str(EACH_EPOCH),
        help="Write a checkpoint every so many steps (50) or so often (30s); 0: after each epoch, "
        "and every 5 minutes.",
    )
    # A path from the root or a URL; empty for the run's directory.
    checkpoints: str = option(
        PLACE,
        default="",
        help="Write checkpoints to a path, or to a URL such as s3://bucket/run. [default: in the "
        "run's directory]",
    )
    # A path from the root or a URL, below which each run has a place of its name.
    runs: str = option(
        PLACE,
        default="",
        help="Keep a copy of the run's records and logs, and its checkpoints, in a directory of "
        "its name below a path, or a URL such as s3://bucket/runs, while it trains. [default: "
        "only in the run's directory]",
    )
    keep: int = option(
        whole(minimum=1), default=2, help="Keep this many of the newest checkpoints."
    )
    keep_best: Best | None = option(
        _BEST,
        unset=None,
        help="Also keep the checkpoint with the best metric: auc, or log_loss:min if lower is "
        "better.",
    )
    heartbeat_timeout: float = option(
        DURATION,
        default="3s",
        help="Replace a worker that is stopped and has been silent for this long: 500ms, 3s, 1m.",
    )
    hang_timeout: float | None = option(
        DURATION_OR_NEVER,
        default="30m",
        help="Kill a worker that makes no progress for this long; none: never.",
    )
    memory: int | None = option(
        size(hint="4GiB", allows_none=True),
        default="none",
        help="Limit the memory of a worker and the processes that it starts: 4GiB, 500MiB. A "
        "worker that has more is replaced.",
    )
    # The oldest lines of the longest logs go first.
    log_limit: int = option(
        size(minimum=_LEAST_LOG_LIMIT, hint="256MiB"),
        default=f"{LOG_LIMIT >> 20}MiB",
        help="Keep this much of what the processes print on each host. The oldest lines of the "
        "longest logs go first.",
    )
    spares: int = option(
        whole(minimum=0, hint="0 keeps none"),
        default=1,
        help="Keep this many warm workers ready to replace lost ones.",
        scheduled=False,
    )
    start_method: str = option(
        choice("auto", "fork", "spawn"),
        default="auto",
        help="Fork workers from a process that has loaded everything, or start each from scratch "
        "(spawn); auto: fork if possible.",
    )
    transport: str = option(
        choice("auto", "distributed"),
        default="auto",
        help="Exchange gradients by shared memory and TCP (auto), or by torch.distributed: NCCL "
        "or gloo, which encrypt nothing and listen on any port.",
    )
    device: str = option(
        choice("auto", "cpu", "cuda"),
        default="auto",
        help="Compute on this device; auto: cuda if torch can use it, else cpu.",
    )
    embeddings: str = option(
        choice("auto", "dense"),
        default="auto",
        help="Train large embeddings by the rows in use where that does not change the result "
        "(auto), or as a whole (dense).",
    )
    delay: int = option(
        whole(minimum=0, metavar="STEPS", hint="0 changes embeddings in the step itself"),
        default=0,
        help="Change embeddings that are trained by rows this many steps late. The result depends "
        "on this number, not on the workers. It costs quality.",
        decides=True,
    )
    # `exact` is false then.
    asynchronous: int | None = option(
        whole(minimum=0, metavar="K", hint="--async 4"),
        unset=None,
        flag="--async",
        help="Let each worker apply its batches by itself, at most K ahead of the slowest. This "
        "is quicker if workers are uneven, but the result depends on timing. [default: all "
        "workers compute each step together]",
        decides=True,
        scheduled=False,
    )
    agents: int = option(
        whole(minimum=1),
        default=1,
        help="Wait for this many hosts before the first step.",
        scheduled=False,
    )
    workers_here: int | None = option(
        whole(minimum=0, metavar="N", hint="0 leaves all workers to other hosts"),
        unset=None,
        help="Run at most this many workers on this host. With 0 it keeps the master and the records, "
        "and other hosts compute. [default: as many as are wanted]",
        scheduled=False,
    )
    insecure: bool = option(
        SWITCH,
        default=False,
        help="Send state and gradients between workers of different hosts without encryption: on a "
        "private network, or through an encrypted tunnel.",
        scheduled=False,
    )

    def __post_init__(self) -> None:
        if self.micro_batches == 0:
            object.__setattr__(self, "micro_batches", default_micro_batches(self.workers))
        if not self.command:
            object.__setattr__(self, "epochs", self.epochs or 1)
        if self.asynchronous is not None or self.restart:
            object.__setattr__(self, "exact", False)
        self.validate()

    @property
    def is_restarted(self) -> bool:
        """Return whether all processes of its command start again at each change of its workers."""
        return self.restart and self.service is None

    def validate(self) -> None:
        """Check every field that can be wrong by itself or beside another.

        Raises:
            SpecError: naming the option, its value, its need and the remedy.
        """
        self._check_source()
        self._check_bundle()
        self._check_env()
        for name, declared in OPTIONS.items():
            declared.check(getattr(self, name))
        self._check_batches()
        self._check_asynchronous()
        self._check_restart()
        self._check_terminal()
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

    def _check_bundle(self) -> None:
        if self.bundle and not (len(self.bundle) == 64 and set(self.bundle) <= _HEXADECIMAL):
            raise SpecError("bundle", got=repr(self.bundle), need="the sha256 of a bundle")

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

    def _check_servers(self) -> None:
        if not self.servers:
            return
        for name, in_the_way in (
            ("--no-exact", not self.exact),
            ("--transport distributed", self.transport == "distributed"),
            ("--embeddings dense", self.embeddings == "dense"),
        ):
            if in_the_way:
                raise SpecError(
                    "--ps",
                    got=f"{self.servers} beside {name}",
                    need="embeddings that are trained by rows, in memory that servers share with "
                    "workers",
                    hint=f"leave out {name}, or --ps",
                )
        if self.inference is not None:
            raise SpecError(
                "--ps", got=counted(self.servers, "server"), need="a job that trains", hint="--ps 0"
            )

    def _check_asynchronous(self) -> None:
        if self.asynchronous is None:
            return
        for name, actual, need in (
            ("--transport distributed", self.transport == "distributed", "shared memory"),
            ("--agents", self.agents > 1, "one host"),
            ("--ps", self.servers > 0, "workers alone"),
            ("--delay", self.delay > 0, "rows that change at once"),
        ):
            if actual:
                raise SpecError(
                    "--async",
                    got=f"it beside {name}",
                    need=f"{need}: asynchronous workers share the network in the memory of one "
                    "host",
                    hint=f"leave out {name.split()[0]}, or --async",
                )

    def _check_restart(self) -> None:
        """Refuse what only a loop of brim's own can do."""
        if self.service is not None and not (self.restart and self.command):
            raise SpecError("service", got="one without a command", need="a command that serves")
        if not self.restart:
            return
        if self.file:
            raise SpecError(
                "--restart",
                got="it beside a training file",
                need="a command: brim starts it and does not look inside",
                hint="leave out --restart",
            )
        for name, is_given, need in (
            ("--set", bool(self.parameters), "arguments of the command"),
            ("--epochs", self.epochs > 0, "arguments of the command"),
            ("--global-batch-size", self.global_batch_size > 0, "arguments of the command"),
            ("--ps", self.servers > 0, "a loop that calls brim.join"),
            ("--async", self.asynchronous is not None, "a loop that calls brim.join"),
            ("--capture", self.capture, "a loop that calls brim.join"),
            (
                "--transport distributed",
                self.transport == "distributed",
                "a loop that calls brim.join",
            ),
            ("--keep-best", self.keep_best is not None, "a loop that calls brim.join"),
            ("--faults", bool(self.faults), "brim resize, brim suspend, or kill"),
            (
                "--checkpoints URL",
                "://" in self.checkpoints,
                "a directory, where the command writes",
            ),
            ("--runs URL", "://" in self.runs, "a directory, where the command writes"),
        ):
            if is_given:
                raise SpecError(
                    name,
                    got="it for a command at the restart level",
                    need=f"{need}: brim starts the command and does not look inside",
                    hint=f"leave out {name.split()[0]}",
                )
        fewest, most = self.workers.minimum, self.workers.maximum
        if most % fewest and self.is_restarted:
            divisor = max(size for size in range(1, fewest) if most % size == 0)
            raise SpecError(
                "--workers",
                got=repr(str(self.workers)),
                need=f"a minimum that divides {most}: other sizes do not keep the global batch",
                hint=f"--workers {divisor}:{most}",
            )

    def _check_terminal(self) -> None:
        """Refuse what one process at a terminal cannot have."""
        if not self.tty:
            return
        for name, is_given, need in (
            ("--no-restart", not self.restart, "a command that is started as it is"),
            (f"--workers {self.workers}", self.workers.maximum > 1, "one process at the terminal"),
            ("--per node", self.per == PER_NODE, "one process at the terminal"),
            ("--progress", bool(self.progress), "output in a log: this goes to the terminal alone"),
        ):
            if is_given:
                raise SpecError(
                    "--tty",
                    got=f"it beside {name}",
                    need=need,
                    hint=f"leave out {name.split()[0]}, or --tty",
                )

    def _check_faults(self) -> None:
        total = self.workers.maximum
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
            total += fault.count * (-1 if fault.kind is FaultKind.REMOVE else 1)
            total -= fault.kind is FaultKind.TERM
            if total < 1 and fault.kind is FaultKind.REMOVE:
                raise SpecError(
                    "--faults",
                    got=f"{text!r}, which leaves {counted(total, 'worker')}",
                    need="at least 1 worker that stays",
                    hint="remove fewer; brim suspend ends a run",
                )
            self._check_ranks(fault, total)

    def _check_ranks(self, fault: Fault, total: int) -> None:
        if not self.exact:
            return
        if total > self.micro_batches:
            raise SpecError(
                "--faults",
                got=f"{describe(fault)!r}, which makes {counted(total, 'worker')}",
                need=f"at most {counted(self.micro_batches, 'worker')}, one for each micro-batch of a "
                "step",
                hint=f"--micro-batches {total}, or add fewer",
            )
        if fault.rank >= self.micro_batches + self.servers:
            total_name = (
                f"the most workers{' and servers' if self.servers else ''} this job can have"
            )
            raise SpecError(
                "--faults",
                got=repr(describe(fault)),
                need=f"a rank below {self.micro_batches + self.servers}, {total_name}",
                hint="ranks count from 0",
            )


# By field; the order is that of help texts.
OPTIONS: Mapping[str, Option] = options_of(JobSpec)
