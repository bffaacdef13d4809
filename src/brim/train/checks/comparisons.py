"""Finds nodes in a loss's graph that compare the samples of a micro-batch with one another.

A graph has shapes and no names, so an operation counts where its sizes are those of the samples, and
its operands are computed from data, not from parameters alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

_VIEWS_OF_A_BATCH = 4  # augmented views, or negatives, of each sample in one tensor
_CHAIN = 4  # operations between a broadcast operand and its product
_PARAMETER = "torch::autograd::AccumulateGrad"

# Operations by which data enters a graph, where one of their operands needs no gradient.
_ENTRANCES = (
    "AddmmBackward0",
    "MmBackward0",
    "BmmBackward0",
    "LinearBackward0",
    "ConvolutionBackward0",
    "MkldnnRnnLayerBackward0",
    "CudnnRnnBackward0",
)
_LOOKUPS = ("Embedding", "Index", "Gather")  # of parameters, by data
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum")
_OVER_SAMPLES = ("Std", "Var", "LogSoftmax", "Softmax", "Logsumexp", "Logcumsumexp", "Cumsum")


def nodes_of(loss: Tensor) -> Iterator[Any]:
    """Yield all nodes of the graph of a loss."""
    yield from _nodes_below(loss.grad_fn)


def compares_samples(loss: Tensor, samples: int) -> bool:
    """Return whether a loss depends on how samples stand to one another.

    Args:
        loss: a scalar with its graph.
        samples: of the micro-batch.

    >>> import torch
    >>> images, texts = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    >>> data = torch.ones(8, 3)
    >>> compares_samples((images(data) @ texts(data).T).logsumexp(1).mean(), 8)
    True
    >>> compares_samples((images(data) * texts(data)).sum(1).mean(), 8)
    False
    """
    return samples > 1 and any(_Operation(node, samples).compares for node in nodes_of(loss))


def depends_on_data(node: Any) -> bool:
    """Return whether a node is computed from data, and not from parameters alone.

    None stands for a tensor that needs no gradient, which may be data.
    """
    if node is None:
        return True
    return any(_is_entrance(below_node) for below_node in _nodes_below(node))


class _Operation:
    """An operation of a graph, and the number of samples that it is looked at for."""

    def __init__(self, node: Any, samples: int) -> None:
        self._node, self._samples = node, samples
        self._kind = node.name().removesuffix("0").removesuffix("1").removesuffix("Backward")

    @property
    def compares(self) -> bool:
        """Return whether the operation sees several samples at once."""
        if self._kind in ("Mm", "Bmm"):
            return self._multiplies()
        if self._kind in ("Cdist", "EuclideanDist", "Pdist"):
            return self._measures_distances()
        if self._kind in ("Index", "IndexSelect"):
            return self._picks()
        if self._kind in _OVER_SAMPLES:
            return self._is_over_samples()
        return self._kind in _ELEMENTWISE and self._broadcasts()

    def _is_batch(self, size: int) -> bool:
        """Return whether a size is that of all samples, in one or several views."""
        views, rest = divmod(size, self._samples)
        return not rest and 1 <= views <= _VIEWS_OF_A_BATCH

    @property
    def _operands(self) -> list[Any]:
        return [following for following, _ in self._node.next_functions]

    def _multiplies(self) -> bool:
        """A product of two matrices: of all with all, or a sum over the samples."""
        output = _shape_of(self._node)
        if len(output) == 3 and output[0] != 1:  # each sample has products of its own
            return False
        first, second = self._operands
        rows, columns = output[-2:]
        if first is None or second is None:  # it may be data, or a constant
            is_of_pairs = rows == columns == self._samples
        else:
            is_of_pairs = self._is_batch(rows) and self._is_batch(columns)
        is_sum = self._is_batch(self._inner_size()) and first is not None and second is not None
        return (is_of_pairs or is_sum) and depends_on_data(first) and depends_on_data(second)

    def _inner_size(self) -> int:
        left, right = (
            getattr(self._node, "_saved_self", None),
            getattr(self._node, "_saved_mat2", None),
        )
        if isinstance(left, Tensor):
            return left.shape[-1]
        return right.shape[-2] if isinstance(right, Tensor) else 0

    def _measures_distances(self) -> bool:
        sizes = [
            tensor.shape
            for name in ("_saved_x1", "_saved_x2", "_saved_self")
            if isinstance(tensor := getattr(self._node, name, None), Tensor)
        ]
        return all(
            self._is_batch(shape[-2]) and (len(shape) == 2 or shape[0] == 1) for shape in sizes
        ) and all(map(depends_on_data, self._operands))

    def _picks(self) -> bool:
        """Samples by number, in an order of their own or several times, as miners pick them."""
        sizes = tuple(self._node._saved_self_sym_sizes)
        if self._kind == "Index":
            found = [
                saved_index for saved_index in self._node._saved_indices if saved_index is not None
            ]
            index = found[0] if len(found) == len(self._node._saved_indices) == 1 else None
        else:
            index = None if self._node._saved_dim else self._node._saved_index
        if index is None or not sizes or not self._is_batch(sizes[0]) or index.dtype.itemsize < 4:
            return False
        source = self._operands[0]
        is_selection = bool((index.flatten().diff() > 0).all())  # those that a mask leaves
        return not is_selection and source.name() != _PARAMETER and depends_on_data(source)

    def _is_over_samples(self) -> bool:
        """A statistic, a softmax or a running sum along the samples."""
        axis = self._node._saved_dim
        axes = axis if isinstance(axis, tuple) else (axis,)
        sizes = _shape_of(self._operands[0])
        has_own = self._kind in ("Std", "Var") and len(sizes) < 2  # of one number a sample
        return (
            0 in axes
            and bool(sizes)
            and self._is_batch(sizes[0])
            and not has_own
            and depends_on_data(self._operands[0])
        )

    def _broadcasts(self) -> bool:
        """One number or vector of each sample meets that of each other one: [B, 1] with [1, B]."""
        output = _shape_of(self._node)
        if len(output) < 2 or not all(self._is_batch(size) for size in output[:2]):
            return False
        shapes = [_before_broadcast(operand, len(output)) for operand in self._operands]
        if len(shapes) != 2 or not all(map(depends_on_data, self._operands)):
            return False
        down, row_shape = (output[0], 1), (1, output[1])
        if None in self._operands:  # predictions [B, 1] less targets [B]
            return self._kind == "Sub" and output in ([self._samples] * 2,) and down in shapes
        return sorted(shapes) == sorted([down, row_shape])


def _before_broadcast(node: Any, rank: int) -> tuple[int, int]:
    """Return the first two of so many sizes of an operand, before it was expanded."""
    if node is None:
        return 0, 0
    sizes = _shape_of(node)
    ancestor = node
    for _ in range(_CHAIN):
        if ancestor is None or not ancestor.name().startswith(("Expand", "Div", "Mul", "Clone")):
            break
        if ancestor.name().startswith("Expand"):
            sizes = [int(size) for size in ancestor._saved_self_sym_sizes]
            break
        ancestor = ancestor.next_functions[0][0]
    first, second, *_ = [1] * (rank - len(sizes)) + sizes
    return first, second


def _shape_of(node: Any) -> list[int]:
    if node is None or node.name() == _PARAMETER:
        return [] if node is None else list(node.variable.shape)
    return [int(size) for size in node._input_metadata[0].shape]


def _is_entrance(node: Any) -> bool:
    name = node.name()
    if name.startswith(_LOOKUPS):
        return True
    return name in _ENTRANCES and any(following is None for following, _ in node.next_functions)


def _nodes_below(start: Any) -> Iterator[Any]:
    """Yield a node and all that it was computed from."""
    seen = {start} - {None}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
