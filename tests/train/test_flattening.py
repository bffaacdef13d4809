"""A state comes back as it was: values, types, and the order of numbers in memory."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from enum import Enum
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from brim.embeddings.embedding import Embeddings
from brim.storage.checkpoints import Checkpoint
from brim.train.asynchronous.home import Home
from brim.train.context import spec_of_a_loner
from brim.train.state.checkpoint import Image, state_of
from brim.train.state.digests import digests_of
from brim.train.state.flattening import UNREADABLE, NotCarried, flatten, unflatten
from brim.train.state.job_state import TrainingState
from brim.train.state.optimization import Optimization
from brim.train.state.restoring import restore
from brim.train.state.transfer import receive_state, send_state, weights_sha256


class Kind(Enum):
    TRIANGULAR = 1


class Factors(NamedTuple):
    left: Tensor
    right: Tensor


class Coded(Tensor):
    """Numbers in 8 bits with a scale, as optimizers of torchao keep them."""

    codes: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Coded:
        wrapped = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        wrapped.codes, wrapped.scale = codes, scale
        return wrapped

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        pass

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], ("affine", None)

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], metadata: Any, *size: Any) -> Coded:
        assert metadata == ("affine", None)
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(func)


def there_and_back(tree: Any) -> Any:
    skeleton, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(skeleton)), [tensor.contiguous() for tensor in tensors])


def by_stream(tree: Any) -> Any:
    near_end, far_end = socket.socketpair()
    with near_end, far_end:
        send_state(near_end, tree, timeout=5.0, cancelled=lambda: False)
        return receive_state(far_end, timeout=5.0, cancelled=lambda: False)


def by_checkpoint(tree: Any) -> Any:
    image = Image()
    skeleton = json.loads(json.dumps(image.take(tree)))
    return state_of(Checkpoint(step=1, tree=skeleton, versions={}, data=image.data))


def by_shared_memory(tree: Any) -> Any:
    with TemporaryFile(dir="/dev/shm") as file:
        home = Home(file.fileno())
        home.begin(tree, 3)
        return home.load(3)


WAYS = [there_and_back, by_stream, by_checkpoint, by_shared_memory]
SHAPES = {
    "rows": torch.randn(3, 5),
    "columns": torch.linalg.qr(torch.randn(5, 5))[0],
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "turned": torch.randn(2, 3, 4).permute(2, 0, 1),
    "with gaps": torch.randn(6, 8)[:, :3],
    "columns with gaps": torch.linalg.svd(torch.randn(6, 8), full_matrices=False)[2][:2],
    "of one column": torch.empty_strided((5, 1), (1, 5)).normal_(),
    "every second": torch.randn(10)[::2],
    "empty": torch.zeros(0, 4).t(),
    "a number": torch.tensor(3),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_keep_values_and_strides(way: Any) -> None:
    for name, found in way(SHAPES).items():
        assert torch.equal(found, SHAPES[name]), name
        assert found.stride() == SHAPES[name].stride(), name


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(3).expand(4, 3), torch.randn(1000, 1000)[:, 1], torch.randn(8).unfold(0, 3, 1)],
    ids=["expanded", "mostly gaps", "overlapping"],
)
def test_other_memory_becomes_dense(tensor: Tensor) -> None:
    found = there_and_back(tensor)
    assert torch.equal(found, tensor)
    assert found.is_contiguous()


def test_digests_ignore_strides() -> None:
    columns = SHAPES["columns"]
    assert digests_of({"q": columns}) == digests_of({"q": columns.contiguous()})
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.load_state_dict(first.state_dict())
    second.weight.data = second.weight.t().contiguous().t()
    assert weights_sha256(first) == weights_sha256(second)


def test_a_tensor_in_two_places_stays_one() -> None:
    shared = torch.randn(3, 3).t()
    found = there_and_back({"a": shared, "b": [shared], "c": shared.clone()})
    assert found["a"] is found["b"][0]
    assert found["a"] is not found["c"]


PLAIN = [
    {3, "a", (1, 2)}, frozenset({1.5}), deque([1, 2], maxlen=3), OrderedDict(b=1, a=2), defaultdict(list, {"a": [1]}),
    torch.float32, torch.device("cpu"), torch.Size([2, 3]), 1 + 2j, b"\0x", bytearray(b"y"), Kind.TRIANGULAR,
    np.float64(0.1), np.int32(3), np.bool_(True), float("inf"), {1: {"$tensor": 0}}, (None, [True]), {"$set": 3},
]  # fmt: skip


@pytest.mark.parametrize("leaf", PLAIN, ids=lambda leaf: type(leaf).__name__)
def test_plain_data_comes_back_with_its_type(leaf: Any) -> None:
    found = there_and_back({"leaf": leaf})["leaf"]
    assert found == leaf
    assert type(found) is type(leaf)
    assert digests_of({"leaf": found}) == digests_of({"leaf": leaf})


def test_records_arrays_and_wrapped_tensors_come_back() -> None:
    eigen = torch.linalg.eigh(torch.eye(3) + 1)
    tree = {
        "eigen": eigen,
        "factors": Factors(torch.ones(2), torch.zeros(1)),
        "array": np.arange(6.0).reshape(2, 3).T,
        "sparse": torch.tensor([0.0, 2.0, 0.0]).to_sparse(),
        "coded": Coded(torch.tensor([1, 2], dtype=torch.int8), torch.tensor(0.5)),
    }
    for way in WAYS:
        found = way(tree)
        assert type(found["eigen"]) is type(eigen)
        assert found["eigen"].eigenvectors.stride() == eigen.eigenvectors.stride()
        assert type(found["factors"]) is Factors
        assert np.array_equal(found["array"], tree["array"])
        assert torch.equal(found["coded"].codes, torch.tensor([1, 2], dtype=torch.int8))
        assert torch.equal(found["sparse"].to_dense(), torch.tensor([0.0, 2.0, 0.0]))
        assert digests_of(found) == digests_of(tree)


def test_digests_of_sets_agree_between_processes() -> None:
    code = (
        "from brim.train.state.digests import *; "
        "print(root_of(digests_of({'seen': {'a', 'b', 'c', 'd', 'e'}})).hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


class OnAManifold(Tensor):
    """A point, as geoopt has them: memory of its own, and a word on where it may go."""


def test_parameters_of_other_classes_are_their_values() -> None:
    model = nn.Module()
    model.point = nn.Parameter(torch.ones(3).as_subclass(OnAManifold))
    assert isinstance(model.point, OnAManifold)
    skeleton, tensors = flatten({"model": dict(model.named_parameters())})
    assert torch.equal(unflatten(skeleton, tensors)["model"]["point"], torch.ones(3))


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (lambda: 0, "a function"),
        (object(), "a object"),
        (torch.ones(2, 2).to_mkldnn(), "torch._mkldnn at optimizer.state.3"),
        (torch.zeros(2, device="meta"), "meta"),
        (np.array([object()]), "a numpy array of object"),
        (torch.zeros(2).as_subclass(type("Marked", (Tensor,), {})), "Marked"),
        (type("Local", (tuple,), {})([1]), "a class that no module has"),
    ],
    ids=["function", "object", "mkldnn", "meta", "objects", "subclass", "local class"],
)
def test_the_rest_is_refused_with_its_place(leaf: Any, words: str) -> None:
    with pytest.raises(NotCarried, match=r"at optimizer\.state\.3") as refused:
        flatten({"optimizer": {"state": {3: leaf}}})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "skeleton",
    [
        {"$strided": [0, [1, -1]]}, {"$strided": [0, [1, 2**40]]}, {"$strided": [0, [1]]}, {"$strided": [9, [1, 1]]},
        {"$strided": [0, "ab"]}, {"$record": ["os", "system", 1]}, {"$record": ["absent", "x"]},
        {"$wrapped": ["builtins", "tuple", {}, 1, [], []]}, {"$enum": ["builtins", "int", "x"]}, {"$dtype": "zeros"},
        {"$defaults": ["eval", []]}, {"$odd": 1}, {"$bytes": "x"}, {"$array": 3},
        {"$sparse": [{"$tensor": 0}, {"$tensor": 0}, [3], True]}, {"$scalar": ["absent", 1]},
    ],
    ids=str,
)  # fmt: skip
def test_nonsense_is_no_tree(skeleton: Any) -> None:
    with pytest.raises(UNREADABLE):
        unflatten(skeleton, [torch.zeros(2, 3)])


# Optimizers ---------------------------------------------------------------------------------------


def test_an_optimizer_takes_back_what_torch_would_cast() -> None:
    weight = nn.Parameter(torch.zeros(3, 3, dtype=torch.bfloat16))
    donor, heir = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))
    columns = torch.linalg.qr(torch.randn(3, 3))[0]
    donor.state[weight] = {
        "Q": [columns, (columns.double(), 3)],
        "kind": "triangular",
        "kinds": ["a", "b"],
        "eigen": torch.linalg.eigh(columns @ columns.T),
        "factors": Factors(columns, columns),
        "array": np.ones(2),
        "seen": {1, 2},
        "step": 3,
    }
    restore(heir, there_and_back(donor.state_dict()))
    given_state, found = donor.state[weight], heir.state[weight]
    assert found["Q"][0].dtype == torch.float32
    assert found["Q"][0].stride() == (1, 3)
    assert found["Q"][1][0].dtype == torch.float64
    assert type(found["factors"]) is Factors
    assert digests_of(given_state) == digests_of(found)


def a_state(weight: Tensor) -> tuple[TrainingState, nn.Parameter]:
    model = nn.Linear(3, 3, bias=False)
    model.weight = nn.Parameter(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spec = spec_of_a_loner()
    optimization = Optimization(model, [optimizer])
    training_state = TrainingState(
        model, optimization, Embeddings(model, [optimizer], spec), spec=spec
    )
    return training_state, model.weight


def test_relaid_parameters_stay_so() -> None:
    donor, weight = a_state(torch.randn(3, 3))
    weight.data = weight.detach().t().contiguous().t()
    training_state, found = a_state(torch.zeros(3, 3))
    training_state.put(there_and_back(donor.get()))
    assert torch.equal(found, weight)
    assert found.stride() == (1, 3)


def test_an_older_checkpoint_leaves_parameters_where_they_lie() -> None:
    donor, weight = a_state(torch.randn(3, 3))
    older = {key: value for key, value in donor.get().items() if key != "strides"}
    training_state, found = a_state(torch.zeros(3, 3).t())
    training_state.put(older)
    assert torch.equal(found, weight)
    assert found.stride() == (1, 3)
