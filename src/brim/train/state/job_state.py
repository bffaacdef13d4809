"""The state of a job on one worker.

It is taken for a newcomer or a checkpoint, and put in place of another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from brim.domain.batch import Schedule
from brim.domain.job import JobSpec
from brim.domain.table_parts import Lineage
from brim.embeddings.embedding import Embeddings
from brim.embeddings.table_file import RowTable
from brim.embeddings.tables.tree import PLACES, TABLES, joined
from brim.errors import EnvironmentFault, SpecError
from brim.train.checks.attributes import Attributes
from brim.train.state.digests import Digests, digests_of
from brim.train.state.flattening import (
    copy_of,
    flatten,
    is_record_of_values,
    keeps_strides,
    unflatten,
)
from brim.train.state.frozen import candidates_of, is_frozen_as, shares_memory
from brim.train.state.optimization import ATTRIBUTES as OPTIMIZER_ATTRIBUTES
from brim.train.state.optimization import Optimization

STOP = "stop_after"  # where job.stop() was called
SAMPLES = "first samples"  # what tells the data of a job from other data
SAME_DATA = (
    "use the same files on all hosts, seed what the script draws from them (random_split, "
    "train_test_split), "
    "and sort what comes out of a set"
)
ATTRIBUTES = "model attribute"  # that forward passes have set once
SET_ATTRIBUTES = "attribute of the model"  # that the script has set since
LAID_OUT = "strides"  # of its tensors are noted: a checkpoint of an older brim has none
# What one worker logs is told by the first; attributes of optimizers may have times in them.
_NOT_COMPARED = ("metrics", "measured", OPTIMIZER_ATTRIBUTES)


@runtime_checkable
class Stateful(Protocol):
    """A user's object that is carried to newcomers and into checkpoints.

    An average of weights, for instance.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class TrainingState:
    """The state that must be the same on every member of a job.

    Args:
        model: the network, with its buffers.
        optimization: of its parameters.
        embeddings: that are trained by rows.
        spec: of the job; what decides the bits must not change between its lives.
    """

    def __init__(
        self, model: nn.Module, optimization: Optimization, embeddings: Embeddings, *, spec: JobSpec
    ) -> None:
        self._model, self._optimization, self._spec = model, optimization, spec
        self._embeddings = embeddings
        self.attributes = Attributes(model)
        # Buffers that a first forward pass makes are made by each worker for itself.
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # What starts empty is empty again before each micro-batch.
        self._names = [name for name, tensor in tensors.items() if _is_carried(tensor)]
        self._registered: dict[str, Stateful | MutableMapping[str, Any]] = {}
        self._digests: Digests | None = None
        self._state_given: Mapping[str, Any] | None = None
        # Lines of the user's run between the start of an epoch and its batches.
        self.has_lines_between = False
        self._found: dict[str, Any] = {}  # what a state that was taken says of its data
        self.schedule: Schedule | None = None  # known once the loop begins
        self.mark = ""  # of the data: see `plan`
        self.committed = 0  # steps
        self.epoch = 0  # epochs that are over
        self.order = 0  # of the epoch's samples, where a sampler draws them: a checksum
        self.streams: dict[str, list[int]] = {}  # how far all have read them: see `Witness`
        # What the next micro-batch came to before the state was written: see `StepAudit.ahead`.
        self.ahead: dict[str, Any] = {}
        self.due = False  # a checkpoint, at the boundary where the job stands
        self.stop_after: int | None = None  # epochs, where job.stop() was called
        self.unsound_since: int | None = (
            None  # the first step of the losses that are not finite, up to the last one
        )
        self.lineage = Lineage()
        self.metrics: dict[str, float] = {}
        self.measured = 0  # the step whose weights have these metrics

    def register(self, name: str, thing: Stateful | MutableMapping[str, Any]) -> None:
        """Carry an object of the user's from now on.

        Raises:
            SpecError: the name is taken, or the thing has no state to carry.
        """
        if name in self._registered:
            raise SpecError(
                "job.register_state", got=f"{name!r} twice", need="a name for each state"
            )
        if not isinstance(thing, (Stateful, MutableMapping)):
            raise SpecError(
                "job.register_state",
                got=f"a {type(thing).__name__} as {name!r}",
                need="an object with state_dict() and load_state_dict(), or a dict that you change "
                "in place",
                hint=f"job.register_state({name!r}, vars(...)), which is the dict of its attributes"
                if is_record_of_values(type(thing))
                else "",
            )
        try:
            flatten(_state_of(thing))
        except TypeError as error:
            raise SpecError(
                f"job.register_state({name!r})",
                got=str(error),
                need="tensors, numbers, strings, and lists and dicts of them",
            ) from error
        self._registered[name] = thing

    @contextlib.contextmanager
    def registered_kept(self) -> Iterator[None]:
        """Put the user's registered objects back to their present state, at the end."""
        previous = {name: _copied(_state_of(thing)) for name, thing in self._registered.items()}
        try:
            yield
        finally:
            for name, thing in self._registered.items():
                _put_state(thing, previous[name])

    # The tree -------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        missing = next((name for name in self._names if name not in tensors), None)
        if missing is not None:
            raise SpecError(
                "your training loop",
                got=f"a model that no longer has {missing!r}",
                need="the parameters and buffers that brim.join saw: newcomers and checkpoints have "
                "those",
                hint="change the model before brim.join; to prune it while it trains, call "
                "prune.identity(module, name) there, so that its masks are buffers from the start",
            )
        return {
            name: tensors[name] for name in self._names if tensors[name].layout is torch.strided
        }

    def get(self) -> dict[str, Any]:
        """Return the state as a tree, but for the rows of tables.

        Its tensors are the network's own, not copies.
        """
        with self._embeddings.without_states():
            optimization = self._optimization.get()
        tree = {
            "model": self._tensors(),
            "requires_grad of": {
                name: parameter.requires_grad for name, parameter in self._model.named_parameters()
            },
            "training of": {name: module.training for name, module in self._model.named_modules()},
            "extra": {
                name: module.get_extra_state() for name, module in _with_extra_state(self._model)
            },
            **optimization,
            "registered": {name: _state_of(thing) for name, thing in self._registered.items()},
            "committed": self.committed,
            "epoch": self.epoch,
            "order": self.order,
            "streams": self.streams,
            "ahead": self.ahead,
            "due": self.due,
            STOP: self.stop_after,
            "unsound_since": self.unsound_since,
            "lineage": asdict(self.lineage),
            "metrics": self.metrics,
            "measured": self.measured,
            **self._data(),
            "micro_batches": self._spec.micro_batches,
            "seed": self._spec.seed,
            "delay": self._spec.delay,
            "late": self._embeddings.late(),
            PLACES: self._embeddings.places(),
            LAID_OUT: True,
            ATTRIBUTES: self.attributes.get(),
            SET_ATTRIBUTES: self.attributes.get_changed(),
        }
        self._embeddings.take_out(tree)
        return tree

    def frozen(self) -> dict[str, Tensor]:
        """Return the tensors of the network that training may leave as they are, by name."""
        return candidates_of(self._tensors())

    @property
    def tables(self) -> list[RowTable]:
        """The tables, which are not in the tree: memory that all workers of the host share."""
        return self._embeddings.rows

    @property
    def keyed(self) -> set[str]:
        """Names of the tables of large spaces of ids: no network has their rows."""
        return self._embeddings.keyed

    def clear_tables(self) -> None:
        """Prepare for rows that are put into the tables.

        They do not count as whole before `keep_tables`.
        """
        self._embeddings.clear()

    def keep_tables(self) -> None:
        """The tables have this very state."""
        self._embeddings.step = self.committed

    def _data(self) -> dict[str, Any]:
        if self.schedule is None:
            return {"samples": None, "global_batch_size": None, SAMPLES: "", **self._found}
        return {
            "samples": self.schedule.samples,
            "global_batch_size": self.schedule.global_batch_size,
            SAMPLES: self.mark,
        }

    def digests(self, *, unless_put: bool = False) -> Digests:
        """The digest of each part of the state that all members must have alike.

        Args:
            unless_put: since they were asked for last, only `put` can have changed the state.
        """
        if self._digests is None or not unless_put:
            compared = {key: value for key, value in self.get().items() if key not in _NOT_COMPARED}
            self._digests = digests_of(compared)
        return self._digests

    def put(self, tree: Mapping[str, Any]) -> None:
        """Take the state that `get` gave elsewhere; with tables, where it has them.

        Raises:
            SpecError: it is of a job that would give other bits.
        """
        for field, key, actual in (
            ("--micro-batches", "micro_batches", self._spec.micro_batches),
            ("--seed", "seed", self._spec.seed),
            ("--delay", "delay", self._spec.delay),
        ):
            if tree.get(key, 0) != actual:  # a checkpoint of an older brim knows of no delay
                raise _other_job(field, actual, tree.get(key, 0))
        self._found = {key: tree[key] for key in ("samples", "global_batch_size")}
        self._found[SAMPLES] = tree.get(SAMPLES, "")  # a checkpoint of an older brim has none
        self._check_data()
        self.mark = self._found[SAMPLES]  # until this worker has looked at its own
        if set(tree["registered"]) != set(self._registered):
            raise SpecError(
                "job.register_state",
                got=", ".join(sorted(self._registered)) or "nothing",
                need=f"{', '.join(sorted(tree['registered'])) or 'nothing'}, as the state to go on "
                "from has it",
                hint="register every state before the loop begins, on all workers",
            )
        changed = {name: table["changed"] for name, table in tree.get(TABLES, {}).items()}
        whole = joined(tree)
        self._embeddings.put_dense(whole, changed, tree["committed"])
        self._embeddings.put_late(tree.get("late", []))
        in_tables = set(self._embeddings.names)
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name not in in_tables:
                    _take_over(tensor, whole["model"][name], laid_out=tree.get(LAID_OUT, False))
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(tree["requires_grad of"][name])
        for name, module in self._model.named_modules():
            module.training = tree["training of"][name]
        for name, module in _with_extra_state(self._model):
            module.set_extra_state(tree["extra"][name])
        # A checkpoint of an older brim has none of the second.
        self.attributes.put(tree.get(ATTRIBUTES, {}), tree.get(SET_ATTRIBUTES))
        self._embeddings.drop_states(whole)
        self._optimization.put(whole)
        if self._embeddings.is_shown:
            self._embeddings.show()
        for name, thing in self._registered.items():
            _put_state(thing, tree["registered"][name])
        self.committed, self.epoch = tree["committed"], tree["epoch"]
        self.order = tree["order"]
        self.streams = dict(tree.get("streams", {}))  # a checkpoint of an older brim has none
        self.ahead = dict(tree.get("ahead", {}))  # nor this
        self.due, self.stop_after = tree["due"], tree[STOP]
        self.unsound_since = tree["unsound_since"]
        self.lineage = Lineage(**tree.get("lineage", {}))  # a checkpoint of an older brim has none
        self.metrics, self.measured = tree["metrics"], tree["measured"]
        self._state_given = self._to_put_again(tree)
        self._digests = None

    def _to_put_again(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state that was put, as it is to be put again.

        Tables are not taken again: no lines change them, and they are large. Weights that were not
        sent are the network's own memory, which lines may change.
        """
        tree = {key: value for key, value in tree.items() if key != TABLES}
        if not self.has_lines_between:
            return tree
        own = self._tensors()
        weights = {
            name: value.clone() if name in own and shares_memory(own[name], value) else value
            for name, value in tree["model"].items()
        }
        return {**tree, "model": weights}

    def be_alone(self, patience: float) -> None:
        """Wait until no other worker of this host can write to the tables.

        Args:
            patience: seconds.

        Raises:
            EnvironmentFault: one still can.
        """
        self._embeddings.be_alone(patience)

    def take_back(self) -> None:
        """Set the tables back to the last commit.

        A step that was given up may have changed them.
        """
        self._embeddings.take_back(self.committed)

    def start(self) -> None:
        """Keep this process's state: it is the first, without any other.

        Raises:
            EnvironmentFault: it is no first: who gave it a later state died before the master heard
                that it had it, and its own embeddings are those of the start.
        """
        if self.committed and self._embeddings.names:
            raise EnvironmentFault(
                f"the embeddings of step {self.committed} are lost: all workers that held them died, "
                "and no checkpoint has any",
                retryable=True,
            )
        self._embeddings.start(self.committed)

    def keep_put(self) -> None:
        """Confirm the state that was put last: nothing has changed it since."""
        self._state_given = None

    def put_again(self) -> None:
        """Put the last state once more.

        Only where an epoch is under way and no step was made since.
        """
        tree, self._state_given = self._state_given, None
        if tree is None or self.committed != tree["committed"] or self.schedule is None:
            return
        if self.committed > self.epoch * self.schedule.steps_per_epoch:
            due = self.due  # may have been seen to since
            self.put(tree)
            self.due, self._state_given = due, None

    def plan(self, schedule: Schedule, *, mark: str = "") -> None:
        """Learn the steps of the job.

        Args:
            schedule: of its data.
            mark: what tells its data from other data, behind the epoch that it is read in; empty
                where nothing does.

        Raises:
            SpecError: a state that was taken is of other data.
        """
        self.schedule, self.mark = schedule, mark
        self._check_data()

    def plan_as_found(self, epochs: int) -> bool:
        """Learn the steps of the job from the state that was put, where no data is left to read.

        Return whether it says them.
        """
        if self.schedule is None and self._found.get("samples") is not None:
            found = {key: self._found[key] for key in ("samples", "global_batch_size")}
            self.schedule, self.mark = Schedule(**found, epochs=epochs), self._found[SAMPLES]
        return self.schedule is not None

    def _check_data(self) -> None:
        if self.schedule is None or self._found.get("samples") is None:
            return
        for field, key, actual in (
            ("--global-batch-size", "global_batch_size", self.schedule.global_batch_size),
            ("dataset('train')", "samples", self.schedule.samples),
        ):
            if self._found[key] != actual:
                raise _other_job(field, actual, self._found[key])
        found = self._found[SAMPLES]
        if found and self.mark and found.split()[0] == self.mark.split()[0] and found != self.mark:
            raise SpecError(
                "the training data",
                got="other samples, of the same number",
                need="the same files as the checkpoint was trained on",
                hint=SAME_DATA,
            )


def _other_job(field: str, actual: object, need: object) -> SpecError:
    return SpecError(field, got=str(actual), need=f"{need}, as the state to go on from has it")


def _is_carried(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or tensor.numel() > 0


def _take_over(tensor: Tensor, value: Tensor, *, laid_out: bool) -> None:
    """Take the values of a parameter or a buffer.

    Some optimizers give parameters other memory (`p.data = ...`), which the next step then finds.

    Args:
        laid_out: keep the strides of the given tensor.
    """
    if (
        laid_out
        and isinstance(tensor, nn.Parameter)
        and keeps_strides(tensor)
        and tensor.stride() != value.stride()
    ):
        tensor.data = copy_of(value, tensor.device)
    elif not (shares_memory(tensor, value) or is_frozen_as(tensor, value)):
        tensor.copy_(value)


def _with_extra_state(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules that declare further state."""
    default = nn.Module.get_extra_state
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module).get_extra_state is not default
    ]


def _state_of(thing: Stateful | MutableMapping[str, Any]) -> dict[str, Any]:
    return dict(thing) if isinstance(thing, MutableMapping) else dict(thing.state_dict())


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Copy a state; copy.deepcopy refuses tensors that a computation with gradients made."""
    skeleton, tensors = flatten(state)
    copied: dict[str, Any] = unflatten(skeleton, [copy_of(each, each.device) for each in tensors])
    return copied


def _put_state(thing: Stateful | MutableMapping[str, Any], state: dict[str, Any]) -> None:
    if isinstance(thing, MutableMapping):
        thing.clear()
        thing.update(state)
    else:
        thing.load_state_dict(state)
