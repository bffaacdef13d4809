"""A served `brim.Embedding`.

Its rows are ascending keys and their values, which a version brings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from brim.embeddings.keyed import Embedding, held_by
from brim.embeddings.tables.keys import BITS, check_ids, mix
from brim.embeddings.tables.start_values import start_values
from brim.errors import SpecError

KEYS, STARTS = "keys", "starts"  # names of the buffers beside the weight
_KEYS_PER_PREFIX = 4  # keys that have the same highest bits, about: keys spread evenly
_STEPS = 32  # that are walked from there, before a search


class KeyedLookup(nn.Module):
    """Looks up a vector for each id as the embedding does of which this is made.

    Args:
        embedding: whose rows these are, and what ids without a row have.
        name: for messages.

    Attributes:
        weight: the rows, [N, dim].
        keys: of the rows, ascending.
        starts: as `starts_of` gives them.
    """

    def __init__(self, embedding: Embedding, name: str) -> None:
        super().__init__()
        keys, rows = held_by(embedding)
        self.weight = nn.Parameter(rows.detach(), requires_grad=False)
        self.register_buffer(KEYS, keys)
        self.register_buffer(STARTS, starts_of(keys))
        self.register_buffer("seed", embedding.seed)
        self._kind, self._scale, self._name = (
            embedding.init,
            embedding.scale,
            embedding.name or name,
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Look up vectors: shape [*ids.shape, dim]."""
        found: Tensor = torch.ops.brim.keyed_rows(
            ids, self.keys, self.starts, self.weight, self.seed, self._kind, self._scale, self._name
        )
        return found


def with_lookups(model: nn.Module) -> nn.Module:
    """Put lookups in the places of a model's embeddings of large spaces of ids.

    Raises:
        SpecError: one is of a class of the user's own, which looks up in its own way.
    """
    lookups: dict[Embedding, KeyedLookup] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(module, Embedding):
            continue
        if type(module).forward is not Embedding.forward:
            raise SpecError(
                f"embedding {name!r}",
                got=f"{type(module).__name__}, which has a forward() of its own",
                need="a brim.Embedding, to be served",
                hint="have another module call it",
            )
        if module not in lookups:
            lookups[module] = KeyedLookup(module, name)
        if not name:
            return lookups[module]
        place, _, last = name.rpartition(".")
        setattr(model.get_submodule(place), last, lookups[module])
    return model


def starts_of(keys: Tensor) -> Tensor:
    """Index ascending keys by their highest bits.

    Of each value of these, the index says where its keys begin.
    """
    bits = (len(keys) // _KEYS_PER_PREFIX).bit_length()
    return torch.searchsorted(keys, torch.arange(1 << bits) << (BITS - bits))


def _find(queries: Tensor, keys: Tensor, starts: Tensor) -> Tensor:
    """The place of each key; of one that is not there, that of another."""
    last, bits = len(keys) - 1, len(starts).bit_length() - 1
    places = starts[queries >> (BITS - bits)].clamp_(max=last)
    for _ in range(_STEPS):
        is_behind = (keys[places] < queries) & (places < last)
        if not bool(is_behind.any()):
            return places
        places += is_behind
    return torch.searchsorted(keys, queries).clamp_(max=last)


_SCHEMA = (
    "(Tensor ids, Tensor keys, Tensor starts, Tensor rows, Tensor seed, "
    "str kind, float scale, str name) -> Tensor"
)


@torch.library.custom_op("brim::keyed_rows", mutates_args=(), schema=_SCHEMA)
def _keyed_rows(
    ids: Tensor,
    keys: Tensor,
    starts: Tensor,
    rows: Tensor,
    seed: Tensor,
    kind: str,
    scale: float,
    name: str,
) -> Tensor:
    """Look up rows by key, as one step of a program.

    A trace cannot depend on the values of ids.
    """
    check_ids(ids, subject=repr(name))
    queries, inverse = torch.unique(mix(ids.long()), return_inverse=True)
    is_present, places = torch.zeros(len(queries), dtype=torch.bool), queries
    if len(keys):
        places = _find(queries, keys, starts)
        is_present = keys[places] == queries
    if bool(is_present.all()):
        return functional.embedding(places[inverse], rows)
    found = start_values(
        queries, rows.shape[1], kind=kind, scale=scale, seed=int(seed), dtype=rows.dtype
    )
    found[is_present] = rows[places[is_present]]
    return functional.embedding(inverse, found)


@_keyed_rows.register_fake
def _(
    ids: Tensor,
    keys: Tensor,
    starts: Tensor,
    rows: Tensor,
    seed: Tensor,
    kind: str,
    scale: float,
    name: str,
) -> Tensor:
    return rows.new_empty((*ids.shape, rows.shape[1]))
