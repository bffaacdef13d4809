"""A weight that is trained by rows.

The gradients that it receives, and its place in its optimizer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brim.domain.step_records import TableTraffic
from brim.embeddings.rows import GradientRows, total_of
from brim.embeddings.tables.by_rows import ParameterPlace, RowOptimizer
from brim.errors import SpecError

_HOTTEST = 5  # rows that a sample names


class TrainedByRows:
    """An embedding's weight that is trained by rows.

    Args:
        name: of the parameter.
        weight: the parameter.
        place: in its optimizer.
        number: of its optimizer among those of the job.
        hint: the remedy where gradients are computed in another way.

    Attributes:
        is_backward: `job.step` is at its backward pass.
        read: distinct rows of each micro-batch since `traffic` was asked for last.
        samples_lookups: the next lookup says which rows are looked up most.
    """

    def __init__(
        self, name: str, weight: nn.Parameter, place: ParameterPlace, *, number: int, hint: str
    ) -> None:
        self.name, self.weight, self.is_backward = name, weight, False
        self._place, self._number, self._hint = place, number, hint
        self._optimizer = RowOptimizer(weight, place)
        self.read, self.samples_lookups = 0, False
        self._hottest: tuple[tuple[int, int], ...] = ()
        self._received: dict[
            int, list[GradientRows]
        ] = {}  # by backward pass, in the order in which these end

    # Gradients ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A micro-batch begins: the leftovers of another are forgotten."""
        self._received.clear()

    def receive(self, rows: GradientRows) -> None:
        """Keep the gradient of a lookup.

        Raises:
            SpecError: another backward pass than that of `job.step` met it.
        """
        if not self.is_backward:
            raise SpecError(
                f"embedding weight {self.name!r}",
                got="a gradient that is computed outside of job.step",
                need="job.step(loss) alone: the embedding is trained by rows, and its weight has "
                "no gradient",
                hint=self._hint,
            )
        # One pass may run within another (a reentrant checkpoint). Each adds up its own gradient of
        # a weight first.
        number = torch._C._current_graph_task_id()
        self._received[number] = [*self._received.pop(number, []), rows]

    def take_received(self) -> list[GradientRows]:
        """Return the sum of each backward pass, in the order of their ends, and forget them."""
        received = [total_of(lookups) for lookups in self._received.values()]
        self._received.clear()
        return received

    # Traffic --------------------------------------------------------------------------------------

    def note_lookups(self, distinct: Tensor, places: Tensor) -> None:
        """Count the rows that are read, and now and then how often each is looked up."""
        self.read += len(distinct)
        if self.samples_lookups and len(distinct):
            self.samples_lookups = False
            counts = torch.bincount(places.flatten().long(), minlength=len(distinct))
            hottest = counts.topk(min(_HOTTEST, len(counts)))
            ids = self.named(distinct.index_select(0, hottest.indices))
            self._hottest = tuple(zip(ids.tolist(), hottest.values.tolist(), strict=True))

    def named(self, ids: Tensor) -> Tensor:
        """Return ids of rows as people know them."""
        return ids

    def traffic(self, changed: int) -> TableTraffic:
        """Return the counts since the last call."""
        found = TableTraffic(read=self.read, changed=changed, hottest=self._hottest)
        self.read, self._hottest = 0, ()
        return found

    # The optimizer --------------------------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int]:
        """Return the number of the optimizer that has the weight, and the weight's number there."""
        preceding = itertools.takewhile(lambda p: p is not self.weight, self._place.parameters)
        return self._number, len(list(preceding))

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the optimizer's state of the whole weight."""
        return {name: value for name, value in state.items() if name not in self._optimizer.states}

    def forget(self) -> None:
        """A step that was computed does not count."""
        self._optimizer.forget()

    def settle(self) -> None:
        """The step counts."""
        self._optimizer.settle()
