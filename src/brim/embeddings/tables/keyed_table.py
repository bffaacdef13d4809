"""A table whose rows come to be by their first update, with the log of a step.

As in an ordinary table an owner logs the contents of the places that it is about to change, then
changes them. It also logs the keys that it gives a place, and the candidates that it counts. An
owner has partitions: so its part of the log is as large as its part of the table, and nobody
else's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brim.domain.quantities import counted
from brim.embeddings.tables.changes import Changes
from brim.embeddings.tables.key_roster import KeyRoster, KeyRosterChange, Rules
from brim.embeddings.tables.table import MOST_OWNERS, WEIGHT
from brim.errors import SpecError
from brim.tensors.raw import ALIGNMENT

KEYS, CANDIDATES = "keys", "candidates"
_FIRST, _STOP, _ROWS, _CREATED, _KNOWN, _NEW, _STEP = range(7)  # the head of an owner's log


def partitions_of(partitions: int, owner: int, owners: int) -> range:
    """Return the partitions that one of some owners has.

    >>> [partitions_of(64, owner, 3) for owner in range(3)]
    [range(0, 21), range(21, 42), range(42, 64)]
    """
    return range(partitions * owner // owners, partitions * (owner + 1) // owners)


class _Log(NamedTuple):
    """The log of an owner for a step: views.

    Args:
        partitions: of the owner.
        rows: where in the log they are.
        keys: of the rows that it writes.
        places: of these.
        changed: the steps that wrote them last.
        created: keys that take a place.
        known: keys of candidates that it counts once more.
        known_places: of these.
        known_changed: the steps that counted them last.
        before: how often they had been counted.
        new: keys that become candidates.
    """

    partitions: range
    rows: slice
    keys: Tensor
    places: Tensor
    changed: Tensor
    created: Tensor
    known: Tensor
    known_places: Tensor
    known_changed: Tensor
    before: Tensor
    new: Tensor


class KeyedTable:
    """The rows of one embedding of a large space of ids, in memory that is bound to it later.

    Args:
        name: of the parameter.
        dim: columns of a row.
        dtype: of the rows, and of the optimizer's state of each.
        states: names of the optimizer's states of each row.
        rules: which keys have a row.

    Attributes:
        shape: of the weight when it is full.
        kept_bytes: that the rows take then, and what finds them; the log takes as many as a step
            changes.
        changes: keys of rows that steps wrote to, for their followers.
        changes_of_candidates: the same of candidates.
    """

    roster: KeyRoster
    fields: Mapping[str, Tensor]
    _counted: list[
        Tensor
    ]  # of candidates: known keys, their places, when these changed, new keys, counts

    def __init__(
        self, name: str, dim: int, dtype: torch.dtype, states: Sequence[str], rules: Rules
    ) -> None:
        self.name, self.dim, self.dtype, self.rules = name, dim, dtype, rules
        self.names = (WEIGHT, *states)
        self.partitions = rules.shape.partitions
        places = rules.shape.all_places
        waiting = rules.candidates.all_places if rules.admit_after > 1 else 0
        rows = [((places, dim), dtype)] * len(self.names)
        log = [((places,), torch.int64)] * 4 + rows
        counts = [((waiting,), torch.int64)] * 4 + [((waiting,), torch.int32)]
        head, notices = ((MOST_OWNERS, _STEP + 1), torch.int64), ((1,), torch.int64)
        self._parts = [((rules.bytes,), torch.uint8), *rows, head, *log, *counts, notices]
        sizes = (
            -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            for shape, dtype in self._parts
        )
        self._bounds = list(accumulate(sizes, initial=0))
        self.size_bytes = self._bounds[-1]
        self.shape, self.kept_bytes = torch.Size((rules.limit, dim)), self._bounds[1 + len(rows)]
        self.changes, self.changes_of_candidates = (
            Changes(rows=rules.limit),
            Changes(rows=rules.limit),
        )

    def bind(self, shared: Tensor, seen: Tensor) -> None:
        """Take memory, uint8 of [size_bytes], zeros at first; the user's code sees no table."""
        parts = []
        for (shape, dtype), (start, stop) in zip(self._parts, pairwise(self._bounds), strict=True):
            used = shared[start : min(stop, start + prod(shape) * dtype.itemsize)]
            parts.append(used.view(dtype).view(shape))
        roster, *rest = parts
        count = len(self.names)
        self.roster = KeyRoster(roster, self.rules)
        self.fields = dict(zip(self.names, rest, strict=False))
        self._heads, self._keys, self._places, self._created, self._changed = rest[
            count : count + 5
        ]
        self._logged = dict(zip(self.names, rest[count + 5 :], strict=False))
        *self._counted, self._notices = rest[2 * count + 5 :]

    # Rows -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def rows(self, keys: Tensor, committed: int, start: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows of keys.

        Args:
            keys: ascending, each once; shape [N].
            committed: steps that the table has.
            start: gives the rows of keys that have none.
        """
        places = self.roster.find(keys, committed)
        is_present = places >= 0
        found = self.fields[WEIGHT].index_select(0, places.clamp(min=0))
        if not bool(is_present.all()):
            found[~is_present] = start(keys[~is_present])
        return found

    @torch.no_grad()
    def get(self, committed: int) -> dict[str, Any]:
        """Return all that the table has after so many steps, in the order of keys; copies."""
        keys, places = self.roster.items(committed)
        candidates = self.roster.candidates
        waiting = (
            []
            if candidates is None
            else [*candidates.items(committed), candidates.first_steps(committed).clone()]
        )
        return {
            KEYS: keys,
            "fields": {name: field.index_select(0, places) for name, field in self.fields.items()},
            "changed": self.roster.changed.index_select(0, places),
            CANDIDATES: waiting,
        }

    @torch.no_grad()
    def fill(self, tree: Mapping[str, Any], fresh: Mapping[str, float]) -> None:
        """Store the content of `get`, and nothing else.

        No other process may use the table meanwhile.

        Args:
            tree: of `get`.
            fresh: the optimizer's state of a row before its first step, where the tree has nothing
                of it.

        Raises:
            SpecError: there is no room for as many rows.
        """
        self.clear()
        keys, weight = tree[KEYS], tree["fields"][WEIGHT]
        if weight.shape[1:] != self.fields[WEIGHT].shape[1:] or weight.dtype != self.dtype:
            raise SpecError(
                f"embedding {self.name!r}",
                got=f"a state with rows of {weight.shape[1]} numbers of {weight.dtype}",
                need=f"rows of {self.fields[WEIGHT].shape[1]} numbers of {self.dtype}, as the "
                "model has them",
            )
        places = self.roster.index.reserve(keys)
        if len(places) and int(places.min()) < 0:
            raise SpecError(
                f"limit={self.rules.limit} of embedding {self.name!r}",
                got=f"a state with {counted(len(keys), 'row')}",
                need="room for them: a limit as large as it was",
            )
        for name, field in self.fields.items():
            rows = tree["fields"].get(name)
            field[places] = (
                rows if rows is not None else torch.full((1, 1), fresh[name], dtype=self.dtype)
            )
        self.roster.changed[places] = tree["changed"]
        self.roster.index.insert(keys, places)
        if self.roster.candidates is not None and tree[CANDIDATES]:
            self.roster.candidates.fill(*tree[CANDIDATES])

    def clear(self) -> None:
        """Remove all rows, and all that could be taken back.

        No other process may use the table meanwhile.
        """
        self._heads.zero_()
        self.roster.clear()
        self.changes.forget()
        self.changes_of_candidates.forget()

    # A step ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def log(
        self, keys: Tensor, change: KeyRosterChange, partitions: range, *, step: int, owner: int
    ) -> dict[str, Tensor]:
        """Log the rows before a change.

        Args:
            keys: of the rows that change.
            change: their change.
            partitions: of the owner.
            step: that is about to be committed, from 1.
            owner: the writer; each has a log of its own.

        Returns:
            The present values of each field, [M, D]: views of the log.
        """
        head, counted = self._heads[owner], change.counted
        rows, known_starts = self._starts(partitions.start)
        part = slice(rows, rows + len(change.places))
        self._keys[part], self._places[part] = keys, change.places
        self._created[rows : rows + len(change.created)] = change.created
        torch.index_select(self.roster.changed, 0, change.places, out=self._changed[part])
        for name, field in self.fields.items():
            torch.index_select(field, 0, change.places, out=self._logged[name][part])
        if counted is not None:
            assert self.roster.candidates is not None, "who counts has them"
            changed = self.roster.candidates.changed[counted.places]
            logged = (counted.known, counted.places, changed, counted.new, counted.before)
            for log, values in zip(self._counted, logged, strict=True):
                log[known_starts : known_starts + len(values)] = values
        sizes = (0, 0) if counted is None else (len(counted.places), len(counted.new))
        head[:_STEP] = torch.tensor(
            [partitions.start, partitions.stop, len(change.places), len(change.created), *sizes]
        )
        head[_STEP] = step  # last: from here on the log stands
        return {name: logged[part] for name, logged in self._logged.items()}

    @torch.no_grad()
    def write(self, change: KeyRosterChange, rows: Mapping[str, Tensor], *, step: int) -> None:
        """Write rows, and their owners; all that was logged."""
        for name, field in self.fields.items():
            field.index_copy_(0, change.places, rows[name])
        self.roster.write(step - 1, change)

    def settle(self, step: int) -> None:
        """A step counts; no worker has begun to write the next."""
        rows, candidates = self.changes.first, self.changes_of_candidates.first
        if rows is None and candidates is None:
            return
        written, seen = [no_keys := torch.empty(0, dtype=torch.int64)], [no_keys]
        for owner in (self._heads[:, _STEP] == step).nonzero().flatten().tolist():
            log = self._log_of(owner)
            if rows is not None:
                written += [log.keys[log.changed <= rows], log.created]
            if candidates is not None:
                seen += [log.known[log.known_changed <= candidates], log.new]
        self.changes.add(step, torch.cat(written).numpy())
        self.changes_of_candidates.add(step, torch.cat(seen).numpy())

    def tells_full(self, refused: int) -> bool:
        """Return whether rows had no room and this host was not told so.

        Later calls return False.
        """
        if not refused or self._notices:
            return False
        self._notices.fill_(1)
        return True

    @torch.no_grad()
    def take_back(self, committed: int) -> None:
        """Undo the writes for steps beyond the committed ones."""
        for owner in (self._heads[:, _STEP] > committed).nonzero().flatten().tolist():
            log = self._log_of(owner)
            for name, field in self.fields.items():
                field.index_copy_(0, log.places, self._logged[name][log.rows])
            self.roster.take_back(log.created, log.places, log.changed)
            if self.roster.candidates is not None:
                self.roster.candidates.take_back(
                    committed,
                    log.partitions,
                    log.new,
                    log.known_places,
                    log.before,
                    log.known_changed,
                )
        self._heads[:, _STEP] = 0

    def _log_of(self, owner: int) -> _Log:
        start, stop, rows, created, known_count, new, _ = self._heads[owner].tolist()
        first, first_known = self._starts(start)
        part, is_known = slice(first, first + rows), slice(first_known, first_known + known_count)
        keys, places, changed, fresh, counts_before = self._counted
        return _Log(
            partitions=range(start, stop),
            rows=part,
            keys=self._keys[part],
            places=self._places[part],
            changed=self._changed[part],
            created=self._created[first : first + created],
            known=keys[is_known],
            known_places=places[is_known],
            known_changed=changed[is_known],
            before=counts_before[is_known],
            new=fresh[first_known : first_known + new],
        )

    def _starts(self, partition: int) -> tuple[int, int]:
        """Return where the logs of rows and of candidates begin, from this partition on."""
        return partition * self.rules.shape.places, partition * self.rules.candidates.places
