"""Embeddings that are trained by rows.

A step takes time for the rows that it looks up, not for all rows.

torch gives an embedding's weight a gradient of its own size, and optimizers walk over all of it.
Here a lookup gathers the rows that it needs into a small tensor, whose gradient is kept; then the
optimizer steps on the step's rows as on one small parameter. Where the optimizer would leave all
other rows as they are (SGD, Adagrad), the bits are those of the dense way.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from brim.domain.job import JobSpec
from brim.domain.step_records import TableFacts, TableTraffic
from brim.embeddings.keyed import Embedding
from brim.embeddings.keyed_rows import KeyedRows
from brim.embeddings.rows import GradientRows, OwnedRows, no_rows, total_of
from brim.embeddings.table_file import NumberedRows, RowTable
from brim.embeddings.tables.by_rows import (
    SUPPORTED_OPTIMIZERS,
    ParameterPlace,
    moves_others,
    places_of,
)
from brim.embeddings.tables.capacity import available_bytes, check_room, check_whole
from brim.embeddings.tables.kernels import distinct_of, gather
from brim.embeddings.tables.keyed_table import KeyedTable
from brim.embeddings.tables.keys import mix
from brim.embeddings.tables.memory import TableMemory
from brim.embeddings.tables.table import WEIGHT, Table
from brim.embeddings.tables.tree import states_of
from brim.embeddings.trained_by_rows import TrainedByRows
from brim.errors import SpecError
from brim.tensors.compiled import is_compiled

# Elements of a weight from which on a dense gradient costs more than finding the distinct rows
# (benchmarks/embeddings).
LARGE = 1 << 20
_KINDS = (nn.Embedding, nn.EmbeddingBag)
# Of smaller floats an optimizer's result depends on where in a tensor an element lies.
_SAME_ANYWHERE = (torch.float32, torch.float64)
_DENSE = "--embeddings dense, without sparse=True"


class _Lookup(torch.autograd.Function):
    """The rows of ids, as `nn.Embedding` looks them up.

    The gradient goes to the table and not to the weight.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, module: _ByRows) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.module = module
        rows = weight.new_empty((*ids.shape, weight.shape[1]))
        gather(weight.contiguous(), ids.flatten(), rows.view(-1, weight.shape[1]))
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        table = ctx.module._brim_table
        ids, places = ctx.module._brim_embeddings.distinct(*ctx.saved_tensors)
        table.note_lookups(ids, places)
        values = gradient.new_zeros((len(ids), gradient.shape[-1]))
        # By int32 torch adds element by element, in the same order.
        values.index_add_(0, places.flatten().long(), gradient.reshape(-1, gradient.shape[-1]))
        padding = _place_of(ctx.module.padding_idx, ids)
        if padding is not None:
            values[padding] = 0
        table.receive(GradientRows(ids, values))
        return None, None, None


class _GatherOfIds(torch.autograd.Function):
    """The rows of distinct ids, whose gradient goes to the table and not to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, table: _Embedding) -> Tensor:
        ctx.ids, ctx.table = ids, table
        return weight.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.table.receive(GradientRows(ctx.ids, gradient))
        return None, None, None


class _Embedding(TrainedByRows):
    """The weight of one of torch's embeddings.

    Args:
        name: of the parameter.
        weight: shape [R, D].
        place: in its optimizer.
        modules: that look up in it.
        number: of its optimizer among those of the job.

    Attributes:
        table: where its rows are while the job runs.
    """

    def __init__(
        self,
        name: str,
        weight: nn.Parameter,
        place: ParameterPlace,
        modules: Sequence[nn.Module],
        *,
        number: int,
    ) -> None:
        super().__init__(name, weight, place, number=number, hint=_DENSE)
        self.modules = modules
        self.table = Table(name, weight.shape, weight.dtype, tuple(self._optimizer.states))
        self._hidden: Any = None  # what this process had before it saw the table

    @property
    def like(self) -> Tensor:
        """A tensor with the shape of the most rows that a micro-batch can have gradients for."""
        return self.weight

    def take(self) -> GradientRows | None:
        """Return the gradient that a micro-batch's backward passes left, or None."""
        received = self.take_received()
        whole, self.weight.grad = self.weight.grad, None
        if whole is not None:  # it is used in another way, too: then all rows have a gradient
            received.append(GradientRows(torch.arange(len(whole)), whole.to_dense()))
        return total_of(received) if received else None

    def check(self) -> None:
        """Raise SpecError where its optimizer, or a hook, cannot be done by rows."""
        obstacle = _why_not(self.weight, self.modules) or moves_others(self._place)
        if obstacle:
            raise SpecError(
                f"embedding weight {self.name!r}",
                got=obstacle,
                need=SUPPORTED_OPTIMIZERS,
                hint=_DENSE,
            )

    # The table ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Put this process's weight, and the optimizer's state of each row, into the table."""
        self.table.fill({WEIGHT: self.weight.detach(), **self._optimizer.start()})

    def fresh(self) -> dict[str, Tensor]:
        """Return the optimizer's state of rows that made no step, as one row for all."""
        return {
            name: torch.full((1, 1), value, dtype=self.weight.dtype)
            for name, value in self._optimizer.states.items()
        }

    def get(self) -> dict[str, Any]:
        """Return the table's part of a state: its own memory, not a copy."""
        return {"at": self.place, "fields": dict(self.table.fields), "changed": self.table.changed}

    def put(self, tree: Mapping[str, Any]) -> None:
        """Take the state that `get` gave on another host."""
        self.table.fill(tree["fields"], tree["changed"])

    def put_dense(self, tree: Mapping[str, Any], changed: Tensor | None) -> None:
        """Take the rows out of a state as a job without tables has it."""
        number, index = self.place
        state = self.fresh() | states_of(tree)[number].get(index, {})
        rows = {
            WEIGHT: tree["model"][self.name],
            **{name: state[name] for name in self.table.names[1:]},
        }
        self.table.fill(rows, changed)

    def show(self) -> None:
        """Let the user's code see the table."""
        seen, weight_before = dict(self.table.seen), self.weight.data
        self.weight.data = seen.pop(WEIGHT)
        self._hidden = weight_before, self._optimizer.show(seen)

    def settle(self) -> None:
        """The step counts; memory that the table hides is freed now, while all workers are free."""
        super().settle()
        self._hidden = None

    def update(self, part: OwnedRows, *, step: int) -> None:
        """Log and change the rows that this worker owns."""
        ids, gradient = part.rows
        if not part.owners:  # others own them all; what the optimizer keeps of the whole goes on
            self._optimizer.step(
                {name: field[:0] for name, field in self.table.fields.items()}, gradient
            )
            return
        rows = self.table.log(ids, step=step, owner=part.owner, at=part.start)
        self.table.write(ids, self._optimizer.step(rows, gradient), step=step)


class _ByRows(nn.Module):
    """Looks up in the step's rows where a gradient is wanted; else as its own class does."""

    # Of the class: copies of a module, which nobody trains by rows, must not have these.
    _brim_embeddings: Embeddings
    _brim_table: _Embedding
    _brim_class: type[nn.Module]
    _brim_is_lookup: bool  # its forward is that of `nn.Embedding`

    def forward(self, input: Tensor, *rest: Any, **named: Any) -> Any:
        look_up, table = super().forward, self._brim_table
        weight = self._parameters["weight"]
        if weight is not table.weight or not weight.requires_grad or not _is_plain_training():
            return look_up(input, *rest, **named)
        if self._brim_is_lookup and not self.scale_grad_by_freq:
            rows: Tensor = _Lookup.apply(weight, input, self)  # type: ignore[no-untyped-call]
            return rows
        distinct, places = self._brim_embeddings.distinct(input)
        table.note_lookups(distinct, places)
        attributes = vars(self)
        changed_attributes = {name: attributes[name] for name in ("padding_idx", "sparse")}
        attributes.update(
            padding_idx=_place_of(changed_attributes["padding_idx"], distinct), sparse=False
        )
        self._parameters["weight"] = _GatherOfIds.apply(weight, distinct, table)  # type: ignore[no-untyped-call]
        try:
            return look_up(places, *rest, **named)
        finally:
            self._parameters["weight"] = weight
            attributes.update(changed_attributes)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let copies and pickles be of the module's own class; protocol 1 calls for no other."""
        reduced: tuple[Any, ...] = super().__reduce_ex__(1)  # type: ignore[assignment]
        arguments = [self._brim_class if part is type(self) else part for part in reduced[1]]
        return reduced[0], tuple(arguments), *reduced[2:]


def _is_plain_training() -> bool:
    """Return whether a lookup is for a plain backward pass, without a transform of functions."""
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def _own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that the user gave a module.

    Another job's loop over it may not have ended.
    """
    return module._brim_class if isinstance(module, _ByRows) else type(module)


def _place_of(id: int | None, distinct: Tensor) -> int | None:
    if id is None:
        return None
    places = (distinct == id).nonzero()
    return int(places[0]) if len(places) else None


class _InBackward:
    """The backward pass of `job.step`, of which embeddings know that it is no other.

    Args:
        embeddings: that are to know it.
    """

    def __init__(self, embeddings: Sequence[TrainedByRows]) -> None:
        self._embeddings = embeddings

    def __enter__(self) -> None:
        for embedding in self._embeddings:
            embedding.is_backward = True

    def __exit__(self, *_: object) -> None:
        for embedding in self._embeddings:
            embedding.is_backward = False


class Embeddings:
    """The embeddings of a network that are trained by rows.

    Those are they whose weight is large and whose optimizer moves only rows with a gradient, and
    those that say `sparse=True`, as torch has it.

    Args:
        model: the network.
        optimizers: of its parameters.
        spec: of the job.
        obstacle: a reason why none can be; empty where there is none.

    Attributes:
        weights: shape [R, D] each; of embeddings of large spaces, what has as many rows as a step
            may move.
        partitions: that each table's rows are in; 0 where they are cut again in each step.
        names: of these parameters.
        delay: steps that tables change late.
        committed: tells the number of committed steps; the job sets it.
        is_shown: whether the user's code sees the tables as weights.
        in_backward: a context, the backward pass of `job.step`.

    Raises:
        SpecError: one says `sparse=True`, or is a `brim.Embedding`, and cannot be trained by rows.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        spec: JobSpec,
        *,
        obstacle: str = "",
    ) -> None:
        self._seen: dict[tuple[int, torch.dtype, bool], tuple[Tensor, Tensor, Tensor]] = {}
        self._all: list[_Embedding | KeyedRows] = []
        self.in_backward = _InBackward(self._all)
        self.committed: Callable[[], int] = lambda: 0
        self._memory: TableMemory | None = None
        self.delay = spec.delay
        self._late: list[list[GradientRows]] = []  # of the last steps, whose turn has not come
        self._coming: list[GradientRows] | None = None  # of this step
        self.is_shown = False
        obstacle = obstacle or (
            "--transport distributed" if spec.transport == "distributed" else ""
        )
        users = _users_of(model)
        large = {
            len(weight)
            for weight in model.parameters()
            if weight.numel() >= LARGE
            and all(_is_weight_of(user, weight) for user in users[id(weight)])
        }
        for name, weight in model.named_parameters():
            modules = users[id(weight)]
            if any(isinstance(module, Embedding) for module in modules):
                if not weight.requires_grad:
                    raise SpecError(
                        f"embedding {name.removesuffix('.weight')!r}",
                        got="a brim.Embedding that is frozen",
                        need="a trained one: checkpoints hold trained rows only",
                        hint="a parameter group with lr=0, or nn.Embedding.from_pretrained(rows)",
                    )
                self._all.append(
                    self._keyed(name, weight, modules, optimizers, obstacle or _is_compiled(model))
                )
                continue
            if not weight.requires_grad or not all(
                _is_weight_of(module, weight) for module in modules
            ):
                continue
            declared = any(module.sparse for module in modules)
            places = list(places_of(optimizers, weight))
            obstacle_here = obstacle or _why_not(weight, modules) or _why_not_there(places)
            if declared and obstacle_here:
                raise SpecError(
                    f"embedding {name.removesuffix('.weight')!r}",
                    got=f"sparse=True, and {obstacle_here}",
                    need=f"a CPU and {SUPPORTED_OPTIMIZERS}",
                    hint="leave sparse=True out",
                )
            if obstacle_here or not (
                declared or _is_worth_it(weight, places[0], model, spec, large)
            ):
                continue
            number = _number_of(optimizers, places[0])
            self._all.append(_Embedding(name, weight, places[0], modules, number=number))
        if self.delay and not self._all:
            raise SpecError(
                "--delay",
                got=f"{self.delay} for a model without an embedding that is trained by rows",
                need="one: see docs/guides/embeddings.md",
                hint="leave it out",
            )
        if self._keyed_rows:
            self._check_labels()
        self.weights = [embedding.like for embedding in self._all]
        self.names = [embedding.name for embedding in self._all]
        self.partitions = [
            embedding.table.partitions if isinstance(embedding, KeyedRows) else 0
            for embedding in self._all
        ]

    def _check_labels(self) -> None:
        """Raises SpecError where two embeddings have one name."""
        label, count = Counter(rows.size[0] for rows in self._keyed_rows).most_common(1)[0]
        if count > 1:
            raise SpecError(
                "brim.Embedding: name",
                got=f"{label!r} for {count} embeddings",
                need="a different name for each, or none",
            )

    def _keyed(
        self,
        name: str,
        weight: nn.Parameter,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        obstacle: str,
    ) -> KeyedRows:
        places = list(places_of(optimizers, weight))
        module, *further = modules
        obstacle_here = (
            obstacle
            or _where_not(places)
            or ("a weight that another module has, too" if further else "")
        )
        if not isinstance(module, Embedding) or obstacle_here:
            raise SpecError(
                f"embedding {name.removesuffix('.weight')!r}",
                got=obstacle_here,
                need="a brim.Embedding of one optimizer, on a CPU",
            )
        return KeyedRows(
            name,
            module,
            places[0],
            number=_number_of(optimizers, places[0]),
            distinct=self.distinct,
            committed=lambda: self.committed(),
        )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have the modules look up by rows meanwhile.

        They are of classes made for it.
        """
        tables = [embedding for embedding in self._all if isinstance(embedding, _Embedding)]
        classes = [(module, _own_class(module)) for table in tables for module in table.modules]
        for table in tables:
            for module in table.modules:
                module.__class__ = _class_by_rows(_own_class(module), self, table)
        try:
            yield
        finally:
            for module, kind in classes:
                module.__class__ = kind
            for embedding in self._all:
                if isinstance(embedding, KeyedRows):
                    embedding.is_jobs = False

    # Micro-batches --------------------------------------------------------------------------------

    def distinct(self, ids: Tensor, *, as_keys: bool = False) -> tuple[Tensor, Tensor]:
        """Return the distinct ids, or their keys, ascending, and of each id its place among them.

        Several tables are often asked for the same ids.
        """
        key = (
            id(ids),
            ids.dtype,
            as_keys,
        )  # another tensor may have that number by now: the values decide
        seen_ids, distinct, places = self._seen.get(key, (None, ids, ids))
        if seen_ids is None or not torch.equal(seen_ids, ids):
            values = mix(ids.long()) if as_keys else ids
            distinct, places = distinct_of(values)
            distinct, places = distinct.long(), places.to(ids.dtype)
            if (
                not torch.is_inference_mode_enabled()
            ):  # what is made there can be in no backward pass
                self._seen[key] = ids.clone(), distinct, places
        return distinct, places

    @property
    def modules(self) -> list[nn.Module]:
        """Return the modules that look up by rows."""
        return [module for embedding in self._all for module in embedding.modules]

    def reads(self) -> list[int]:
        """Return how many rows of each table were read since `traffic` was asked for last."""
        return [embedding.read for embedding in self._all]

    def put_reads(self, reads: Sequence[int]) -> None:
        """Forget lookups since `reads`: they are made once more."""
        for embedding, read in zip(self._all, reads, strict=True):
            embedding.read = read

    def begin(self) -> None:
        """A micro-batch begins: the leftovers of another are forgotten."""
        self._seen.clear()
        for embedding in self._all:
            embedding.begin()

    def take(self) -> tuple[list[GradientRows], list[bool]]:
        """Take the gradients of a micro-batch's backward passes.

        Returns:
            The gradient of each weight, and whether it has one.
        """
        if not self._all:
            return [], []
        parts = [embedding.take() for embedding in self._all]
        rows = [
            no_rows(embedding.weight) if part is None else part
            for embedding, part in zip(self._all, parts, strict=True)
        ]
        return rows, [part is not None for part in parts]

    def check(self) -> None:
        """Raise SpecError where an optimizer, or a hook, cannot be done by rows."""
        for embedding in self._all:
            embedding.check()

    def no_rows(self) -> list[GradientRows]:
        """Return the rows of a micro-batch without samples."""
        return [no_rows(weight) for weight in self.weights]

    # The tables -----------------------------------------------------------------------------------

    @property
    def tables(self) -> list[Table | KeyedTable]:
        return [embedding.table for embedding in self._all]

    @property
    def step(self) -> int | None:
        """Return the committed steps that this host's tables have.

        None where nothing was put into them.
        """
        return None if self._memory is None else self._memory.step

    @step.setter
    def step(self, step: int | None) -> None:
        if self._memory is not None:
            self._memory.step = step

    def open(self, descriptor: int | None) -> None:
        """Take the memory that the tables are in.

        It is an anonymous file, or, where that is None, memory of this process.
        """
        if self._all and self._memory is None:
            if descriptor is None or os.fstat(descriptor).st_size == 0:
                self._check_room(available_bytes())
            self._memory = TableMemory(self.tables, descriptor)

    def _check_room(self, available: int | None) -> None:
        """Raises SpecError where the tables do not fit into so many bytes."""
        for embedding in self._all:
            if isinstance(embedding, _Embedding):
                check_whole(embedding.name, embedding.table.kept_bytes, available)
                available = None if available is None else available - embedding.table.kept_bytes
        check_room(
            [embedding.size for embedding in self._all if isinstance(embedding, KeyedRows)],
            available,
        )

    @contextlib.contextmanager
    def without_states(self) -> Iterator[None]:
        """Let optimizers say nothing of rows meanwhile."""
        for rows in self._keyed_rows:
            rows.tells_states = False
        try:
            yield
        finally:
            for rows in self._keyed_rows:
                rows.tells_states = True

    def take_out(self, tree: dict[str, Any]) -> None:
        """Leave the tables' content out of a state."""
        for embedding in self._all:
            tree["model"].pop(embedding.name)
        self.drop_states(tree)

    def drop_states(self, tree: Mapping[str, Any]) -> None:
        """Leave the optimizers' rows out of a state, as a job without tables has it."""
        states = states_of(tree)
        for embedding in self._all:
            number, index = embedding.place
            if index in states[number]:
                states[number][index] = embedding.whole(states[number][index])

    def get(self) -> dict[str, Any]:
        """Return the tables' part of a state: their own memory, not a copy."""
        return {embedding.name: embedding.get() for embedding in self._all}

    @property
    def rows(self) -> list[RowTable]:
        """The tables as checkpoints see them now."""
        if self._memory is None:
            return []
        return [
            *self._numbered(),
            *(rows for keyed_embedding in self._keyed_rows for rows in keyed_embedding.stored()),
        ]

    def _numbered(self) -> Iterator[NumberedRows]:
        for table in (embedding.table for embedding in self._ordinary):
            table.changes.reach(self.committed())
            yield NumberedRows(table.name, table.fields, table.changed, table.changes)

    @property
    def _ordinary(self) -> list[_Embedding]:
        return [embedding for embedding in self._all if isinstance(embedding, _Embedding)]

    @property
    def keyed(self) -> set[str]:
        """Names of the weights of embeddings of large spaces."""
        return {rows.name for rows in self._keyed_rows}

    @property
    def _keyed_rows(self) -> list[KeyedRows]:
        return [embedding for embedding in self._all if isinstance(embedding, KeyedRows)]

    def places(self) -> dict[str, list[int]]:
        """Return of each table which optimizer of the job has it, and its number there."""
        return {embedding.name: list(embedding.place) for embedding in self._all}

    def clear(self) -> None:
        """Prepare for rows that are put in one by one; `step` tells when all are there."""
        self.step = None
        for embedding in self._all if self._memory is not None else []:
            embedding.table.clear()

    def put_dense(
        self, tree: Mapping[str, Any], changed: Mapping[str, Tensor], committed: int
    ) -> None:
        """Take the rows out of a state as a job without tables has it, if they are there.

        Args:
            tree: the state.
            changed: of each table, the steps that wrote its rows last, where that is known.
            committed: steps that the state has.
        """
        tables = self._ordinary
        if (
            self._memory is None
            or not tables
            or not all(table.name in tree["model"] for table in tables)
        ):
            return
        self.step = None
        for table in tables:
            table.put_dense(tree, changed.get(table.name))
        self._memory.step = committed

    def late(self) -> list[list[list[Tensor]]]:
        """Return the changes whose turn has not come, as a part of a state.

        Each has its step, table, ids and values.
        """
        return [[[rows.ids, rows.values] for rows in step] for step in self._late]

    def put_late(self, steps: Sequence[Sequence[Sequence[Tensor]]]) -> None:
        """Take the changes that `late` gave elsewhere."""
        self._late = [[GradientRows(ids, values) for ids, values in step] for step in steps]

    def put(self, tree: Mapping[str, Any]) -> None:
        """Take the state that `get` gave on another host; `step` tells when all members know."""
        self.step = None
        for embedding in self._all:
            embedding.put(tree[embedding.name])

    def start(self, committed: int) -> None:
        """Put this process's weights into the tables, unless it sees the tables already."""
        if self._memory is None or self.is_shown:
            return
        self.step = None
        for embedding in self._all:
            embedding.start()
        self._memory.step = committed

    def show(self) -> None:
        """Let the user's code see the tables as weights.

        Loading an optimizer's state would hide them again.
        """
        for embedding in self._all if self._memory is not None else []:
            embedding.show()
        self.is_shown = True

    def take_back(self, committed: int) -> None:
        """Undo the writes for steps that do not count. No worker may write meanwhile."""
        if self._memory is not None:
            self._memory.take_back(committed)

    def be_alone(self, patience: float) -> None:
        """Wait until no other process can write to the tables.

        Raises EnvironmentFault as `TableMemory.be_alone`.
        """
        if self._memory is not None:
            self._memory.be_alone(patience)

    def check_unchanged(self) -> None:
        """Check that only the optimizer changed a weight.

        Raises:
            SpecError: the user's code did.
        """
        if self._memory is not None and self.is_shown and self._memory.is_written_to:
            raise SpecError(
                f"embedding weight {', '.join(map(repr, self.names))}",
                got="a value that was changed by hand",
                need="a weight that only the optimizer changes: workers share the tables of "
                "embeddings",
                hint=_DENSE,
            )

    def facts(self) -> list[TableFacts]:
        """Return the facts of the tables for people."""
        return [
            TableFacts(
                name=table.name, rows=table.shape[0], dim=table.shape[1], bytes=table.kept_bytes
            )
            for table in self.tables
        ]

    def sample_lookups(self) -> None:
        """Have the next lookup in each table say which rows are looked up most."""
        for embedding in self._all:
            embedding.samples_lookups = True

    def traffic(self, owned: Sequence[OwnedRows]) -> dict[str, TableTraffic]:
        """Return this worker's traffic with each table since the last call.

        Args:
            owned: the rows that it applies.
        """
        return {
            embedding.name: embedding.traffic(len(part.rows.ids))
            for embedding, part in zip(self._all, owned, strict=True)
        }

    # The sum --------------------------------------------------------------------------------------

    def put_off(self, rows: list[GradientRows]) -> list[GradientRows]:
        """Queue the rows of a step until `delay` more steps have come.

        Returns:
            Those whose turn it is, of each table; none where there are not as many steps yet.
        """
        self._coming = rows
        return self._late[0] if len(self._late) == self.delay else []

    def update(self, parts: Sequence[OwnedRows | None], *, step: int) -> None:
        """Change the rows that this worker owns.

        `take_back` undoes it; `settle` says that the step counts.

        Args:
            parts: of each table, None where it does not change.
            step: that is about to be committed, from 1.
        """
        for embedding, part in zip(self._all, parts, strict=True):
            embedding.forget()
            if part is not None:
                embedding.update(part, step=step)

    def newly_full(self) -> list[str]:
        """Return the embeddings that had no room for a row that this worker should have added.

        Each is returned once.
        """
        found = []
        for embedding in self._all:
            if isinstance(embedding, KeyedRows) and embedding.table.tells_full(embedding.refused):
                found.append(embedding.size[0])
        return found

    def settle(self) -> None:
        """The updated step counts; no worker has begun to write the next."""
        for embedding in self._all:
            embedding.settle()
            embedding.table.settle(self.committed() + 1)
        if self._coming is not None:
            self._late = [*self._late[len(self._late) == self.delay :], self._coming]
            self._coming = None


def _users_of(model: nn.Module) -> dict[int, list[nn.Module]]:
    """The modules that hold each parameter."""
    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            users.setdefault(id(parameter), []).append(module)
    return users


def _is_weight_of(module: nn.Module, parameter: nn.Parameter) -> bool:
    return isinstance(module, _KINDS) and module._parameters.get("weight") is parameter


def _is_worth_it(
    weight: nn.Parameter,
    place: ParameterPlace,
    model: nn.Module,
    spec: JobSpec,
    large: Collection[int],
) -> bool:
    """Return whether to train by rows an embedding that does not ask for it.

    It must be large, and the bits stay the same.

    Args:
        large: numbers of rows of large embeddings. One with as many is mostly asked for the same
            ids, which are made distinct once for both.
    """
    if spec.embeddings == "dense" or spec.clip_norm is not None or is_compiled(model):
        return False  # a norm over fewer numbers adds up in another order
    if place.group.get("eps") == 0:  # 0 / 0 is not a number, in every row
        return False
    return len(weight) in large


def _why_not(weight: nn.Parameter, modules: Sequence[nn.Module]) -> str:
    """Say why an embedding's weight cannot be trained by rows.

    Empty where it can.
    """
    if not all(only_looks_up(module) for module in modules):
        return "a forward of its own"
    if any(module.max_norm is not None for module in modules):
        return "max_norm, which changes the weight in forward"
    if weight.dtype not in _SAME_ANYWHERE:
        return f"a weight of {str(weight.dtype).removeprefix('torch.')}"
    if weight.device.type != "cpu":
        return f"a weight on {weight.device.type}"
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return "a hook on its weight"
    return ""


def only_looks_up(module: nn.Module) -> bool:
    """Return whether a module's `forward` does nothing but look up ids in its weight.

    Torch's own does, or one that says so.
    """
    if "forward" in vars(module):
        return False
    kind = _forward_of(_own_class(module))
    return kind in _KINDS or bool(vars(kind).get("by_rows"))


def _forward_of(kind: type[nn.Module]) -> type[nn.Module]:
    """The class whose `forward` a class has."""
    return next(base for base in kind.__mro__ if "forward" in vars(base))


def _where_not(places: Sequence[ParameterPlace]) -> str:
    if len(places) != 1:
        return (
            "a weight that no optimizer has"
            if not places
            else "a weight that two parameter groups have"
        )
    return ""


def _why_not_there(places: Sequence[ParameterPlace]) -> str:
    return _where_not(places) or moves_others(places[0])


def _number_of(optimizers: Sequence[torch.optim.Optimizer], place: ParameterPlace) -> int:
    return next(
        number for number, optimizer in enumerate(optimizers) if optimizer is place.optimizer
    )


def _is_compiled(model: nn.Module) -> str:
    return "torch.compile" if is_compiled(model) else ""


def _class_by_rows(
    original: type[nn.Module], embeddings: Embeddings, table: _Embedding
) -> type[_ByRows]:
    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    members = {
        "_brim_embeddings": embeddings,
        "_brim_table": table,
        "_brim_class": original,
        "_brim_is_lookup": _forward_of(original) is nn.Embedding,
    }
    return type(original.__name__, (_ByRows, original), {**names, **members})
