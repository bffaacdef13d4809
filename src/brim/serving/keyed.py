"""A `brim.Embedding` that is served: its rows are ascending keys and their values, which a version brings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from brim.errors import SpecError
from brim.train.keyed import Embedding, held_by
from brim.train.tables.keys import check_ids, mix
from brim.train.tables.start_values import start_values

__all__ = ["KEYS", "KeyedLookup", "with_lookups"]

KEYS = "keys"  # the name of the buffer beside the weight


class KeyedLookup(nn.Module):
    """Looks up a vector for each id as the embedding does of which this is made.

    Args:
        embedding: whose rows these are, and what ids without a row have.
        name: for messages.

    Attributes:
        weight: the rows, [N, dim].
        keys: of the rows, ascending.
    """

    def __init__(self, embedding: Embedding, name: str) -> None:
        super().__init__()
        keys, rows = held_by(embedding)
        self.weight = nn.Parameter(rows.detach(), requires_grad=False)
        self.register_buffer(KEYS, keys)
        self.register_buffer("seed", embedding.seed)
        self._kind, self._scale, self._name = embedding.init, embedding.scale, embedding.name or name

    def forward(self, ids: Tensor) -> Tensor:
        """Look up vectors: shape [*ids.shape, dim]."""
        found: Tensor = torch.ops.brim.keyed_rows(
            ids, self.keys, self.weight, self.seed, self._kind, self._scale, self._name
        )
        return found


def with_lookups(model: nn.Module) -> nn.Module:
    """Put lookups in the places of a model's embeddings of large spaces of ids.

    Raises:
        SpecError: one is of a class of the user's own, which looks up in its own way.
    """
    made: dict[Embedding, KeyedLookup] = {}
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
        if module not in made:
            made[module] = KeyedLookup(module, name)
        if not name:
            return made[module]
        place, _, last = name.rpartition(".")
        setattr(model.get_submodule(place), last, made[module])
    return model


_SCHEMA = "(Tensor ids, Tensor keys, Tensor rows, Tensor seed, str kind, float scale, str name) -> Tensor"


@torch.library.custom_op("brim::keyed_rows", mutates_args=(), schema=_SCHEMA)
def _keyed_rows(
    ids: Tensor, keys: Tensor, rows: Tensor, seed: Tensor, kind: str, scale: float, name: str
) -> Tensor:
    """One step of a program for all of it: a trace cannot have what depends on the values of ids."""
    check_ids(ids, of=repr(name))
    wanted, inverse = torch.unique(mix(ids.long()), return_inverse=True)
    places = torch.searchsorted(keys, wanted).clamp_(max=max(0, len(keys) - 1))
    there = keys[places] == wanted if len(keys) else torch.zeros(len(wanted), dtype=torch.bool)
    if bool(there.all()) and len(keys):
        found = rows[places]
    else:
        found = start_values(wanted, rows.shape[1], kind=kind, scale=scale, seed=int(seed), dtype=rows.dtype)
        found[there] = rows[places[there]]
    return functional.embedding(inverse, found)


@_keyed_rows.register_fake
def _(ids: Tensor, keys: Tensor, rows: Tensor, seed: Tensor, kind: str, scale: float, name: str) -> Tensor:
    return rows.new_empty((*ids.shape, rows.shape[1]))
