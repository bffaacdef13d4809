"""Embeddings that are trained by rows: a step's time depends on the rows that it looks up, not on those there are.

torch gives an embedding's weight a gradient of its own size, and optimizers walk over all of it. Here a lookup gathers
the rows that it needs into a small tensor, whose gradient is kept; then the optimizer steps on the step's rows as on
one small parameter. Where the optimizer would leave all other rows as they are (SGD, Adagrad), the bits are those of
the dense way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.train.compiled import is_compiled
from brim.train.rows import Rows, no_rows, total_of

__all__ = ["Embeddings"]

# Elements of a weight from which on a dense gradient costs more than finding the distinct rows (benchmarks/embeddings).
LARGE = 1 << 20
_KINDS = (nn.Embedding, nn.EmbeddingBag)
# Of smaller floats an optimizer's result depends on where in a tensor an element lies.
_SAME_ANYWHERE = (torch.float32, torch.float64)
# What must be 0 for a row without a gradient to stay what it is. SparseAdam leaves such rows alone by its definition.
_ZERO: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay"),
    torch.optim.Adagrad: ("weight_decay",),
    torch.optim.SparseAdam: (),
}
_KNOWN = "SGD without momentum, Adagrad or SparseAdam, without weight decay and hooks"
_DENSE = "--embeddings dense, without sparse=True"


class _Place(NamedTuple):
    """Where an optimizer has a parameter. Its group is looked up each time: loading a state makes new ones."""

    optimizer: torch.optim.Optimizer
    number: int  # of the group

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.number]


class _Gather(torch.autograd.Function):
    """Rows of a weight, whose gradient goes to their table and not to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: _Table) -> Tensor:
        ctx.ids, ctx.table = ids, table
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.table.receive(Rows(ctx.ids, gradient))
        return None, None, None


class _Table:
    """An embedding's weight that is trained by rows.

    Args:
        name: of the parameter.
        weight: shape [R, D].
        place: in its optimizer.
        modules: that look up in it.

    Attributes:
        is_backward: `job.step` is at its backward pass.
    """

    def __init__(self, name: str, weight: nn.Parameter, place: _Place, modules: Sequence[nn.Module]) -> None:
        self.name, self.weight, self.modules = name, weight, modules
        self._place = place
        self.is_backward = False
        self._received: dict[int, list[Rows]] = {}  # by backward pass, in the order in which these end
        none = nn.Parameter(weight.detach()[:0].clone())
        self._small = type(place.optimizer)([{**place.group, "params": [none]}])  # type: ignore[call-arg]
        self._rows: nn.Parameter | None = None  # of the step that is about to be applied
        self._ids = torch.empty(0, dtype=torch.int64)

    def begin(self) -> None:
        self._received.clear()

    def receive(self, rows: Rows) -> None:
        """Keep the gradient of a lookup.

        Raises:
            SpecError: another backward pass than that of `job.step` met it.
        """
        if not self.is_backward:
            raise SpecError(
                f"embedding weight {self.name!r}",
                got="a gradient that is computed outside of job.step",
                need="job.step(loss) alone: the embedding is trained by rows, and its weight has no gradient",
                hint=_DENSE,
            )
        # One pass may run within another (a reentrant checkpoint). Each adds up its own gradient of a weight first.
        number = torch._C._current_graph_task_id()
        self._received[number] = [*self._received.pop(number, []), rows]

    def take(self) -> Rows | None:
        """Return the gradient that a micro-batch's backward passes left, or None where they left none.

        Raises:
            SpecError: its optimizer, or a hook, would now do more than by rows can be done.
        """
        why = _why_not(self.weight, self.modules) or _moves_others(self._place)
        if why:
            raise SpecError(f"embedding weight {self.name!r}", got=why, need=_KNOWN, hint=_DENSE)
        received = [total_of(each) for each in self._received.values()]
        self._received.clear()
        whole, self.weight.grad = self.weight.grad, None
        if whole is not None:  # it is used in another way, too: then all rows have a gradient
            received.append(Rows(torch.arange(len(whole)), whole.to_dense()))
        return total_of(received) if received else None

    def put_back(self, total: Rows) -> nn.Parameter:
        """Have the next `step` apply the gradient of a step; the rows that it will change."""
        self._ids, self._rows = total.ids, nn.Parameter(self.weight.detach().index_select(0, total.ids))
        self._rows.grad = total.values.clone()  # it may be shared, and clipping writes to it
        return self._rows

    def step(self) -> None:
        """Step the optimizer on the rows of the step."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        optimizer, ids, small = self._place.optimizer, self._ids, self._small
        own: dict[str, Any] = optimizer.state.get(self.weight, {})
        small.param_groups[0].update(self._place.group, params=[rows])
        small.state.clear()
        small.state[rows] = {
            key: part.index_select(0, ids) if self._is_by_row(part) else part for key, part in own.items()
        }
        if isinstance(small, torch.optim.SparseAdam):
            rows.grad = _as_sparse(rows.grad)
        small.step()
        with torch.no_grad():
            self.weight.index_copy_(0, ids, rows)
            for key, part in small.state[rows].items():
                if isinstance(part, Tensor) and part.shape == rows.shape and part.dim() == 2:
                    self._by_row(own, key).index_copy_(0, ids, part)
                else:
                    own[key] = part
        if own:
            optimizer.state[self.weight] = own

    def _is_by_row(self, part: Any) -> bool:
        return isinstance(part, Tensor) and part.shape == self.weight.shape

    def _by_row(self, state: dict[str, Any], key: str) -> Tensor:
        if key not in state:
            state[key] = torch.zeros_like(self.weight)
        part: Tensor = state[key]
        return part


def _as_sparse(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    places = torch.arange(len(gradient)).unsqueeze(0)
    return torch.sparse_coo_tensor(
        places, gradient, gradient.shape, is_coalesced=True, check_invariants=False
    )


class _ByRows(nn.Module):
    """Looks up in the step's rows where a gradient is wanted; else as its own class does."""

    # Of the class: copies of a module, which nobody trains by rows, must not have these.
    _brim_embeddings: Embeddings
    _brim_table: _Table
    _brim_class: type[nn.Module]

    def forward(self, input: Tensor, *rest: Any, **named: Any) -> Any:
        look_up, table = super().forward, self._brim_table
        weight = self._parameters["weight"]
        if weight is not table.weight or not weight.requires_grad or not _is_plain_training():
            return look_up(input, *rest, **named)
        distinct, places = self._brim_embeddings.distinct(input)
        attributes = vars(self)
        before = {name: attributes[name] for name in ("padding_idx", "sparse")}
        attributes.update(padding_idx=_place_of(before["padding_idx"], distinct), sparse=False)
        self._parameters["weight"] = _Gather.apply(weight, distinct, table)  # type: ignore[no-untyped-call]
        try:
            return look_up(places, *rest, **named)
        finally:
            self._parameters["weight"] = weight
            attributes.update(before)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let copies and pickles be of the module's own class; protocol 1 calls for no other."""
        made: tuple[Any, ...] = super().__reduce_ex__(1)  # type: ignore[assignment]
        arguments = [self._brim_class if each is type(self) else each for each in made[1]]
        return made[0], tuple(arguments), *made[2:]


def _is_plain_training() -> bool:
    """Whether a lookup is for a backward pass, and no transform of functions sees to that."""
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def _own_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module has as its user made it: another job's loop over it may not have ended."""
    return module._brim_class if isinstance(module, _ByRows) else type(module)


def _place_of(id: int | None, distinct: Tensor) -> int | None:
    if id is None:
        return None
    places = (distinct == id).nonzero()
    return int(places[0]) if len(places) else None


class Embeddings:
    """The embeddings of a network that are trained by rows.

    Those are they whose weight is large and whose optimizer moves only rows with a gradient, and those that say
    `sparse=True`, as torch has it.

    Args:
        model: the network.
        optimizers: of its parameters.
        spec: of the job.
        obstacle: a reason why none can be; empty where there is none.

    Attributes:
        weights: shape [R, D] each.
        names: of these parameters.

    Raises:
        SpecError: one says `sparse=True` and cannot be trained by rows.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        spec: JobSpec,
        *,
        obstacle: str = "",
    ) -> None:
        self._seen: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        self._tables: list[_Table] = []
        obstacle = obstacle or ("--transport distributed" if spec.transport == "distributed" else "")
        users = _users_of(model)
        for name, weight in model.named_parameters():
            modules = users[id(weight)]
            if not weight.requires_grad or not all(_is_weight_of(each, weight) for each in modules):
                continue
            declared = any(each.sparse for each in modules)
            places = list(_places_of(optimizers, weight))
            why = obstacle or _why_not(weight, modules) or _why_not_there(places)
            if declared and why:
                raise SpecError(
                    f"embedding {name.removesuffix('.weight')!r}",
                    got=f"sparse=True, and {why}",
                    need=f"a CPU and {_KNOWN}",
                    hint="leave sparse=True out",
                )
            if why or not (declared or _is_worth_it(weight, places[0], model, spec)):
                continue
            self._tables.append(_Table(name, weight, places[0], modules))
        self.weights = [each.weight for each in self._tables]
        self.names = [each.name for each in self._tables]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have the modules look up by rows meanwhile: they are of classes made for it."""
        own = [(module, _own_class(module)) for table in self._tables for module in table.modules]
        for table in self._tables:
            for module in table.modules:
                module.__class__ = _class_by_rows(_own_class(module), self, table)
        try:
            yield
        finally:
            for module, kind in own:
                module.__class__ = kind

    # Micro-batches -----------------------------------------------------------------------------------------

    def distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct ids, ascending, and of each id its place among them.

        Several tables are often asked for the same ids.
        """
        key = id(ids), ids.dtype  # another tensor may have that number by now: the values decide
        known, distinct, places = self._seen.get(key, (None, ids, ids))
        if known is None or not torch.equal(known, ids):
            distinct, places = torch.unique(ids, return_inverse=True)
            distinct, places = distinct.long(), places.to(ids.dtype)
            self._seen[key] = ids.clone(), distinct, places
        return distinct, places

    def begin(self) -> None:
        """A micro-batch begins: what another left is forgotten."""
        self._seen.clear()
        for each in self._tables:
            each.begin()

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """The backward pass of `job.step`."""
        for each in self._tables:
            each.is_backward = True
        try:
            yield
        finally:
            for each in self._tables:
                each.is_backward = False

    def take(self) -> tuple[list[Rows], list[bool]]:
        """Take what the backward passes of a micro-batch left.

        Returns:
            The gradient of each weight, and whether it has one.

        Raises:
            SpecError: an optimizer, or a hook, would now do more than by rows can be done.
        """
        taken = [each.take() for each in self._tables]
        rows = [
            no_rows(each.weight) if own is None else own
            for each, own in zip(self._tables, taken, strict=True)
        ]
        return rows, [own is not None for own in taken]

    def nothing(self) -> list[Rows]:
        """Return the rows of a micro-batch without samples."""
        return [no_rows(weight) for weight in self.weights]

    # The sum -----------------------------------------------------------------------------------------------

    def put_back(self, total: Sequence[Rows], used: Sequence[bool]) -> list[nn.Parameter]:
        """Have `step` apply the sum of a step.

        Args:
            total: over all micro-batches, of each weight.
            used: whether any micro-batch gave it a gradient.

        Returns:
            The rows that it will change, with their gradients, which may be clipped.
        """
        steps = zip(self._tables, total, used, strict=True)
        return [table.put_back(rows) for table, rows, is_used in steps if is_used]

    def step(self) -> None:
        """Step the optimizers on the rows of the step."""
        for each in self._tables:
            each.step()


def _users_of(model: nn.Module) -> dict[int, list[nn.Module]]:
    """The modules that hold each parameter."""
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            users.setdefault(id(parameter), []).append(module)
    return users


def _is_weight_of(module: nn.Module, parameter: nn.Parameter) -> bool:
    return isinstance(module, _KINDS) and module._parameters.get("weight") is parameter


def _places_of(optimizers: Sequence[torch.optim.Optimizer], weight: nn.Parameter) -> Iterator[_Place]:
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            if any(each is weight for each in group["params"]):
                yield _Place(optimizer, number)


def _is_worth_it(weight: nn.Parameter, place: _Place, model: nn.Module, spec: JobSpec) -> bool:
    """Whether an embedding that does not ask for it is trained by rows: it is large, and the bits stay the same."""
    if spec.embeddings == "dense" or spec.clip_norm is not None or is_compiled(model):
        return False  # a norm over fewer numbers adds up in another order
    if (
        weight.dtype not in _SAME_ANYWHERE or place.group.get("eps") == 0
    ):  # 0 / 0 is not a number, in every row
        return False
    return weight.numel() >= LARGE


def _why_not(weight: nn.Parameter, modules: Sequence[nn.Module]) -> str:
    """Why an embedding's weight cannot be trained by rows; empty where it can."""
    if not all(_only_looks_up(each) for each in modules):
        return "a forward of its own"
    if any(each.max_norm is not None for each in modules):
        return "max_norm, which changes the weight in forward"
    if weight.device.type != "cpu":
        return f"a weight on {weight.device.type}"
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return "a hook on its weight"
    return ""


def _only_looks_up(module: nn.Module) -> bool:
    """Whether a module does nothing in `forward` but look up ids in its weight: torch's own, or one that says so."""
    if "forward" in vars(module):
        return False
    kind = next(each for each in _own_class(module).__mro__ if "forward" in vars(each))
    return kind in _KINDS or bool(vars(kind).get("by_rows"))


def _why_not_there(places: Sequence[_Place]) -> str:
    if len(places) != 1:
        return "a weight that no optimizer has" if not places else "a weight that two parameter groups have"
    return _moves_others(places[0])


def _moves_others(place: _Place) -> str:
    """Why an optimizer does more than move the rows that have a gradient; empty where it does not."""
    optimizer, group = place.optimizer, place.group
    names = _ZERO.get(type(optimizer))
    if names is None:
        return f"{type(optimizer).__name__}, which moves rows that have no gradient"
    moving = next((name for name in names if group[name]), None)
    if moving:
        return f"{type(optimizer).__name__} with {moving}={group[moving]}"
    # One is brim's, which refuses steps by hand.
    if len(optimizer._optimizer_step_pre_hooks) > 1 or optimizer._optimizer_step_post_hooks:
        return f"a hook on {type(optimizer).__name__}, which would not see the rows"
    return ""


def _class_by_rows(own: type[nn.Module], embeddings: Embeddings, table: _Table) -> type[_ByRows]:
    names = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {"_brim_embeddings": embeddings, "_brim_table": table, "_brim_class": own}
    return type(own.__name__, (_ByRows, own), {**names, **ours})
