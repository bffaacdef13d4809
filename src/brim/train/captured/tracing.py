"""The calls of a forward and a backward pass, noted while the pass is made once.

This is done in a process of its own, for it needs modules that take a second to import.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from brim.train.captured.lookups import LookupsSeen
from brim.train.captured.recipe import (
    CONSTANT,
    DRAWN,
    INPUT,
    KIND,
    RESULT,
    TABLE,
    Draw,
    LookupRecipe,
    NotCapturable,
    PassRecipe,
    TableCall,
    in_one_line,
    leaves_of,
    with_leaves,
)
from brim.train.exchange.contribution import Contributions

Pass = Callable[[Any], Tensor]  # samples to their loss

_TO_PYTHON = {"numpy", "tolist", "__array__", "item", "data_ptr", "__dlpack__"}
_EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
_EMPTY |= {"aten::new_empty_strided"}
_ATEN = torch.ops.aten
_RESHAPES = {  # calls that give all elements of what they take, each once, in the same memory
    _ATEN.alias.default,
    _ATEN.detach.default,
    _ATEN.permute.default,
    _ATEN.squeeze.default,
    _ATEN.squeeze.dim,
    _ATEN.squeeze.dims,
    _ATEN.t.default,
    _ATEN.transpose.int,
    _ATEN.unsqueeze.default,
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
}


class _NoPython(TorchFunctionMode):
    """Refuses to give numbers of tensors to Python: they would be constants of the recipe."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") in _TO_PYTHON:
            raise NotCapturable(f"the pass calls Tensor.{function.__name__}")
        return function(*args, **(kwargs or {}))


def trace(
    model: nn.Module,
    contributions: Contributions,
    one_pass: Pass,
    samples: Any,
    by_rows: Sequence[nn.Module] = (),
) -> PassRecipe:
    """Return the recipe of a micro-batch's pass. The model is of no use behind it.

    Args:
        model: the network.
        contributions: of the network to a step.
        one_pass: the loss of samples.
        samples: a micro-batch.
        by_rows: embeddings that are trained by rows.

    Raises:
        NotCapturable: the pass cannot be replayed.
    """
    trained = list(contributions.parameters)
    ids = {id(parameter) for parameter in trained}
    frozen = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in trained):
        raise NotCapturable("a parameter has hooks")
    buffers = contributions.buffers
    if any(buffer.has_infinity or not buffer.home.dim() for buffer in contributions.averaged):
        raise NotCapturable("a buffer is a scalar, or starts from infinity")
    leaves, form = leaves_of(samples)
    places = _Places(model)
    contributions.reset()
    # What is made in the first pass is there then, as in training.
    loss, lookups = LookupsSeen.of(lambda: one_pass(samples), by_rows)
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise NotCapturable("the loss has no gradient")
    contributions.reset()
    used: list[bool] = []
    counts = len(trained), len(frozen), len(buffers)

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = iter(tensors)
        held = [next(inputs).detach().requires_grad_() for _ in range(counts[0])]
        places.hold(dict(zip(map(id, trained), held, strict=True)))
        places.hold({id(parameter): next(inputs) for parameter in frozen})
        starts = [next(inputs) for _ in buffers]
        for buffer, start in zip(buffers, starts, strict=True):
            now = start.clone()
            for holder, key in buffer.places:
                holder[key] = now
        gradient, weight, number = (next(inputs) for _ in range(3))
        with torch.enable_grad():
            own_leaves = list(islice(inputs, len(leaves)))
            own_samples = with_leaves(samples, iter(own_leaves))
            rows = [tensor.detach().requires_grad_() for tensor in inputs]
            loss, ids = lookups.replaced(iter(rows), lambda: one_pass(own_samples))
            found = torch.autograd.grad(loss, [*held, *rows], gradient, allow_unused=True)
        found, of_rows = found[: len(held)], found[len(held) :]
        if any(part is None for part in of_rows):
            raise NotCapturable("a lookup has no part in the loss")
        used[:] = [part is not None for part in found]
        gradients = [
            torch.zeros_like(parameter) if part is None else part
            for parameter, part in zip(held, found, strict=True)
        ]
        left = [_now_of(buffer) for buffer in buffers]
        averaged = len(contributions.averaged)
        changes = [
            (now - start) * number for now, start in zip(left[:averaged], starts, strict=False)
        ]
        plain = loss.detach().reshape(1)
        given = (*gradients, *changes, plain * weight, *left[averaged:], plain, *of_rows)
        return (*given, *ids)

    one = torch.ones(1, dtype=torch.float64)
    arguments = [
        *(parameter.detach() for parameter in (*trained, *frozen)),
        *(buffer.start for buffer in buffers),
        torch.ones_like(loss, requires_grad=False),
        one,
        one.reshape(()),
        *leaves,
        *lookups.rows,
    ]
    versions = [tensor._version for tensor in arguments]
    before = random.getstate(), np.random.get_state()
    try:
        with _NoPython():
            graph = make_fx(flat)(*arguments)
    except Exception as error:
        # As torch's own words name a function that no script calls.
        is_read = "_local_scalar_dense" in str(error)
        words = "the pass reads a number of a tensor: by if, int() or range()"
        raise NotCapturable(words if is_read else in_one_line(error)) from error
    after = random.getstate(), np.random.get_state()
    if before[0] != after[0] or str(before[1]) != str(after[1]):
        raise NotCapturable("the pass draws from Python's random or numpy")
    if versions != [tensor._version for tensor in arguments]:
        raise NotCapturable("the pass changes parameters or samples in place")
    first_leaf = len(arguments) - len(leaves) - len(lookups.rows)
    of_lookups = LookupRecipe()
    if lookups.numbers:
        of_ids = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        _keep_outputs(of_ids, slice(-len(lookups.numbers), None))
        _keep_calls_of_outputs(of_ids)
        _keep_outputs(graph, slice(0, -len(lookups.numbers)))
        of_lookups = _Noted(of_ids, len(arguments)).lookups(
            lookups.numbers, range(first_leaf, first_leaf + len(leaves))
        )
    return _Noted(graph, len(arguments)).recipe(form, loss, used, of_lookups)


def _keep_calls_of_outputs(graph: fx.GraphModule) -> None:
    """Take all calls out of a graph that its outputs do not come of, also those in place.

    Raises:
        NotCapturable: a call changes in place what they come of.
    """
    nodes = list(graph.graph.nodes)
    needed: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
    owners = {_owner_of(node) for node in needed}
    for node in reversed(nodes):
        if node.op != "call_function":
            continue
        if _is_changing(node) and _owner_of(node) in owners:
            raise NotCapturable("the ids of a lookup are changed in place")
        if node not in needed:
            graph.graph.erase_node(node)


def _is_changing(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _owner_of(node: fx.Node) -> fx.Node:
    """Return the node whose memory a node has: of a view, or of a call in place, its base."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and not any(
            result.alias_info is not None for result in target._schema.returns
        ):
            return node
        node = node.args[0]
    return node


def _whole_of(node: fx.Node) -> fx.Node:
    """Return the node whose whole memory a node has, in whatever shape."""
    while node.op == "call_function" and node.target in _RESHAPES:
        node = node.all_input_nodes[0]
    return node


def _keep_outputs(graph: fx.GraphModule, kept: slice) -> None:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    output.args = (tuple(output.args[0])[kept],)


class _Places:
    """The places in which the modules of a network hold its parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._all: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    self._all.setdefault(id(parameter), []).append((module._parameters, key))

    def hold(self, tensors: dict[int, Tensor]) -> None:
        """Put tensors in the places of parameters, by the ids of these."""
        for identity, tensor in tensors.items():
            for holder, key in self._all[identity]:
                holder[key] = tensor


def _now_of(buffer: Any) -> Tensor:
    holder, key = buffer.places[0]
    now = holder[key]
    if now is None or now.shape != buffer.start.shape or now.dtype != buffer.start.dtype:
        raise NotCapturable(f"buffer {buffer.name!r} changes its shape or type")
    left: Tensor = now.detach()
    return left


class _Noted:
    """A graph of calls, on its way to a recipe.

    Args:
        graph: of the calls.
        inputs: tensors that it takes; constants and random numbers come behind them.
    """

    def __init__(self, graph: fx.GraphModule, inputs: int) -> None:
        self._graph, self._inputs = graph, inputs
        self._constants: list[Tensor] = []
        self._draws: list[Draw] = []
        self._drawn: dict[fx.Node, int] = {}  # number of the draw whose tensor the node has
        self._values: dict[fx.Node, list[Any]] = {}
        self._calls: list[tuple[str, str, list[Any]]] = []
        self._lists: set[fx.Node] = set()  # calls that give one list of tensors
        self._fresh: set[tuple[int, int]] = set()  # results that share memory with nothing
        self._tables: dict[fx.Node, TableCall] = {}  # gradients of embedding tables, of nodes
        self._zeros: set[fx.Node] = set()  # that they are added to

    def recipe(
        self, form: str, loss: Tensor, used: list[bool], lookups: LookupRecipe
    ) -> PassRecipe:
        self._find_draws()  # also of numbers that nobody uses: eager passes draw them
        self._simplify()
        self._find_tables(len(used))
        gives = self._own(self._outputs())
        return PassRecipe(
            samples=form,
            loss=(loss.dtype, list(loss.shape)),
            inputs=self._inputs,
            constants=self._constants,
            draws=self._draws,
            calls=self._calls,
            gives=gives,
            used=used,
            lookups=lookups,
        )

    def lookups(self, modules: list[int], leaves: range) -> LookupRecipe:
        """Return how ids come of samples.

        Args:
            modules: the number of each lookup's embedding.
            leaves: which inputs are the tensors of the samples.
        """
        ids = [self._values[node] for node in self._outputs()]
        self._find_draws()
        wanted = [ids, *(arguments for _, _, arguments in self._calls)]
        references = [reference for arguments in wanted for reference in _references(arguments)]
        if self._draws or any(r[0] == INPUT and r[1] not in leaves for r in references):
            raise NotCapturable("the ids of a lookup depend on more than the samples")
        for reference in {id(r): r for r in references if r[0] == INPUT}.values():
            reference[1] -= leaves.start
        return LookupRecipe(modules=modules, constants=self._constants, calls=self._calls, ids=ids)

    def _outputs(self) -> tuple[Any, ...]:
        """Note all calls, and return the nodes of what the graph gives."""
        self._graph.graph.eliminate_dead_code()
        outputs: tuple[Any, ...] = ()
        placeholders = 0
        for node in self._graph.graph.nodes:
            match node.op:
                case "placeholder":
                    self._values[node] = [INPUT, placeholders, 0]
                    placeholders += 1
                case "get_attr":
                    self._values[node] = [CONSTANT, len(self._constants), 0]
                    self._constants.append(getattr(self._graph, node.target).detach().clone())
                case "output":
                    outputs = node.args[0]
                case "call_function":
                    self._note(node)
                case _:
                    raise NotCapturable(f"a {node.op}")
        return outputs

    def _find_draws(self) -> None:
        for node in self._graph.graph.nodes:
            target = node.target
            if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
                continue
            depends = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
            if depends & set(target.tags) and not _picks_by_number(node, target):
                raise NotCapturable(f"{target} gives what depends on the samples' values")
            if torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(node):
                self._take_draw(node, target)

    def _take_draw(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        schema = target._schema
        if node.kwargs.get("generator") is not None:
            raise NotCapturable(f"{target} draws from a generator of its own")
        is_fill = schema.name.endswith("_")
        rest = list(node.args[1:] if is_fill else node.args)
        if any(isinstance(argument, fx.Node) for argument in [*rest, *node.kwargs.values()]):
            raise NotCapturable(f"{target} draws what depends on the samples' values")
        meta = node.meta["tensor_meta"]
        draw = Draw(
            call=(schema.name, schema.overload_name or "default"),
            is_fill=is_fill,
            shape=list(meta.shape),
            stride=list(meta.stride),
            dtype=meta.dtype,
            arguments=rest,
            keywords={} if is_fill else dict(node.kwargs),
        )
        if is_fill:
            base = node.args[0]
            if not isinstance(base, fx.Node) or not _is_empty(base):
                raise NotCapturable(f"{target} fills a tensor that has other uses")
            self._drawn[base] = len(self._draws)
        self._drawn[node] = len(self._draws)
        self._draws.append(draw)

    def _simplify(self) -> None:
        """Leave out calls that give what they take, or what another call could give at once."""
        if not any(map(_changes_shape, self._graph.graph.nodes)):
            for node in self._graph.graph.nodes:
                same = _same_as(node)
                arguments = _unflattened(node)
                if same is not None:
                    node.replace_all_uses_with(same)
                elif arguments is not None:
                    node.target, node.args = _ATEN.sum.dim_IntList, arguments
        self._graph.graph.eliminate_dead_code()

    def _find_tables(self, gradients: int) -> None:
        """Find gradients of embedding tables that nothing else is made of, nor added to.

        Args:
            gradients: how many of the outputs are some, the first ones.
        """
        nodes = list(self._graph.graph.nodes)
        output = nodes[-1]
        outputs = list(output.args[0])
        changed = {_owner_of(node) for node in nodes if _is_changing(node)}
        for node in outputs[:gradients]:
            if list(node.users) != [output] or outputs.count(node) > 1:
                continue
            table, zeros = _table_of(node)
            if table is not None:
                is_early = not changed & set(map(_owner_of, _sources_of(table.ids)))
                self._tables[node] = table._replace(is_early=is_early)
                self._zeros |= zeros

    def _note(self, node: fx.Node) -> None:
        if node in self._zeros:
            return
        if node in self._drawn:
            self._values[node] = [DRAWN, self._drawn[node], 0]
            return
        if node in self._tables:
            self._values[node] = [RESULT, len(self._calls), 0]
            self._fresh.add((len(self._calls), 0))
            self._calls.append((TABLE, "", [self._argument(each) for each in self._tables[node]]))
            return
        if node.target is operator.getitem:
            of, place = node.args
            assert isinstance(of, fx.Node), "it is an item of a call's results"
            kind, call, _ = self._values[of]
            if of in self._lists:
                self._calls.append(("aten::__getitem__", "t", [[kind, call, 0], place]))
                call, place = len(self._calls) - 1, 0
            self._values[node] = [kind, call, place]
            return
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise NotCapturable(f"a call of {target}")
        schema = target._schema
        arguments = [
            node.args[index]
            if index < len(node.args)
            else node.kwargs.get(argument.name, argument.default_value)
            for index, argument in enumerate(schema.arguments)
        ]
        number = len(self._calls)
        self._calls.append(
            (schema.name, schema.overload_name, [self._argument(each) for each in arguments])
        )
        self._values[node] = [RESULT, number, 0]
        if [str(result.type) for result in schema.returns] == ["List[Tensor]"]:
            self._lists.add(node)
        for place, result in enumerate(schema.returns):
            if result.alias_info is None:
                self._fresh.add((number, place))

    def _argument(self, value: Any) -> Any:
        match value:
            case fx.Node():
                return self._values[value]
            case torch.dtype() | torch.layout() | torch.memory_format() | torch.device():
                return [KIND, type(value).__name__, str(value)]
            case list() | tuple():
                return [self._argument(item) for item in value]
            case None | bool() | int() | float() | str():
                return value
        raise NotCapturable(f"a call with a {type(value).__name__}")

    def _own(self, outputs: tuple[Any, ...]) -> list[Any]:
        """Results that nobody else has: they are added to in place, behind all calls of the pass."""
        gives: list[Any] = []
        seen: set[fx.Node] = set()
        for node in outputs:
            value, owner = self._values[node], _whole_of(node)
            is_own = tuple(self._values[owner][1:]) in self._fresh and owner not in seen
            if self._values[owner][0] != RESULT or not is_own:
                self._calls.append(("aten::clone", "", [value, None]))
                value = [RESULT, len(self._calls) - 1, 0]
            seen.add(owner)
            gives.append(value)
        return gives


def _changes_shape(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.inplace_view in target.tags


def _same_as(node: fx.Node) -> fx.Node | None:
    """Return the node that has the same tensor, where there is no autograd; None if none has."""
    same: Any = None
    if node.target in (_ATEN.detach.default, _ATEN.alias.default):
        (same,) = node.args
    elif node.target is _ATEN.t.default and node.all_input_nodes[0].target is _ATEN.t.default:
        (same,) = node.all_input_nodes[0].args
    return same if isinstance(same, fx.Node) else None


def _unflattened(node: fx.Node) -> tuple[Any, ...] | None:
    """Return the arguments of a sum without the dimensions of size 1 that a view takes away.

    None where a node is no such view.
    """
    if node.target is not _ATEN.view.default:
        return None
    total = node.all_input_nodes[0]
    if total.target is not _ATEN.sum.dim_IntList or len(total.args) != 3 or total.kwargs:
        return None
    start, dims, _ = total.args
    if not isinstance(start, fx.Node) or not isinstance(dims, list) or not dims:
        return None
    shape = start.meta["tensor_meta"].shape
    summed = {dim % len(shape) for dim in dims}
    left = [size for dim, size in enumerate(shape) if dim not in summed]
    return (start, dims) if node.args[1] == left else None


def _table_of(node: fx.Node) -> tuple[TableCall | None, set[fx.Node]]:
    """Return the gradient of a table, if a node is one; and the zeros that it is added to."""
    arguments: Any = node.args
    zeros: set[fx.Node] = set()
    padding = -1
    if node.target is _ATEN.embedding_dense_backward.default:
        rows, ids, _, padding, is_scaled = arguments
    elif node.target in (_ATEN.index_add.default, _ATEN.index_add_.default):
        start, dim, ids, rows = arguments
        is_scaled = node.kwargs.get("alpha", 1) != 1 or dim != 0 or not _is_own_zero(start)
        zeros = {start}
    else:
        return None, set()
    table, of_rows, of_ids = (each.meta.get("tensor_meta") for each in (node, rows, ids))
    if is_scaled or table is None or of_rows is None or of_ids is None:
        return None, set()
    is_plain = len(table.shape) == 2 and table.dtype == of_rows.dtype
    if not is_plain or table.dtype not in (torch.float32, torch.float64):
        return None, set()
    size, width = table.shape
    lookups = of_ids.shape.numel()
    return TableCall(rows, ids, lookups, size, width, padding, is_early=False), zeros


def _is_own_zero(node: fx.Node) -> bool:
    return node.target is _ATEN.new_zeros.default and len(node.users) == 1


def _sources_of(node: fx.Node) -> set[fx.Node]:
    """Return a node, and all that it is made of."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += current.all_input_nodes
    return found


def _references(arguments: list[Any]) -> Iterator[list[Any]]:
    for argument in arguments:
        if isinstance(argument, list) and argument:
            if argument[0] in (RESULT, INPUT, DRAWN, CONSTANT):
                yield argument
            elif argument[0] != KIND:
                yield from _references(argument)


def _is_empty(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in _EMPTY


def _picks_by_number(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    """Return whether a call picks rows by their numbers: by a mask, their count would vary."""
    if target is not torch.ops.aten.index.Tensor:
        return False
    given_places: Any = node.args[1]
    places = [place for place in given_places if place is not None]
    return all(place.meta["tensor_meta"].dtype in (torch.int64, torch.int32) for place in places)


def _drops_nothing(node: fx.Node) -> bool:
    """Return whether a call could draw random numbers and does not: attention without dropout."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload), "the caller looks"
    names = [argument.name for argument in target._schema.arguments]
    if "dropout_p" not in names:
        return False
    index = names.index("dropout_p")
    rate = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(rate == 0.0)
