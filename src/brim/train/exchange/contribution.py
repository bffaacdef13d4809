"""The contribution of one micro-batch to a step, taken from the network and given back to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from brim.errors import SpecError, UserCodeError
from brim.tensors.memory import READY_BYTES
from brim.tensors.raw import in_c_order, memory_of

_STOP, _DUE = 0, 1  # words that any worker may say to all of them, with a step
_WORDS = 2
_UNCHANGED = (
    "parameters that only the step's end changes: workers have different numbers of micro-batches"
)
TO_BOUND = (
    "a norm or a clamp that forward applies to weights each time has its place in "
    "optimizer.register_step_post_hook(...)"
)


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step, the same on every worker.

    Args:
        losses: of each optimizer, the mean over the samples of the step.
        used: of each trainable parameter, whether any micro-batch gave it a gradient; those by rows
            come last.
        stop: a worker asks that this be the last step.
        due: the first worker asks for a checkpoint behind this step.
    """

    losses: tuple[float, ...]
    used: tuple[bool, ...]
    stop: bool
    due: bool


class _Buffer:
    """A buffer of the network: the tensor that it was at first, wherever modules hold it.

    A module may assign another tensor to its buffer. The modules' tensors at the end of a micro-
    batch count.
    """

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.home = name, tensor
        self.start = tensor.detach().clone()
        # Minima and maxima start from infinity, and masks are made of it: there is no change from
        # there that adds up.
        self.has_infinity = _is_averaged(tensor) and not bool(tensor.isfinite().all())
        self.places: list[tuple[dict[str, Tensor | None], str]] = []

    def now(self) -> Tensor:
        """Return the network's tensor at the buffer's place.

        Raises:
            SpecError: something of another shape or type.
        """
        for holder, key in self.places:
            tensor = holder[key] if key in holder else None  # noqa: SIM401 - scripted ones have no get
            if tensor is not self.home or tensor.shape != self.start.shape:
                return self._checked(tensor)
        return self.home

    def _checked(self, tensor: Tensor | None) -> Tensor:
        if (
            tensor is not None
            and tensor.shape == self.start.shape
            and tensor.dtype == self.start.dtype
        ):
            return tensor.detach()
        raise SpecError(
            f"buffer {self.name!r}",
            got="None" if tensor is None else f"{tensor.dtype} of shape {list(tensor.shape)}",
            need=f"{self.start.dtype} of shape {list(self.start.shape)}, as at the start: its "
            "memory is laid out once",
            hint="allocate the buffer with its largest shape in __init__, and fill it in place",
        )

    def return_home(self) -> None:
        self.home.grad = None  # of one that requires a gradient: nothing trains it
        if self.home.shape != self.start.shape:
            self._checked(self.home)
        for holder, key in self.places:
            holder[key] = self.home

    def changed_by(self, weight: float) -> Tensor:
        """Return the part of a micro-batch of this weight in the buffer's sum.

        From the sum, `put_back` makes the buffer of the next step.

        That is the weighted change. Where the buffer is not finite it is the weighted value, and
        NaN where the micro-batch left it alone: one such micro-batch, and it stays as it is.
        """
        now = self.now().detach()
        change = (now - self.start) * weight
        if not self.has_infinity:
            return change
        untouched = torch.full_like(now, torch.nan)
        value = torch.where(now == self.start, untouched, now * weight)
        return torch.where(self.start.isfinite(), change, value)

    def sum_of(self, total: Tensor) -> Tensor:
        """The buffer of the next step, from the sum over all micro-batches."""
        moved = self.start + total
        if not self.has_infinity:
            return moved
        stayed = torch.where(total.isnan(), self.start, total)
        return torch.where(self.start.isfinite(), moved, stayed)


def _buffers_of(model: nn.Module) -> list[_Buffer]:
    found: dict[int, _Buffer] = {}
    for prefix, module in model.named_modules():
        for key, tensor in module._buffers.items():
            if tensor is None or not tensor.numel():
                continue
            name = f"{prefix}.{key}" if prefix else key
            if tensor.layout is not torch.strided:
                raise SpecError(
                    f"buffer {name!r}",
                    got="a sparse tensor",
                    need="a dense one: buffers travel to newcomers and into checkpoints byte by "
                    "byte",
                    hint="keep constants in a plain attribute, or call .to_dense()",
                )
            if (
                not tensor.is_contiguous() and 0 in tensor.stride()
            ):  # expanded: it cannot be written to
                tensor = module._buffers[key] = tensor.contiguous()
            buffer = found.setdefault(id(tensor), _Buffer(name, tensor))
            buffer.places.append((module._buffers, key))
    return list(found.values())


def _empty_buffers_of(
    model: nn.Module,
) -> list[tuple[dict[str, Tensor | None], str, Tensor | None]]:
    """Buffers that start with nothing in them, and that a forward pass may fill.

    A value left there has the shape of its samples, or is a cache.
    """
    return [
        (module._buffers, key, tensor)
        for module in model.modules()
        for key, tensor in module._buffers.items()
        if tensor is None or not tensor.numel()
    ]


class Contributions:
    """The view of a network as a list of tensors that are summed over the micro-batches of a step.

    The list holds the gradient of every parameter, what each floating-point buffer changed by
    (weighted as the samples are, so that constants stay what they are, to the bit), the loss of
    each optimizer, one mark per parameter for "was used" with the words that a worker says to all,
    and every whole-number buffer. Of whole numbers the largest is taken: all micro-batches start
    from the same ones.

    Args:
        model: the network; its parameters that require a gradient and all its buffers take part.
        losses: how many losses a micro-batch has, one for each optimizer.
        by_rows: names of parameters whose gradients are not in the list: see
            `brim.embeddings.embedding`.

    Attributes:
        like: tensors whose shapes and types those of the list have.
    """

    def __init__(self, model: nn.Module, *, losses: int = 1, by_rows: Sequence[str] = ()) -> None:
        for name, parameter in model.named_parameters():
            if is_lazy(parameter):
                raise SpecError(
                    f"parameter {name!r}",
                    got="an uninitialized parameter, as lazy modules have before their first batch",
                    need="parameters whose shapes are known: memory for gradients is laid out "
                    "before the first step",
                    hint="run one batch through the model after creating it, or give its layers "
                    "their sizes",
                )
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        dense = {name: p for name, p in trained.items() if name not in by_rows}
        self._names, self._parameters = list(dense), list(dense.values())
        self._all, self._all_names = (
            list(model.parameters()),
            [name for name, _ in model.named_parameters()],
        )
        self._versions: list[int] = []
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        if not trained:
            raise SpecError(
                "model()", got="no parameter that requires a gradient", need="at least one"
            )
        buffers = _buffers_of(model)
        self._empty = _empty_buffers_of(model)
        # Of parameters in the first step; tables may be larger than all else, and forward reads them.
        self._looked_at = {n: p for n, p in model.named_parameters() if n not in by_rows}
        self._scaled = {
            id(module.weight): module
            for module in model.modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        }
        self._fingerprints: list[bytes] | None = None
        self._is_first_step = True
        self._may_initialise = True
        self._averaged = [buffer for buffer in buffers if _is_averaged(buffer.home)]
        self._counted = [buffer for buffer in buffers if not _is_averaged(buffer.home)]
        self._homes, self._starts = _homes_and_starts([*self._averaged, *self._counted])
        device = next(iter(trained.values())).device
        self._no_marks = torch.zeros(len(trained) + _WORDS, dtype=torch.int64, device=device)
        self._all_marks = self._no_marks.clone()
        self._all_marks[:-_WORDS] = 1
        self._all_used = (True,) * len(trained)
        self._no_losses = torch.zeros(losses, dtype=torch.float64, device=device)
        self._weights: dict[float, Tensor] = {}  # micro-batches of a job have three sizes at most
        self._own_gradients: list[Tensor] = []
        self._buffers_seen: list[tuple[int, int]] = []
        self._are_small = sum(parameter.nbytes for parameter in self._parameters) <= READY_BYTES
        self._losses_at = len(self._parameters) + len(self._averaged)
        self._strides = [p.stride() for p in self._parameters]
        self.like = [
            *self._parameters,
            *(buffer.home for buffer in self._averaged),
            self._no_losses,
            self._no_marks,
            *(buffer.home for buffer in self._counted),
        ]
        self.begin()

    # Buffers --------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Return those whose gradients the list begins with."""
        return self._parameters

    @property
    def averaged(self) -> Sequence[_Buffer]:
        """Return the buffers of which the list has weighted changes."""
        return self._averaged

    @property
    def buffers(self) -> Sequence[_Buffer]:
        """Return all buffers, those of whole numbers last."""
        return [*self._averaged, *self._counted]

    def changes(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield each buffer's name, its values at the start of the step, and those of now."""
        for buffer in self.buffers:
            yield buffer.name, buffer.start, buffer.now().detach()

    def begin(self) -> None:
        """Remember the buffers as they are at the start of a step."""
        if not self._homes:
            return
        with torch.no_grad():
            for buffer in self._buffers():
                now = buffer.now()
                if now is not buffer.home:
                    buffer.home.copy_(now)
                    buffer.return_home()
            torch._foreach_copy_(self._starts, self._homes)

    def reset(self) -> None:
        """Put the buffers back to the start of the step: every micro-batch sees the same ones."""
        for holder, key, start in self._empty:
            holder[key] = start
        if not self._homes:
            return
        for buffer in self._buffers():
            buffer.return_home()
        with torch.no_grad():
            torch._foreach_copy_(self._homes, self._starts)

    def _buffers(self) -> Iterator[_Buffer]:
        yield from self._averaged
        yield from self._counted

    # Micro-batches --------------------------------------------------------------------------------

    def watch(self, *, is_first: bool = False, closely: bool = False) -> None:
        """Remember which parameters are which, at the start of a step: see `check_unchanged`.

        Args:
            is_first: of the job.
            closely: their values too, as in the first step of this worker.
        """
        self._versions = [parameter._version for parameter in self._all]
        self._fingerprints = None
        if self._is_first_step or closely:
            self._fingerprints = [*map(_fingerprint, self._looked_at.values())]
        self._may_initialise, self._is_first_step = is_first, False

    def overlook(self) -> None:
        """Take parameters as they are now: what was put back may hold the network's own, too."""
        self._versions = [parameter._version for parameter in self._all]

    def check_unchanged(self) -> str:
        """Check that no parameter changed since `watch`.

        Returns:
            The name of one that changed by `.data`, where this did not come of the job's first pass;
            a bound that forward keeps weights within may be the same on all workers.

        Raises:
            SpecError: the network itself, or the loop, did so with every micro-batch.
        """
        versions = [parameter._version for parameter in self._all]
        if versions != self._versions:
            index = next(i for i, version in enumerate(versions) if version != self._versions[i])
            parameter, name = self._all[index], self._all_names[index]
            if id(parameter) in self._scaled:
                raise _scales(name, self._scaled[id(parameter)])
            raise SpecError(
                f"parameter {name!r}",
                got="a value changed in forward"
                + " or by hand, within a step" * parameter.requires_grad,
                need=_UNCHANGED,
                hint="change it after a step, when job.step(loss) is not None, or in "
                "optimizer.register_step_post_hook(...); keep what forward changes in a buffer",
            )
        if self._fingerprints is None:
            return ""
        changed = self._changed_since(self._fingerprints)
        if not self._may_initialise:  # one pass shows it
            self._fingerprints = None
        elif changed:
            raise _initialises(changed)
        return changed

    def _changed_since(self, digests: list[bytes]) -> str:
        """Name a parameter whose change no version shows: writes by `.data`, mostly in first passes."""
        return next(
            (
                name
                for (name, parameter), fingerprint in zip(
                    self._looked_at.items(), digests, strict=True
                )
                if _fingerprint(parameter) != fingerprint
            ),
            "",
        )

    def watch_buffers(self) -> None:
        """Remember the buffers as they are now, in a replayed step: see `check_buffers`."""
        self._buffers_seen = self._buffer_marks()

    def check_buffers(self) -> None:
        """Check that no buffer changed since `watch_buffers`.

        Raises:
            UserCodeError: the loop has changed one beside its step function.
        """
        if self._buffer_marks() != self._buffers_seen:
            raise UserCodeError(
                "--capture: the body of the loop changes a buffer of the network outside of the step "
                "function, which a replayed step would lose\n"
                "  hint: call the network in the function only (or in eval mode), or train without "
                "--capture"
            )

    def _buffer_marks(self) -> list[tuple[int, int]]:
        return [(id(now), now._version) for buffer in self._buffers() for now in [buffer.now()]]

    def check_untouched(self) -> None:
        """Check that the script did no backward pass of its own since the last micro-batch.

        Raises:
            SpecError: a parameter has a gradient already.
        """
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                raise SpecError(
                    "your training loop",
                    got=f"a gradient of {self._names[index]!r} before job.step(loss)",
                    need="no backward pass except in job.step: gradients would count twice",
                    hint="remove loss.backward() and optimizer.zero_grad() from the loop",
                )

    def take(
        self,
        weight: float,
        losses: Sequence[Tensor | float | None],
        *,
        by_rows: Sequence[bool] = (),
        stop: bool,
        due: bool,
    ) -> list[Tensor]:
        """Take the gradients of a micro-batch's backward passes.

        Args:
            weight: its part of the step's samples.
            losses: of each optimizer, a tensor of shape [1], or None where it had none; of one, its
                value may be here instead.
            by_rows: of each parameter by rows, whether it has a gradient.
            stop, due: words to all workers, see `StepOutcome`.

        Raises:
            SpecError: a gradient or a buffer that cannot be added up with those of other workers.
        """
        if self._frozen:
            self._check_frozen()
        gradients, marks = [], [1] * len(self._parameters)
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                gradient, marks[index] = torch.zeros_like(parameter), 0
            elif gradient.layout is not torch.strided:
                raise SpecError(
                    f"parameter {self._names[index]!r}",
                    got="a sparse gradient",
                    need="a dense one, or nn.Embedding(..., sparse=True): other sparse gradients "
                    "cannot be reduced",
                    hint="gradient = gradient.to_dense() where it is made",
                )
            parameter.grad = None
            gradients.append(gradient)
        marks += map(int, by_rows)
        words = self._words(marks, stop=stop, due=due)
        if not self._homes:
            return [*gradients, self._weighed(losses, weight), words]
        changed = [buffer.changed_by(weight) for buffer in self._averaged]
        counted = [buffer.now().clone() for buffer in self._counted]
        return [*gradients, *changed, self._weighed(losses, weight), words, *counted]

    def of_program(
        self, sums: Sequence[Tensor], used: Sequence[bool], *, stop: bool, due: bool
    ) -> list[Tensor]:
        """Return sums that a program computed as a contribution.

        Args:
            sums: gradients, changes of averaged buffers, the loss, and counted buffers.
            used: of each parameter, whether it has a gradient.
            stop, due: words to all workers, see `StepOutcome`.
        """
        words = self._words(list(map(int, used)), stop=stop, due=due)
        return [*sums[: self._losses_at + 1], words, *sums[self._losses_at + 1 :]]

    def ask_to_stop(self, contributions: Sequence[list[Tensor]]) -> None:
        """Say in contributions to a step that it be the last one."""
        at = self._losses_at + 1
        for contribution in contributions:
            contribution[at] = contribution[at].clone()  # it may be shared
            contribution[at][-_WORDS + _STOP] = 1

    def name_of(self, place: int) -> str:
        """Return the name of an entry of the list."""
        names = [f"the gradient of {name!r}" for name in self._names]
        names += [f"buffer {buffer.name!r}" for buffer in self._averaged]
        names += ["the loss", "the mark of a gradient"]
        names += [f"buffer {buffer.name!r}" for buffer in self._counted]
        return names[place]

    def _weighed(self, losses: Sequence[Tensor | float | None], weight: float) -> Tensor:
        if len(losses) == 1:
            (loss,) = losses
            if isinstance(loss, float):
                weighed = torch.from_numpy(np.array([loss * weight]))
                return weighed if self._no_losses.is_cpu else weighed.to(self._no_losses.device)
            if loss is not None:
                if weight not in self._weights:
                    self._weights[weight] = self._no_losses + weight
                return loss.to(self._no_losses.device) * self._weights[weight]
        weighed = self._no_losses.clone()
        for index, loss in enumerate(losses):
            if isinstance(loss, Tensor):
                weighed[index] = loss[0].double() * weight
        return weighed

    def _words(self, marks: list[int], *, stop: bool, due: bool) -> Tensor:
        if not (stop or due) and 0 not in marks:
            return self._all_marks  # shared: nobody writes to whole numbers of a contribution
        return self._no_marks.new_tensor([*marks, int(stop), int(due)])

    def _check_frozen(self) -> None:
        thawed = next(
            (name for name, parameter in self._frozen.items() if parameter.requires_grad), None
        )
        if thawed is not None:
            raise SpecError(
                f"parameter {thawed!r}",
                got="requires_grad turned on while training",
                need="the same trainable parameters in all steps: memory for gradients is laid out "
                "once",
                hint="leave requires_grad on, and freeze it with lr=0 in its own parameter group",
            )

    def no_contribution(self, *, stop: bool = False, due: bool = False) -> list[Tensor]:
        """The contribution of a micro-batch without samples; the words to all as in `take`."""
        zeros = [
            torch.zeros_like(t) for t in [*self._parameters, *self._homes[: len(self._averaged)]]
        ]
        words = self._no_marks.clone()
        words[-_WORDS + _STOP], words[-_WORDS + _DUE] = int(stop), int(due)
        counted = [start.clone() for start in self._starts[len(self._averaged) :]]
        return [*zeros, self._no_losses.clone(), words, *counted]

    def by_name(self, contribution: Sequence[Tensor]) -> dict[str, Any]:
        """Return a micro-batch's contribution, by name, without the worker's words to all."""
        offset, count = self._losses_at, len(self._parameters)
        buffers = (
            [buffer.name for buffer in self._averaged],
            [buffer.name for buffer in self._counted],
        )
        return {
            "loss": contribution[offset],
            "gradient": dict(zip(self._names, contribution[:count], strict=True)),
            "gradients": contribution[offset + 1][:-_WORDS],
            "buffer": dict(zip(buffers[0], contribution[count:offset], strict=True))
            | dict(zip(buffers[1], contribution[offset + 2 : len(self.like)], strict=True)),
        }

    # The sum --------------------------------------------------------------------------------------

    def outcome(self, total: Sequence[Tensor]) -> StepOutcome:
        """Read a step's outcome from the sum over all its micro-batches."""
        losses, marks = tuple(total[self._losses_at].tolist()), total[self._losses_at + 1]
        if marks is self._all_marks:  # of one worker, nearly always: what it holds is known
            return StepOutcome(losses=losses, used=self._all_used, stop=False, due=False)
        *used, stop, due = map(bool, marks.tolist())
        return StepOutcome(losses=losses, used=tuple(used), stop=stop, due=due)

    def put_back(self, total: Sequence[Tensor], outcome: StepOutcome, *, shared: bool) -> None:
        """Give the network the sum of a step: gradients for the optimizer, and the buffers.

        Args:
            total: the sum over all micro-batches.
            outcome: what was read from it.
            shared: others read these tensors too, so that gradients must be copied: clipping and
                some optimizers write to them.
        """
        count = len(self._parameters)
        gradients = self._as_parameters(list(total[:count]), shared=shared)
        used = outcome.used[:count]
        for parameter, gradient, was_used in zip(self._parameters, gradients, used, strict=True):
            parameter.grad = gradient if was_used else None
        if self._homes:
            with torch.no_grad():
                self._put_back_buffers(total)

    def _put_back_buffers(self, total: Sequence[Tensor]) -> None:
        first, averaged, counted = len(self._parameters), len(self._averaged), len(self._counted)
        if averaged:
            changes = total[first : first + averaged]
            sums = [
                buffer.sum_of(change)
                for buffer, change in zip(self._averaged, changes, strict=True)
            ]
            torch._foreach_copy_(self._homes[:averaged], sums)
        if counted:
            torch._foreach_copy_(self._homes[averaged:], list(total[-counted:]))

    def _as_parameters(self, gradients: list[Tensor], *, shared: bool) -> list[Tensor]:
        """Gradients that lie in memory as their parameters do.

        A norm adds up in that order, on any worker.
        """
        if not shared and [gradient.stride() for gradient in gradients] == self._strides:
            return gradients
        targets = self._own_gradients or [
            torch.empty_like(parameter) for parameter in self._parameters
        ]
        if targets:
            torch._foreach_copy_(targets, gradients)
        # Large ones are free between updates: micro-batches need the same memory for theirs.
        self._own_gradients = targets if self._are_small else []
        return targets

    def clear(self) -> None:
        """Forget the gradients of a step that is done or given up."""
        for parameter in self._parameters:
            parameter.grad = None


def _initialises(name: str) -> SpecError:
    """Return the error of a parameter that the job's first forward pass changes."""
    return SpecError(
        f"parameter {name!r}",
        got="a value that the first forward pass sets, from the samples that it sees",
        need="parameters that only the step's end changes: each worker's first samples are others",
        hint="run one batch through the model before brim.join, or in model(), so that this is done; "
        f"where the loop sets it, do so when job.step(loss) is not None; {TO_BOUND}",
    )


def _scales(name: str, module: nn.Embedding | nn.EmbeddingBag) -> SpecError:
    """Return the error of an embedding that scales its rows as it looks them up."""
    return SpecError(
        f"parameter {name!r}",
        got=f"{type(module).__name__}(max_norm={module.max_norm:g}), which scales rows in forward",
        need=_UNCHANGED,
        hint="leave max_norm out, and scale them behind each step: "
        "optimizer.register_step_post_hook(lambda *_: embedding.weight.data.renorm_("
        f"{module.norm_type:g}, 0, {module.max_norm:g}))",
    )


def _fingerprint(parameter: Tensor) -> bytes:
    if parameter.device.type == "cpu":
        return xxhash.xxh3_64_digest(memory_of(in_c_order(parameter)))
    return str(parameter.detach().double().sum().item()).encode()


def _is_averaged(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _homes_and_starts(buffers: Sequence[_Buffer]) -> tuple[list[Tensor], list[Tensor]]:
    return [buffer.home for buffer in buffers], [buffer.start for buffer in buffers]
