"""Embeddings that are trained by rows: a step's time depends on the rows that it looks up, not on those there are.

torch gives an embedding's weight a gradient of its own size, and optimizers walk over all of it. Here a lookup takes
the rows that it needs into a small tensor, and the gradient is that tensor's; then the optimizer steps on the step's
rows as on one small parameter. Where the optimizer would leave all other rows as they are (SGD, Adagrad), the bits are
those of the dense way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from brim.domain.job import JobSpec
from brim.errors import SpecError
from brim.train.compiled import is_compiled
from brim.train.rows import Rows, no_rows, total_of

__all__ = ["Embeddings"]

# Elements of a weight from which on a dense gradient costs more than finding the distinct rows.
LARGE = 1 << 17
_KINDS = (nn.Embedding, nn.EmbeddingBag)
_FORWARDS = tuple(kind.forward for kind in _KINDS)
# What must be 0 for a row without a gradient to stay what it is. SparseAdam leaves such rows alone by its definition.
_ZERO: dict[type, tuple[str, ...]] = {
    torch.optim.SGD: ("momentum", "weight_decay"),
    torch.optim.Adagrad: ("weight_decay",),
    torch.optim.SparseAdam: (),
}
_KNOWN = "SGD without momentum, Adagrad or SparseAdam, without weight decay"


class _Lookup(NamedTuple):
    ids: Tensor  # distinct
    rows: Tensor  # the leaf whose gradient is wanted


class _Table:
    """An embedding's weight that is trained by rows.

    Args:
        name: of the parameter.
        weight: shape [R, D].
        optimizer, group: the optimizer that has it, and its parameter group.
        distinct: gives the distinct ids among some, and of each its place among those.
    """

    def __init__(
        self,
        name: str,
        weight: nn.Parameter,
        optimizer: torch.optim.Optimizer,
        group: dict[str, Any],
        *,
        distinct: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> None:
        self.name, self.weight, self.optimizer, self._group = name, weight, optimizer, group
        self._distinct = distinct
        self.lookups: list[_Lookup] = []
        self._small = type(optimizer)([{**group, "params": [nn.Parameter(weight.detach()[:0].clone())]}])  # type: ignore[call-arg]
        self._rows: nn.Parameter | None = None  # of the step that is about to be applied
        self._ids = torch.empty(0, dtype=torch.int64)

    def look_up(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of some ids as a leaf, of each id its place among them, and the ids of the rows."""
        distinct, places = self._distinct(ids)
        rows = self.weight.detach().index_select(0, distinct).requires_grad_()
        self.lookups.append(_Lookup(distinct, rows))
        return rows, places, distinct

    def take(self) -> Rows | None:
        """Return the gradient that a micro-batch's backward passes left, or None where they left none.

        Raises:
            SpecError: the weight was used in another way than by looking up rows, or its optimizer would now move
                others.
        """
        self._check_group()
        lookups, self.lookups = self.lookups, []
        if self.weight.grad is not None:
            raise SpecError(
                f"parameter {self.name!r}",
                got="a gradient that does not come from looking up rows",
                need="a weight that only its embedding uses: it is trained by rows",
                hint="--embeddings dense",
            )
        # A dense backward pass meets the last lookup first, and sums do not associate.
        left = [Rows(each.ids, each.rows.grad) for each in reversed(lookups) if each.rows.grad is not None]
        return total_of(left) if left else None

    def put_back(self, total: Rows) -> nn.Parameter:
        """Have the next `step` apply the gradient of a step; the rows that it will change."""
        self._ids, self._rows = total.ids, nn.Parameter(self.weight.detach().index_select(0, total.ids))
        self._rows.grad = total.values
        return self._rows

    def step(self) -> None:
        """Step the optimizer on the rows of the step."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        own: dict[str, Any] = self.optimizer.state.get(self.weight, {})
        ids, small = self._ids, self._small
        small.param_groups[0].update(self._group, params=[rows])
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
            self.optimizer.state[self.weight] = own

    def _check_group(self) -> None:
        why = _moves_others(self.optimizer, self._group)
        if why:
            raise SpecError(
                f"the optimizer of {self.name!r}", got=why, need=_KNOWN, hint="--embeddings dense"
            )

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

    table: _Table  # of the class: copies of a module, which nobody trains by rows, must not have it
    own_class: type[nn.Module]

    def forward(self, ids: Tensor, *rest: Any, **named: Any) -> Any:
        look_up = super().forward
        if not torch.is_grad_enabled() or not self.table.weight.requires_grad:
            return look_up(ids, *rest, **named)
        rows, places, distinct = self.table.look_up(ids)
        attributes = vars(self)
        before = {name: attributes[name] for name in ("padding_idx", "sparse")}
        attributes.update(padding_idx=_place_of(before["padding_idx"], distinct), sparse=False)
        self._parameters["weight"] = rows  # type: ignore[assignment]
        try:
            return look_up(places, *rest, **named)
        finally:
            self._parameters["weight"] = self.table.weight
            attributes.update(before)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let copies and pickles be of the module's own class; protocol 1 calls for no other."""
        made: tuple[Any, ...] = super().__reduce_ex__(1)  # type: ignore[assignment]
        return made[0], (self.own_class, *made[1][1:]), *made[2:]


def _class_by_rows(own: type[nn.Module], table: _Table) -> type[_ByRows]:
    names = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(own.__name__, (_ByRows, own), {**names, "table": table, "own_class": own})


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
        model: the network; until `close` these modules are of classes that this makes.
        optimizers: of its parameters.
        spec: of the job.
        may: whether what else the job has allows it: a reason against it, or nothing.

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
        may: str = "",
    ) -> None:
        self._seen: dict[int, tuple[Tensor, int, Tensor, Tensor]] = {}
        self._modules: list[_ByRows] = []
        self._tables: list[_Table] = []
        users = _users_of(model)
        for name, weight in model.named_parameters():
            modules = users[id(weight)]
            if not weight.requires_grad or not all(isinstance(each, _KINDS) for each in modules):
                continue
            declared = any(each.sparse for each in modules)
            why = may or _why_not(weight, modules, spec) or _why_not_by(optimizers, weight)
            if declared and why:
                raise SpecError(
                    f"embedding {name.removesuffix('.weight')!r}",
                    got=f"sparse=True, and {why}",
                    need=f"a CPU and {_KNOWN}",
                    hint="leave sparse=True out",
                )
            if why or not (declared or _is_worth_it(weight, model, spec)):
                continue
            table = _Table(name, weight, *_owner_of(optimizers, weight), distinct=self._distinct)
            self._tables.append(table)
            for module in modules:
                module.__class__ = _class_by_rows(type(module), table)
                self._modules.append(module)  # type: ignore[arg-type]
        self.weights = [each.weight for each in self._tables]
        self.names = [each.name for each in self._tables]

    def close(self) -> None:
        """Give the modules their own classes back."""
        for each in self._modules:
            each.__class__ = each.own_class  # type: ignore[assignment]

    # Micro-batches -----------------------------------------------------------------------------------------

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct ids, ascending, and of each id its place among them.

        Several tables are often asked for the same ids.
        """
        known, version, distinct, places = self._seen.get(id(ids), (None, 0, ids, ids))
        if known is not ids or version != ids._version:
            distinct, places = torch.unique(ids, return_inverse=True)
            distinct, places = distinct.long(), places.to(ids.dtype)
            self._seen[id(ids)] = ids, ids._version, distinct, places
        return distinct, places

    def begin(self) -> None:
        """A micro-batch begins: what was looked up before it is forgotten."""
        self._seen.clear()
        for each in self._tables:
            each.lookups.clear()

    def leaves_of(self, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """Return what a backward pass for the parameters of this optimizer must reach as well."""
        return [
            lookup.rows for each in self._tables if each.optimizer is optimizer for lookup in each.lookups
        ]

    def take(self) -> tuple[list[Rows], list[bool]]:
        """Take what the backward passes of a micro-batch left.

        Returns:
            The gradient of each weight, and whether it has one.

        Raises:
            SpecError: a weight was used in another way than by looking up rows.
        """
        taken = [each.take() for each in self._tables]
        self._seen.clear()
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


def _owner_of(
    optimizers: Sequence[torch.optim.Optimizer], weight: nn.Parameter
) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    return next(_owners_of(optimizers, weight))


def _owners_of(
    optimizers: Sequence[torch.optim.Optimizer], weight: nn.Parameter
) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any]]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(each is weight for each in group["params"]):
                yield optimizer, group


def _is_worth_it(weight: nn.Parameter, model: nn.Module, spec: JobSpec) -> bool:
    """Whether an embedding that does not ask for it is trained by rows: it is large, and the bits stay the same."""
    if spec.embeddings == "dense" or spec.clip_norm is not None or is_compiled(model):
        return False  # a norm over fewer numbers adds up in another order
    return weight.numel() >= LARGE


def _why_not(weight: nn.Parameter, modules: Sequence[nn.Module], spec: JobSpec) -> str:
    """Why an embedding's weight cannot be trained by rows; empty where it can."""
    if any(type(each).forward not in _FORWARDS and not getattr(each, "by_rows", False) for each in modules):
        return "a forward of its own"
    if any(each.max_norm is not None for each in modules):
        return "max_norm, which changes the weight in forward"
    if weight.device.type != "cpu":
        return f"a weight on {weight.device.type}"
    if spec.transport == "distributed":
        return "--transport distributed"
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return "a hook on its weight"
    return ""


def _why_not_by(optimizers: Sequence[torch.optim.Optimizer], weight: nn.Parameter) -> str:
    owners = list(_owners_of(optimizers, weight))
    if len(owners) != 1:
        return "a weight that no optimizer has" if not owners else "a weight that two parameter groups have"
    return _moves_others(*owners[0])


def _moves_others(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> str:
    """Why an optimizer moves rows that have no gradient; empty where it does not."""
    names = _ZERO.get(type(optimizer))
    if names is None:
        return f"{type(optimizer).__name__}, which moves rows that have no gradient"
    moving = next((name for name in names if group[name]), None)
    return f"{type(optimizer).__name__} with {moving}={group[moving]}" if moving else ""
