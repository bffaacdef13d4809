"""An embedding for ids from a large space, not known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from brim.embeddings.rows import GradientRows
from brim.embeddings.tables.candidates import MAX_ADMIT_STEPS
from brim.embeddings.tables.key_roster import Rules
from brim.embeddings.tables.keys import check_ids, mix, unmix
from brim.embeddings.tables.start_values import KINDS, start_values
from brim.errors import SpecError

_FLOATS = (torch.float32, torch.float64)
_IDS = "ids"  # of the rows, in the state dict


class RowSource(Protocol):
    """The source in which an embedding looks up rows.

    Attributes:
        is_jobs: a job trains them, so that nobody else may replace them.
    """

    is_jobs: bool

    def distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct keys of ids, ascending, and the place of each id's key among them."""
        ...

    def rows(self, keys: Tensor) -> Tensor:
        """Return the rows of keys, [N, D]."""
        ...

    def receive(self, rows: GradientRows) -> None:
        """Take the gradient of a lookup."""
        ...

    def rows_held(self) -> HeldRows:
        """Return the rows that are there."""
        ...


class HeldRows(NamedTuple):
    """Rows that an embedding has while it is in no job.

    Args:
        keys: ascending, shape [N].
        rows: shape [N, D].
    """

    keys: Tensor
    rows: Tensor


class _GatherOfKeys(torch.autograd.Function):
    """Rows of keys, whose gradient goes to their source."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, keys: Tensor, source: RowSource) -> Tensor:
        ctx.keys, ctx.source = keys, source
        return source.rows(keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.source.receive(GradientRows(ctx.keys, gradient))
        return None, None, None


class Embedding(nn.Module):
    """Looks up a vector for each id of a space of 63 bits.

    An id has a row of its own from its first update on.

    Until then it has what `init` says of it, which takes no memory. Rows are trained by `job.step`
    alone, each as if the optimizer had nothing but the rows of the step: Adam and momentum leave
    all others as they are.

    Args:
        dim: numbers in a vector.
        limit: rows that there is room for. When a part of the table is full, its other ids stay as
            `init` has them.
        init: `uniform` in ±scale, `normal` with a standard deviation of `scale`, or `zeros`.
        scale: of the vectors before their first update.
        admit_after: steps in which an id has to be seen until it has a row.
        expire_after: steps without an update after which an id has no row any more; None keeps it.
        name: of the embedding in messages; None takes that of the module.
        dtype: of the vectors, torch.float32 or torch.float64.

    Attributes:
        weight: shape [0, dim]; a stand-in by which an optimizer, and its group of parameters, has
            the rows.
        seed: of the vectors before their first update; drawn from torch's chance.

    Raises:
        SpecError: an argument is not one of these.
    """

    seed: Tensor

    def __init__(
        self,
        dim: int,
        limit: int = 1_000_000,
        *,
        init: str = "uniform",
        scale: float = 0.01,
        admit_after: int = 1,
        expire_after: int | None = None,
        name: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for argument, value, maximum in (("dim", dim, 1 << 20), ("limit", limit, 1 << 40)):
            _check_whole(argument, value, maximum)
        _check_whole("admit_after", admit_after, MAX_ADMIT_STEPS)
        if expire_after is not None:
            _check_whole("expire_after", expire_after, 1 << 40)
        if init not in KINDS:
            raise SpecError("brim.Embedding: init", got=repr(init), need="uniform, normal or zeros")
        if dtype not in _FLOATS:
            raise SpecError(
                "brim.Embedding: dtype", got=str(dtype), need="torch.float32 or torch.float64"
            )
        self.dim, self.init, self.scale, self.name = dim, init, float(scale), name
        self.rules = Rules(limit, admit_after=admit_after, expire_after=expire_after)
        self.weight = nn.Parameter(torch.empty((0, dim), dtype=dtype))
        self.register_buffer("seed", torch.randint((1 << 63) - 1, ()))
        empty = HeldRows(torch.empty(0, dtype=torch.int64), self.weight.detach())
        self._source: RowSource = _Plain(self, empty)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up vectors.

        Args:
            ids: int64 or int32 of any shape, none negative.

        Returns:
            Shape [*ids.shape, dim].

        Raises:
            SpecError: an id is negative.
        """
        check_ids(ids, subject=repr(self.name or "brim.Embedding"))
        keys, places = self._source.distinct(ids)
        rows = _GatherOfKeys.apply(self.weight, keys, self._source)  # type: ignore[no-untyped-call]
        return functional.embedding(places, rows)

    def extra_repr(self) -> str:
        """Say how large it is, as torch's modules do."""
        return f"{self.dim}, limit={self.rules.limit}"

    def _start(self, keys: Tensor) -> Tensor:
        return start_values(
            keys,
            self.dim,
            kind=self.init,
            scale=self.scale,
            seed=int(self.seed),
            dtype=self.weight.dtype,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Embedding:
        """Convert and move rows with the module."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.dtype not in _FLOATS:
            raise SpecError(
                f"embedding {self.name or 'brim.Embedding'!r}",
                got=f"a conversion to {str(self.weight.dtype).removeprefix('torch.')}",
                need="torch.float32 or torch.float64: convert the other modules, or use "
                "torch.autocast",
            )
        if not self._source.is_jobs:
            rows = self._source.rows_held()
            self._source = _Plain(
                self, HeldRows(rows.keys.to(self.weight.device), rows.rows.to(self.weight))
            )
        return self

    # Copies ---------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Let copies and pickles have the rows, and no part in a job."""
        state = dict(self.__dict__)
        state["_source"] = self._source.rows_held()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state that `__getstate__` gave."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._source = _Plain(self, state["_source"])

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        rows = self._source.rows_held()
        destination[prefix + _IDS] = unmix(rows.keys)
        destination[prefix + "weight"] = rows.rows

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        *lists: Any,
    ) -> None:
        own_state = dict(state_dict)
        missing, _, errors = lists
        ids, rows = own_state.pop(prefix + _IDS, None), own_state.pop(prefix + "weight", None)
        if ids is None or rows is None:
            missing.extend(
                prefix + key for key in (_IDS, "weight") if prefix + key not in state_dict
            )
        elif rows.shape != (len(ids), self.dim):
            errors.append(
                f"{prefix}weight: {len(ids)} ids have rows of shape {list(rows.shape)}, not [_, "
                f"{self.dim}]"
            )
        elif self._source.is_jobs:
            errors.append(f"{prefix}weight: a job has the rows; load them before its loop")
        elif obstacle := _why_no_ids(ids):
            errors.append(f"{prefix}{_IDS}: {obstacle}")
        else:
            keys, order = mix(ids.long()).sort()
            self._source = _Plain(self, HeldRows(keys, rows[order].to(self.weight.dtype)))
        own_state[prefix + "weight"] = self.weight
        super()._load_from_state_dict(own_state, prefix, local_metadata, strict, *lists)


def _why_no_ids(ids: Tensor) -> str:
    """Say why these cannot be the ids of rows.

    Empty where they can.
    """
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
        return (
            f"{str(ids.dtype).removeprefix('torch.')} of shape {list(ids.shape)}, not int64 of "
            "one dimension"
        )
    if len(ids) and int(ids.min()) < 0:
        return f"{int(ids.min())} is negative"
    return "" if len(torch.unique(ids)) == len(ids) else "an id stands there twice"


class _Plain:
    """Rows without training: those of an embedding outside of a job."""

    is_jobs = False

    def __init__(self, module: Embedding, rows: HeldRows) -> None:
        self._module, self._rows = module, rows

    def distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        keys: tuple[Tensor, Tensor] = torch.unique(mix(ids.long()), return_inverse=True)
        return keys

    def rows(self, keys: Tensor) -> Tensor:
        rows = self._module._start(keys)
        if len(self._rows.keys):
            places = torch.searchsorted(self._rows.keys, keys).clamp(max=len(self._rows.keys) - 1)
            is_present = self._rows.keys[places] == keys
            rows[is_present] = self._rows.rows[places[is_present]]
        return rows

    def receive(self, rows: GradientRows) -> None:
        raise SpecError(
            f"embedding {self._module.name or 'brim.Embedding'!r}",
            got="a gradient outside of a job",
            need="job.step(loss): its rows come to be there",
            hint="see docs/guides/your-own-loop.md",
        )

    def rows_held(self) -> HeldRows:
        return self._rows


class _Rehearsal(_Plain):
    """Rows with unwanted gradients."""

    def receive(self, rows: GradientRows) -> None:
        pass


# What a job does with an embedding, and nobody else -----------------------------------------------


def use(embedding: Embedding, source: RowSource) -> None:
    """Have an embedding look up rows in a source from now on."""
    embedding._source = source


def is_used(embedding: Embedding, source: RowSource) -> bool:
    """Return whether an embedding looks up rows in a source."""
    return embedding._source is source


def hold(embedding: Embedding, rows: HeldRows) -> None:
    """Give an embedding rows, in which it looks up from now on."""
    embedding._source = _Plain(embedding, rows)


def held_by(embedding: Embedding) -> HeldRows:
    """Return the rows that are there, in the order of their keys."""
    return embedding._source.rows_held()


def start_of(embedding: Embedding, keys: Tensor) -> Tensor:
    """Return the vectors that ids have before their first update, by their keys."""
    return embedding._start(keys)


def rehearse(model: nn.Module) -> None:
    """Let gradients of a copy's embeddings go nowhere: nothing is kept of its passes."""
    for module in model.modules():
        if isinstance(module, Embedding):
            module._source = _Rehearsal(module, module._source.rows_held())


def _check_whole(argument: str, value: object, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise SpecError(
            f"brim.Embedding: {argument}",
            got=repr(value),
            need="a whole number from 1"
            + (
                ": the rows that there is room for, which memory must have"
                if argument == "limit"
                else ""
            ),
        )
