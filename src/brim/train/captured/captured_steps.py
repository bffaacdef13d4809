"""The steps of a worker that a program computes in place of eager passes: their bits are the same.

The passes are noted in a child process, once for each size of micro-batch, on one worker of each
host. Programs are compared with eager passes before any counts, and now and then afterwards: in
such a step the eager result counts. A worker that finds a difference, or no gain, goes on eagerly.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from brim.coordination.job.reduction import Block
from brim.data.feed import Read
from brim.domain.batch import Span
from brim.domain.seeds import mix
from brim.errors import UserCodeError
from brim.host.clock import monotonic
from brim.host.process import be_called, die_with_parent
from brim.train.captured.program import MicroInputs, Program
from brim.train.captured.recipe import NotCapturable, Recipe, leaves_of, load, no_recipe
from brim.train.exchange.contribution import Contributions

Pass = Callable[[Any], Tensor]
Contribution = list[Tensor]

FOLDER = "captured"  # of a run's directory
_COMPARED = 3  # steps before a program counts
_LONGEST_TRUST = 1000  # steps between two comparisons
_LOOKS = 0.2  # seconds between two looks for a recipe
_PATIENCE = 120.0  # seconds for a recipe
_NICE = 19


class CapturedSteps:
    """Programs for the steps of one worker.

    Args:
        model: the network.
        contributions: of the network to a step.
        one_pass: the loss of a micro-batch's samples.
        key: of the job: recipes of another are not read.
        folder: of this host's recipes.
        seed: of the job.
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
    ) -> None:
        self._model, self._contributions, self._pass = model, contributions, one_pass
        self._key = xxhash.xxh3_64_hexdigest(key + torch.__version__.encode())
        self._folder, self._seed = folder, seed
        self._recipes: dict[int, Recipe] = {}  # by samples of a micro-batch
        self._programs: dict[tuple[tuple[int, ...], tuple[Block, ...]], Program] = {}
        self._gradients: dict[tuple[float, int], Tensor] = {}
        self._weights: dict[float, Tensor] = {}
        ids = {id(parameter) for parameter in contributions.parameters}
        self._frozen = [p for p in model.parameters() if id(p) not in ids]
        self._child = 0
        self._next_look = 0.0
        self._missed_since: dict[int, float] = {}
        self._compared = self._replayed = 0
        self._next_comparison = self._compared_at = 0
        self._eager_seconds = self._own_seconds = math.inf
        self.refused = ""

    def program(
        self, reads: Sequence[Read], blocks: Sequence[Block], parts: int, *, may_trace: bool
    ) -> Program | None:
        """Return the program of a step, or None where the step is to be made eagerly.

        Args:
            reads: the worker's micro-batches.
            blocks: of them.
            parts: micro-batches of a step.
            may_trace: whether this worker is the one of its host that notes passes.
        """
        if self.refused:
            return None
        sizes = tuple(len(read.request.span) for read in reads)
        key = sizes, tuple(blocks)
        if key in self._programs:
            return self._programs[key]
        missing = [read for read in reads if len(read.request.span) not in self._recipes]
        if missing:
            self._look_for(missing[0], may_trace=may_trace)
            return None
        counted = len(self._contributions.buffers) - len(self._contributions.averaged)
        try:
            program = Program(
                [self._recipes[size] for size in sizes],
                blocks,
                parts=parts,
                shared=len(self._network()),
                counted=counted,
            )
        except NotCapturable as reason:
            self._refuse(str(reason))
            return None
        self._programs[key] = program
        self._compared, self._own_seconds, self._eager_seconds = 0, math.inf, math.inf
        return program

    # Recipes --------------------------------------------------------------------------------------

    def _path(self, size: int) -> Path:
        return self._folder / f"{self._key}-{size}.pt"

    def _look_for(self, read: Read, *, may_trace: bool) -> None:
        """Look for the recipe of a micro-batch, now and then; have it written where nobody does.

        That takes a few seconds, beside the steps. It is begun once in a run: it may be what ends a
        worker that has too little memory.
        """
        now, size = monotonic(), len(read.request.span)
        if now < self._next_look:
            return
        self._next_look = now + _LOOKS
        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = 0
        if self._path(size).exists():
            self._take(size)
            return
        first_look = self._missed_since.setdefault(size, now)
        if may_trace and not self._child and self._is_first(size):
            self._have_noted(read.sample, size)
        elif now - first_look > _PATIENCE:
            if self._child:
                os.kill(self._child, signal.SIGKILL)
            self._refuse(f"nobody has noted its calls in {_PATIENCE:.0f} s")

    def _take(self, size: int) -> None:
        try:
            recipe = self._recipes[size] = load(self._path(size))
        except Exception as error:  # noqa: BLE001 - a torn file may raise anything
            self._refuse(f"its calls cannot be read: {error}")
            return
        if recipe.refused:
            self._refuse(recipe.refused)

    def _is_first(self, size: int) -> bool:
        """Return whether no worker of this run has begun to note this pass."""
        try:
            self._folder.mkdir(exist_ok=True)
            self._path(size).with_suffix(".begun").touch(exist_ok=False)
        except OSError:
            return False
        return True

    def _have_noted(self, samples: Any, size: int) -> None:
        """Have a child note the pass of a micro-batch."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            self._child = os.fork()
        except OSError as error:
            self._refuse(f"there can be no process to note its calls: {error.strerror}")
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
            from brim.train.captured.tracing import trace

            try:
                recipe = trace(self._model, self._contributions, self._pass, samples)
            except Exception as reason:  # noqa: BLE001 - whatever the user's code raises here
                recipe = no_recipe(str(reason))
            recipe.save(self._path(size))
            status = 0
        finally:
            os._exit(status)

    # Steps ----------------------------------------------------------------------------------------

    def is_to_be_compared(self, *, begins_epoch: bool) -> bool:
        """Return whether the coming step is made eagerly as well."""
        return begins_epoch or self._compared < _COMPARED or self._replayed >= self._next_comparison

    def replay(
        self, program: Program, reads: Sequence[Read], span: Span, batch: int
    ) -> tuple[list[Contribution], Tensor] | None:
        """Compute a worker's part of a step; None where the samples are of another form.

        Args:
            program: of the step.
            reads: the worker's micro-batches.
            span: of the step.
            batch: number of the step, for random numbers.
        """
        started = monotonic()
        try:
            inputs = [self._inputs_of(read, span, batch) for read in reads]
            sums, losses = program(self._network(), inputs)
        except NotCapturable:
            return None
        except RuntimeError as error:
            self._refuse(str(error).strip().splitlines()[-1])
            return None
        self._own_seconds = min(self._own_seconds, monotonic() - started)
        return sums, losses

    def _inputs_of(self, read: Read, span: Span, batch: int) -> MicroInputs:
        recipe = self._recipes[len(read.request.span)]
        leaves, form = leaves_of(read.sample)
        if form != recipe.samples:
            raise NotCapturable("samples of another form")
        weight = len(read.request.span) / len(span)
        draws: list[Tensor] = []
        if recipe.draws:
            torch.default_generator.manual_seed(mix(self._seed, batch, read.request.micro))
            draws = [draw.draw() for draw in recipe.draws]
        return MicroInputs(self._gradient(weight, recipe), self._weight(weight), leaves, draws)

    def _gradient(self, weight: float, recipe: Recipe) -> Tensor:
        dtype, shape = recipe.loss
        key = weight, id(recipe)
        if key not in self._gradients:
            self._gradients[key] = torch.full(shape, weight, dtype=dtype)
        return self._gradients[key]

    def _weight(self, weight: float) -> Tensor:
        if weight not in self._weights:
            self._weights[weight] = torch.full((1,), weight, dtype=torch.float64)
        return self._weights[weight]

    def _network(self) -> list[Tensor]:
        starts = [buffer.start for buffer in self._contributions.buffers]
        return [*self._contributions.parameters, *self._frozen, *starts]

    def contributions_of(
        self, sums: Sequence[Contribution], *, stop: bool, due: bool
    ) -> list[Contribution]:
        """Return sums as contributions to a step, with the words of this worker."""
        used = next(iter(self._recipes.values())).used
        return [self._contributions.of_program(part, used, stop=stop, due=due) for part in sums]

    def took(self) -> None:
        """Count a step that a program has computed."""
        self._replayed += 1

    def compare(
        self, eager: Sequence[Contribution], own: Sequence[Contribution], seconds: float
    ) -> None:
        """Compare a program's sums with those of eager passes, which took so many seconds.

        Raises:
            UserCodeError: they differ, and programs have counted before.
        """
        for left, right in zip(eager, own, strict=True):
            place = next(
                (n for n, (a, b) in enumerate(zip(left, right, strict=True)) if not _same(a, b)),
                None,
            )
            if place is not None:
                self._found_apart(self._contributions.name_of(place))
                return
        self._compared += 1
        self._compared_at = self._replayed
        self._next_comparison = self._replayed + min(1 << self._compared, _LONGEST_TRUST)
        self._eager_seconds = min(self._eager_seconds, seconds)
        if self._compared != _COMPARED:
            return
        speeds = (
            f"a step's passes take {1e3 * self._own_seconds:.1f} ms replayed, and "
            f"{1e3 * self._eager_seconds:.1f} ms eagerly"
        )
        if self._own_seconds > self._eager_seconds:
            self._refuse(speeds)
        else:
            _tell(f"steps are replayed: {speeds}")

    def _found_apart(self, name: str) -> None:
        """Go on eagerly where no program has counted yet, else end the run.

        Raises:
            UserCodeError: steps that differ from eager ones may have counted.
        """
        if not self._replayed:
            self._refuse(f"{name} differs from what eager passes give")
            return
        raise UserCodeError(
            f"--capture: {name} differs from what eager passes give, which it did not "
            f"{self._replayed - self._compared_at} replayed steps ago\n"
            "  model, loss or forward depends on something that changes while training: a counter, "
            "a schedule, a variable.\n"
            "  hint: train without --capture"
        )

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        tell_of_eager_steps(reason)


def tell_of_eager_steps(reason: str) -> None:
    """Say in the worker's log why no program computes its steps."""
    _tell(f"steps stay eager: {reason}")


def _tell(text: str) -> None:
    print(f"brim: --capture: {text}", file=sys.stderr)  # noqa: T201


def _same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same bits, but for those of NaN."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if not left.dtype.is_floating_point:
        return torch.equal(left, right)
    unlike = (left != right) & ~(left.isnan() & right.isnan())
    return not bool(unlike.any()) and torch.equal(left.signbit(), right.signbit())
