"""A `brim.Embedding` within a job: its rows are in a table that workers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from brim.domain.quantities import counted
from brim.embeddings.keyed import Embedding, HeldRows, held_by, is_used, start_of, use
from brim.embeddings.rows import GradientRows, OwnedRows, total_of
from brim.embeddings.rows_by_key import RowsByKey
from brim.embeddings.tables.by_rows import LAZILY, ParameterPlace, moves_others, states_of_row
from brim.embeddings.tables.capacity import Size
from brim.embeddings.tables.keyed_table import CANDIDATES, KEYS, KeyedTable, partitions_of
from brim.embeddings.tables.keys import unmix
from brim.embeddings.tables.table import WEIGHT
from brim.embeddings.trained_by_rows import TrainedByRows
from brim.errors import SpecError

_COUNT = "count"  # of a candidate, in a checkpoint
_MOST_IDS = 1 << 22  # distinct ones of a step; memory is taken by those that come alone


class Distinct(Protocol):
    """Finds the distinct keys of ids, and of each id the place of its key among them."""

    def __call__(self, ids: Tensor, *, as_keys: bool) -> tuple[Tensor, Tensor]: ...


class KeyedRows(TrainedByRows):
    """The rows of a `brim.Embedding` in a job.

    Args:
        name: of the parameter.
        module: the embedding.
        place: in its optimizer.
        number: of its optimizer among those of the job.
        distinct: finds the distinct keys of ids.
        committed: tells the number of committed steps.

    Attributes:
        table: where its rows are while the job runs.
        is_jobs: the job's loop has not ended.
        refused: ids that would have got a row, if there were room, since the last query.
        modules: that look up in it.
        tells_states: the optimizer's state of each row is in its `state_dict`, in the order of the
            module's ids.

    Raises:
        SpecError: the optimizer cannot step by rows.
    """

    def __init__(
        self,
        name: str,
        module: Embedding,
        place: ParameterPlace,
        *,
        number: int,
        distinct: Distinct,
        committed: Callable[[], int],
    ) -> None:
        self._module, self._distinct, self._committed = module, distinct, committed
        self.modules = (module,)
        self.is_jobs = True
        self._label = module.name or name.removesuffix(".weight")
        if obstacle := moves_others(place, lazily=True):
            raise self._refusal(obstacle)
        super().__init__(
            name, module.weight, place, number=number, hint="use no torch.autograd.grad on it"
        )
        self.table = KeyedTable(
            name, module.dim, module.weight.dtype, tuple(self._optimizer.states), module.rules
        )
        self.refused, self.tells_states = 0, True
        place.optimizer.register_state_dict_post_hook(self._tell_states)

    def _refusal(self, obstacle: str) -> SpecError:
        return SpecError(f"embedding {self._label!r}", got=obstacle, need=LAZILY)

    @property
    def like(self) -> Tensor:
        """A tensor with the shape of the most rows of a micro-batch's gradient.

        It takes no memory.
        """
        return self.weight.new_empty(self._module.dim).expand(_MOST_IDS, self._module.dim)

    @property
    def size(self) -> tuple[str, Size]:
        """The name, and the bytes of the full table."""
        states, dtype = len(self._optimizer.states), self.weight.dtype
        return self._label, Size(self._module.dim, states, self._module.rules, dtype)

    # Lookups --------------------------------------------------------------------------------------

    def distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct keys of ids, ascending, and the place of each id's key among them."""
        keys, places = self._distinct(ids, as_keys=True)
        if torch.is_grad_enabled():
            self.note_lookups(keys, places)
        return keys, places

    def named(self, ids: Tensor) -> Tensor:
        """Return the ids of keys."""
        return unmix(ids)

    def rows(self, keys: Tensor) -> Tensor:
        """Return the rows of keys, [N, D]."""
        return self.table.rows(keys, self._committed(), partial(start_of, self._module))

    def rows_held(self) -> HeldRows:
        """Return the rows that are there."""
        keys, places = self.table.roster.items(self._committed())
        return HeldRows(keys, self.table.fields[WEIGHT].index_select(0, places))

    def take(self) -> GradientRows | None:
        """Return the gradient that a micro-batch's backward passes left, or None."""
        received = self.take_received()
        return total_of(received) if received else None

    def check(self) -> None:
        """Raise SpecError where its optimizer, or a hook, cannot be done by rows."""
        obstacle = moves_others(self._place, lazily=True)
        if not obstacle and states_of_row(self._place).keys() != self._optimizer.states.keys():
            obstacle = "an optimizer that keeps more of a row than it did at the start"
        if obstacle:
            raise self._refusal(obstacle)

    # The table ------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """Return the table's part of a state: copies, in the order of keys."""
        return {"at": self.place, **self.table.get(self._committed())}

    def stored(self) -> list[RowsByKey]:
        """Return the table, and its candidates where it has any, as checkpoints see them now."""
        table, step = self.table, self._committed()
        for changes in (table.changes, table.changes_of_candidates):
            changes.reach(step)
        roster, candidates = table.roster, table.roster.candidates
        oldest = () if self._module.rules.expire_after is None else (roster.oldest(step),)
        rows = RowsByKey(
            self.name,
            roster.index,
            table.fields,
            roster.changed,
            step=step,
            oldest=oldest,
            changes=table.changes,
        )
        if candidates is None:
            return [rows]
        first_step = candidates.first_steps(step) + 1
        return [
            rows,
            RowsByKey(
                f"{self.name}, candidates",
                candidates.index,
                {_COUNT: candidates.counts.unsqueeze(1)},
                candidates.changed,
                step=step,
                oldest=tuple(first_step.tolist()),
                changes=table.changes_of_candidates,
            ),
        ]

    def put(self, tree: Mapping[str, Any]) -> None:
        """Take the state that `get` gave on another host."""
        self.table.fill(tree, self._optimizer.states)

    def start(self) -> None:
        """Put the module's rows into the table, with the optimizer's state of each.

        Raises:
            SpecError: it has as many of other rows.
        """
        keys, rows = held_by(self._module)
        state = self._place.optimizer.state_dict()["state"].get(self.place[1], {})
        states = {name: state[name] for name in self._optimizer.states if len(state.get(name, ()))}
        if wrong := {len(state) for state in states.values()} - {len(keys)}:
            raise SpecError(
                f"the optimizer's state of embedding {self._label!r}",
                got=f"that of {counted(wrong.pop(), 'row')}",
                need=f"that of the {counted(len(keys), 'row')} which the module has",
                hint="load the state dicts of both, of the same moment",
            )
        changed = torch.zeros(len(keys), dtype=torch.int64)
        self.put(
            {KEYS: keys, "fields": {WEIGHT: rows, **states}, "changed": changed, CANDIDATES: []}
        )
        optimizer_state = self._place.optimizer.state.get(self.weight, {})
        optimizer_state.update(
            {name: tensor[:0].clone() for name, tensor in optimizer_state.items() if name in states}
        )

    def show(self) -> None:
        """Have the module look up in the table, in the job and afterwards."""
        use(self._module, self)

    def _tell_states(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if not self.tells_states or not is_used(self._module, self):
            return
        _, places = self.table.roster.items(self._committed())
        rows = {
            name: self.table.fields[name].index_select(0, places) for name in self._optimizer.states
        }
        number = self.place[1]
        if rows:
            state["state"][number] = {**state["state"].get(number, {}), **rows}

    def update(self, part: OwnedRows, *, step: int) -> None:
        """Log and change the rows that this worker owns."""
        keys, gradient = part.rows
        if (
            not part.owners
        ):  # other workers own them all; what the optimizer keeps of the whole goes on
            empty = {name: field[:0] for name, field in self.table.fields.items()}
            self._optimizer.step(empty, gradient[:0])
            return
        partitions = partitions_of(self.table.partitions, part.owner, part.owners)
        roster = self.table.roster
        roster.begin(step - 1, partitions)
        change = roster.look(keys, step - 1)
        logged = self.table.log(
            keys[change.number], change, partitions, step=step, owner=part.owner
        )
        rows = {name: logged_field.clone() for name, logged_field in logged.items()}
        fresh = change.is_fresh
        rows[WEIGHT][fresh] = start_of(self._module, keys[change.number[fresh]])
        for name, value in self._optimizer.states.items():
            rows[name][fresh] = value
        updated = self._optimizer.step(rows, gradient.index_select(0, change.number))
        self.table.write(change, updated, step=step)
        self.refused += change.refused
