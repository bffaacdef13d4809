"""The steps of a worker that a program computes in place of eager passes: their bits are the same.

The passes are noted in a child process, once for each size of micro-batch, on one worker of each
host. Programs are compared with eager passes before any counts, and now and then afterwards: in
such a step the eager result counts. A worker that finds a difference, or no gain, goes on eagerly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from torch import Tensor

from brim.coordination.job.reduction import Block
from brim.data.feed import Read
from brim.domain.batch import Span
from brim.domain.seeds import StepSeeds
from brim.embeddings.rows import GradientRows
from brim.errors import UserCodeError
from brim.host.clock import monotonic
from brim.host.process import be_called, die_with_parent
from brim.storage.files import is_locked, lock
from brim.train.captured.lookups import Lookups
from brim.train.captured.program import MicroInputs, StepProgram
from brim.train.captured.recipe import (
    NotCapturable,
    PassRecipe,
    in_one_line,
    leaves_of,
    load,
    no_recipe,
)
from brim.train.captured.step_function import StepFunction, gave_another_loss
from brim.train.captured.trust import Trust
from brim.train.exchange.contribution import Contributions

Pass = Callable[[Any], Tensor]
Contribution = list[Tensor]

FOLDER = "captured"  # of a run's directory
_LOOKS = 0.2  # seconds between two looks for a recipe
_PATIENCE = 300.0  # seconds for the noting of a pass
_MOST_TRIES = 2  # processes that note a pass, of which the last was killed
_NICE = 5  # of the child: at 19 it would get nothing where all processors train


class ReplayedPart(msgspec.Struct, frozen=True):
    """A worker's part of a step, computed by a program.

    Attributes:
        program: that did so.
        sums: of each of the worker's blocks, as contributions to the step.
        losses: of each micro-batch.
        rows: of each micro-batch, the gradient of each table.
        seconds: that it took.
        ended: when that was.
    """

    program: StepProgram
    sums: list[Contribution]
    losses: Tensor
    rows: list[list[GradientRows]]
    seconds: float
    ended: float


class CapturedSteps:
    """Programs for the steps of one worker.

    Args:
        model: the network.
        contributions: of the network to a step.
        one_pass: the loss of a micro-batch's samples.
        key: of the job: recipes of another are not read.
        folder: of this host's recipes.
        seed: of the job.
        function: of an own loop; None in a training file.
        lookups: in embeddings that are trained by rows.

    Attributes:
        refused: why steps are eager; empty where programs may compute them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        contributions: Contributions,
        one_pass: Pass,
        *,
        key: bytes,
        folder: Path,
        seed: int,
        lookups: Lookups,
        function: StepFunction | None = None,
    ) -> None:
        self.function, self._lookups = function, lookups
        self._model, self._contributions, self._pass = model, contributions, one_pass
        self._key = xxhash.xxh3_64_hexdigest(key + torch.__version__.encode())
        self._folder, self._seeds = folder, StepSeeds(seed)
        self._recipes: dict[int, PassRecipe] = {}  # by samples of a micro-batch
        # By samples of each micro-batch, and blocks; None where eager passes take less time.
        self._programs: dict[tuple[tuple[int, ...], tuple[Block, ...]], StepProgram | None] = {}
        self._weights: dict[tuple[float, int], tuple[Tensor, Tensor, Tensor]] = {}
        ids = {id(parameter) for parameter in contributions.parameters}
        frozen = [p for p in model.parameters() if id(p) not in ids]
        starts = [buffer.start for buffer in contributions.buffers]
        self._network = [*contributions.parameters, *frozen, *starts]
        self._child, self._lock = 0, -1  # the process that notes a pass, and its right to do so
        self._next_look = 0.0
        self._missed_since: dict[int, float] = {}
        self.refused = ""

    def program(
        self, reads: Sequence[Read], blocks: Sequence[Block], parts: int, *, may_trace: bool
    ) -> StepProgram | None:
        """Return the program of a step, or None where the step is to be made eagerly.

        Args:
            reads: the worker's micro-batches.
            blocks: of them.
            parts: micro-batches of a step.
            may_trace: whether this worker is the one of its host that notes passes.
        """
        if self.refused:
            return None
        spans = [read.request.span for read in reads]
        sizes = tuple([span.stop - span.start for span in spans])
        key = sizes, tuple(blocks)
        if key in self._programs:
            return self._programs[key]
        missing = [read for read in reads if len(read.request.span) not in self._recipes]
        if missing:
            self._look_for(missing[0], may_trace=may_trace)
            return None
        counted = len(self._contributions.buffers) - len(self._contributions.averaged)
        try:
            program = StepProgram(
                [self._recipes[size] for size in sizes],
                blocks,
                parts=parts,
                shared=len(self._network),
                counted=counted,
            )
        except NotCapturable as reason:
            self.refuse(str(reason))
            return None
        self._programs[key] = program
        return program

    # Recipes --------------------------------------------------------------------------------------

    def _path(self, size: int) -> Path:
        return self._folder / f"{self._key}-{size}.pt"

    def _look_for(self, read: Read, *, may_trace: bool) -> None:
        """Look for the recipe of a micro-batch, now and then; have it written where nobody does.

        That takes a few seconds, beside the steps. Where its process was killed it is begun once
        more, and then no more: it may be what ends a worker that has too little memory.
        """
        now, size = monotonic(), len(read.request.span)
        if now < self._next_look:
            return
        self._next_look = now + _LOOKS
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._let_go()
        if self._path(size).exists():
            self._take(size)
        elif may_trace:
            self._see_to(read.sample, size, now)

    def _see_to(self, samples: Any, size: int, now: float) -> None:
        """Have a pass noted, or say that it cannot be: the other workers wait for a file."""
        is_late = now - self._missed_since.setdefault(size, now) >= _PATIENCE
        if is_late:
            if self._child:
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
                self._let_go()
            self._give_up(size, f"its calls were not noted in {_PATIENCE:.0f} s")
        elif not self._child:
            self._try(samples, size)

    def _try(self, samples: Any, size: int) -> None:
        """Have a pass noted, unless a worker that was here before has a process at it."""
        path = self._path(size).with_suffix(".tries")
        try:
            self._folder.mkdir(exist_ok=True)
            descriptor = None if is_locked(path) else lock(path)
        except OSError as error:
            self._give_up(size, f"its calls cannot be kept: {error.strerror}")
            return
        if descriptor is None:
            return
        self._lock = descriptor
        tries = os.fstat(descriptor).st_size
        if tries >= _MOST_TRIES:
            self._let_go()
            self._give_up(size, f"its calls were not noted: {_MOST_TRIES} processes died of it")
            return
        os.pwrite(descriptor, b"x", tries)
        self._have_noted(samples, size)

    def _let_go(self) -> None:
        """Leave the noting to others, if it is not done."""
        self._child = 0
        os.close(self._lock)

    def _give_up(self, size: int, reason: str) -> None:
        with contextlib.suppress(OSError):
            no_recipe(reason).save(self._path(size))
        self.refuse(reason)

    def _take(self, size: int) -> None:
        try:
            recipe = self._recipes[size] = load(self._path(size))
        except Exception as error:  # noqa: BLE001 - a torn file may raise anything
            self.refuse(f"its calls cannot be read: {in_one_line(error)}")
            return
        if recipe.refused:
            self.refuse(recipe.refused)

    def _have_noted(self, samples: Any, size: int) -> None:
        """Have a child note the pass of a micro-batch."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            self._child = os.fork()
        except OSError as error:
            self._let_go()
            self._give_up(size, f"there can be no process to note its calls: {error.strerror}")
            return
        if not self._child:
            self._be_child(parent, samples, size)

    def _be_child(self, parent: int, samples: Any, size: int) -> None:
        """Note a pass, write its recipe, and end; never return."""
        status = 1
        try:
            die_with_parent(parent)
            be_called("brim-capture")
            os.closerange(3, 1 << 16)  # the worker's: who waits for its end must see it
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.nice(_NICE)
            torch.set_num_threads(1)
            try:
                from brim.train.captured.tracing import trace

                recipe = trace(
                    self._model, self._contributions, self._pass, samples, self._lookups.modules
                )
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises here
                recipe = no_recipe(in_one_line(error))
            recipe.save(self._path(size))
            status = 0
        finally:
            os._exit(status)

    # Steps ----------------------------------------------------------------------------------------

    def replay(
        self,
        program: StepProgram,
        reads: Sequence[Read],
        span: Span,
        batch: int,
        *,
        stop: bool,
        due: bool,
    ) -> ReplayedPart | None:
        """Compute a worker's part of a step; None where the samples are of another form.

        Args:
            program: of the step.
            reads: the worker's micro-batches.
            span: of the step.
            batch: number of the step, for random numbers.
            stop, due: words to all workers, see `StepOutcome`.
        """
        started = monotonic()
        try:
            samples = len(span)
            inputs = [self._inputs_of(read, samples, batch) for read in reads]
            sums, gradients, losses = program(self._network, inputs)
        except NotCapturable:
            return None
        except RuntimeError as error:
            self.refuse(str(error).strip().splitlines()[-1])
            return None
        rows, by_rows = self._lookups.give_back([micro.rows for micro in inputs], gradients)
        contributions = [
            self._contributions.of_program(part, [*program.used, *by_rows], stop=stop, due=due)
            for part in sums
        ]
        now = monotonic()
        return ReplayedPart(program, contributions, losses, rows, now - started, now)

    def _inputs_of(self, read: Read, samples: int, batch: int) -> MicroInputs:
        size = read.request.span.stop - read.request.span.start
        recipe = self._recipes[size]
        leaves, form = leaves_of(read.sample)
        if form != recipe.samples:
            raise NotCapturable("samples of another form")
        draws: list[Tensor] = []
        if recipe.draws:
            torch.default_generator.manual_seed(self._seeds.seed(batch, read.request.micro))
            draws = [draw.draw() for draw in recipe.draws]
        rows = self._lookups.look_up(recipe.lookups, leaves) if recipe.lookups.modules else []
        return MicroInputs(self._weights_of(size / samples, recipe), leaves, rows, draws)

    def _weights_of(self, weight: float, recipe: PassRecipe) -> tuple[Tensor, Tensor, Tensor]:
        key = weight, id(recipe)
        if key not in self._weights:
            dtype, shape = recipe.loss
            gradient = torch.full(shape, weight, dtype=dtype)
            number = torch.full((), weight, dtype=torch.float64)
            self._weights[key] = gradient, number.reshape(1), number
        return self._weights[key]

    def check_loss(self, loss: object) -> None:
        """Check that the loop gives the loss of its step function: a program computes no other.

        Raises:
            UserCodeError: it does not, and replayed steps have counted.
        """
        if self.function is None or self.refused or self.function.gave(loss):
            return
        if any(program and program.trust.has_counted for program in self._programs.values()):
            raise gave_another_loss()
        self.refuse("job.step got another tensor than what the step function gave for the batch")

    def compare(
        self,
        replay: ReplayedPart,
        eager: Sequence[Contribution],
        rows: Sequence[Sequence[GradientRows]] = (),
    ) -> None:
        """Compare a program's sums with those of eager passes, which have just ended.

        Args:
            replay: the program's.
            eager: of each block.
            rows: of each micro-batch, the gradient of each table.

        Raises:
            UserCodeError: they differ, and the program has counted before.
        """
        seconds, trust = monotonic() - replay.ended, replay.program.trust
        for left, right in zip(eager, replay.sums, strict=True):
            for place, (a, b) in enumerate(zip(left, right, strict=True)):
                if not _same(a, b):
                    self._found_apart(self._contributions.name_of(place), trust)
                    return
        for micro, own_rows in zip(rows, replay.rows, strict=bool(rows)):
            if not all(map(_same_rows, micro, own_rows)):
                self._found_apart("the gradient of an embedding", trust)
                return
        trust.agreed(own=replay.seconds, eager=seconds)
        if not trust.is_earned_now:
            return
        speeds = (
            f"a step's passes take {1e3 * trust.own_seconds:.1f} ms replayed, and "
            f"{1e3 * trust.eager_seconds:.1f} ms eagerly"
        )
        if trust.is_slower:
            tell_of_eager_steps(speeds)
            self._programs = {
                key: None if program is replay.program else program
                for key, program in self._programs.items()
            }
        else:
            tell_of_replayed_steps(speeds)

    def _found_apart(self, name: str, trust: Trust) -> None:
        """Go on eagerly where the program has not counted yet, else end the run.

        Raises:
            UserCodeError: steps that differ from eager ones may have counted.
        """
        if not trust.has_counted:
            self.refuse(f"{name} differs from what eager passes give")
            return
        raise UserCodeError(
            f"--capture: {name} differs from what eager passes give, which it did not "
            f"{trust.unseen} replayed steps ago\n"
            "  model, loss or forward depends on something that changes while training: a counter, "
            "a schedule, a variable.\n"
            "  hint: train without --capture"
        )

    def refuse(self, reason: str) -> None:
        """Make all further steps eagerly, and say why."""
        self.refused = reason
        tell_of_eager_steps(reason)


def tell_of_eager_steps(reason: str) -> None:
    """Say in the worker's log why no program computes its steps."""
    _tell(f"steps stay eager: {reason}")


def tell_of_replayed_steps(speeds: str) -> None:
    """Say in the worker's log that programs compute its steps; `brim chaos` looks for it."""
    _tell(f"steps are replayed: {speeds}")


def _tell(text: str) -> None:
    print(f"brim: --capture: {text}", file=sys.stderr)  # noqa: T201


def _same_rows(left: GradientRows, right: GradientRows) -> bool:
    return torch.equal(left.ids, right.ids) and _same(left.values, right.values)


def _same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same bits, but for those of NaN."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if not left.dtype.is_floating_point:
        return torch.equal(left, right)
    unlike = (left != right) & ~(left.isnan() & right.isnan())
    return not bool(unlike.any()) and torch.equal(left.signbit(), right.signbit())
