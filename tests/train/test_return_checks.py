"""Wrong returns from a training file are named, with the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import brim
from brim.errors import SpecError, UserCodeError
from brim.train.checks.return_checks import (
    check_dataset,
    check_functions,
    check_metrics,
    check_model,
)
from brim.worker import warm
from train.test_training_file import spec

PAIR = (torch.zeros(2), torch.zeros(1))
GOOD = TensorDataset(torch.zeros(4, 2), torch.zeros(4))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([PAIR])


class Image:
    """Stands in for PIL's."""

    __module__ = "PIL.Image"


def refused(check: Callable[..., object], *arguments: Any) -> SpecError:
    with pytest.raises(SpecError) as raised:
        check(*arguments)
    wrong = raised.value
    assert wrong.field
    assert wrong.got
    assert wrong.need
    assert wrong.hint
    return wrong


def test_self_describing_data_is_left_alone() -> None:
    check_dataset(DataLoader(GOOD), "train")
    check_dataset(Stream(), "train")


@pytest.mark.parametrize(
    ("dataset", "actual", "hint"),
    [
        (None, "None", "return"),
        (TensorDataset, "the class TensorDataset", "call the class"),
        (lambda: GOOD, "the function <lambda>", "call it"),
        ("flights.csv", "the path 'flights.csv'", "brim.data.csv"),
        (Path("flights.csv"), "the path 'flights.csv'", "brim.data.csv"),
        ((np.zeros((4, 2)), np.zeros(4)), "a tuple of two arrays", "TensorDataset(inputs, target)"),
        (
            [torch.zeros(4, 2), torch.zeros(4)],
            "a list of two arrays",
            "TensorDataset(inputs, target)",
        ),
        (np.zeros((4, 2)), "a numpy.ndarray of shape [4, 2]", "TensorDataset"),
        (torch.zeros(4, 2), "a torch.Tensor of shape [4, 2]", "TensorDataset"),
        ({"train": GOOD, "test": GOOD}, "a dict with 'train', 'test'", "data[split]"),
        (iter([PAIR]), "a list_iterator", "list(...)"),
        (Dataset(), "a torch.Dataset without __len__", "__getitem__(self, index)"),
        (3, "an int without __len__", "__len__"),
        ([], "no samples", "print"),
        (
            ["a film that is good", "bad"],
            "the text 'a film that is good' in the sample",
            "tokenizer",
        ),
        ([(torch.zeros(2), "cat")], "the text 'cat' in the sample", "label's index"),
        ([(torch.zeros(2), None)], "None in the sample", "every sample"),
        ([(Image(), 1)], "a PIL image in the sample", "ToTensor"),
    ],
)
def test_what_is_no_dataset(dataset: Any, actual: str, hint: str) -> None:
    wrong = refused(check_dataset, dataset, "train")
    assert wrong.field in ("dataset('train')", "dataset('train')[0]")
    assert actual in wrong.got
    assert hint in wrong.hint


def test_a_data_frame_is_no_dataset() -> None:
    import pandas

    wrong = refused(check_dataset, pandas.DataFrame({"a": [1.0], "b": [2.0]}), "train")
    assert "a pandas.DataFrame of shape [1, 2]" in wrong.got
    assert "to_numpy" in wrong.hint


@pytest.mark.parametrize(
    "dataset",
    [
        GOOD,
        Subset(GOOD, [0, 2]),
        [PAIR] * 2,
        [(np.zeros(2, dtype="float32"), 1)],
        [((1.0, 2.0), 1)],
        [{"text": "kept beside", "ids": torch.zeros(2)}],
        brim.data.Tensors(torch.zeros(4, 2), torch.zeros(4)),
    ],
)
def test_what_is_one(dataset: Any) -> None:
    check_dataset(dataset, "train")
    check_dataset(dataset, "test")


def test_there_may_be_nothing_to_test_with() -> None:
    check_dataset(None, "test")
    check_dataset([], "test")


@pytest.mark.parametrize(
    ("model", "actual", "hint"),
    [
        (None, "None", "return"),
        (torch.nn.Linear, "the class Linear", "Linear(...)"),
        (torch.nn.Linear(1, 1).state_dict(), "a state_dict", "load_state_dict"),
        ([torch.nn.Linear(1, 1)], "a list of networks", "Sequential"),
        (lambda inputs: inputs, "a function", "torch.nn.Module"),
    ],
)
def test_what_is_no_model(model: Any, actual: str, hint: str) -> None:
    wrong = refused(check_model, model)
    assert actual in wrong.got
    assert hint in wrong.hint


@pytest.mark.parametrize(
    ("metrics", "actual"),
    [
        (None, "None"),
        ([brim.metrics.auc()], "a list"),
        ({"auc": brim.metrics.auc}, "auc as 'auc'"),
        ({"accuracy": lambda output, target: 1.0}, "<lambda> as 'accuracy'"),
    ],
)
def test_what_are_no_metrics(metrics: Any, actual: str) -> None:
    assert actual in refused(check_metrics, metrics).got
    check_metrics({"auc": brim.metrics.auc()})


def test_functions_hidden_from_text_are_found() -> None:
    module = ModuleType("training")
    module.model = module.dataset = module.optimizer = lambda *_: None  # type: ignore[attr-defined]
    assert "no function 'loss'" in refused(check_functions, module, "training.py").got
    module.loss = 3  # type: ignore[attr-defined]
    assert "loss = an int" in refused(check_functions, module, "training.py").got


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ("def dataset(split): return ['a', 'b']\n", "dataset('train')[0]"),
        (
            "def dataset(split): return GOOD if split == 'train' else torch.zeros(3)\n",
            "dataset('test')",
        ),
        ("def model(): return torch.nn.Linear\n", "model()"),
        (
            "def optimizer(model): return [torch.optim.SGD(model.parameters(), lr=0.1)]\n",
            "optimizer(model)",
        ),
        ("def metrics(): return ['auc']\n", "metrics()"),
        ("loss = None\n", "training.py"),
    ],
)
def test_a_file_is_told_so_before_anything_starts(changed: str, field: str, tmp_path: Path) -> None:
    good = "GOOD = [(torch.zeros(2), torch.zeros(1))] * 16\n"
    wrong = refused(warm.prepare_file, spec(tmp_path, good + changed))
    assert wrong.field.endswith(field)


def test_what_the_dataset_itself_raises_stays_the_users(tmp_path: Path) -> None:
    changed = "class Bad(list):\n    def __getitem__(self, index): raise KeyError('column')\n"
    changed += "def dataset(split): return Bad([1, 2])\n"
    with pytest.raises(UserCodeError, match="KeyError: 'column'") as raised:
        warm.prepare_file(spec(tmp_path, changed))
    assert "src/brim" not in raised.value.trace
