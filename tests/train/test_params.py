"""Values of `--set`: names that a file reads, early or late, and names that are never read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from brim.errors import SpecError
from brim.train import params
from brim.train.params import check_all_used, param

MODEL = """
import brim
depth = brim.param("depth", 2)

def loss(output, target):
    return output * brim.param("smoothing", 0.0)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A training file that was run: it has read `depth`, and reads `smoothing` in each step."""
    monkeypatch.setattr(params, "_requested_names", set())
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    module = ModuleType("model")
    module.__file__ = str(file)
    return module


def give(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    monkeypatch.setenv(params.ENVIRONMENT_VARIABLE, json.dumps(values))
    param("depth", 2)


def test_names_read_early_or_late_pass(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, depth="3", smoothing="0.5")
    check_all_used(module)
    assert (param("depth", 2), param("smoothing", 0.0)) == (3, 0.5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dpeth", "did you mean 'depth'?"),
        ("smoothign", "did you mean 'smoothing'?"),
        ("Smoothing", "did you mean 'smoothing'?"),
    ],
)
def test_misspelt_names_are_refused(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    give(monkeypatch, **{name: "1"})
    with pytest.raises(SpecError, match="a name that the file does not read") as raised:
        check_all_used(module)
    assert raised.value.hint == hint


def test_names_that_modules_beside_it_read_pass(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = ModuleType("beside")
    neighbour.__file__ = str(Path(str(module.__file__)).with_name("beside.py"))
    Path(neighbour.__file__).write_text('def dropout(): return brim.param("dropout", 0.1)\n')
    give(monkeypatch, dropout="0.3")
    with pytest.raises(SpecError, match="does not read"):
        check_all_used(module)
    monkeypatch.setitem(sys.modules, "beside", neighbour)
    check_all_used(module)


def test_other_text_is_no_parameter_name(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(str(module.__file__))
    file.write_text(file.read_text() + 'MODE = "train"\ncolumns = ["age"]\n"""of momentum"""\n')
    for name in ("train", "age", "of momentum"):
        give(monkeypatch, **{name: "1"})
        with pytest.raises(SpecError, match="does not read"):
            check_all_used(module)


@pytest.mark.parametrize(
    "text",
    [
        "from brim import param as get\ndef rate(): return get('rate', 0.1)",
        "import brim\ndef rate(): return brim.param(name='rate', default=0.1)",
        "import brim\ndef rate(): return [brim.param(name, 0.1) for name in ('rate', 'other')]",
        "import brim\nget = brim.param\ndef rate(): return get('rate', 0.1)",
    ],
)
def test_other_ways_to_read_a_name_pass(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    Path(str(module.__file__)).write_text(text)
    give(monkeypatch, rate="0.3")
    check_all_used(module)
    give(monkeypatch, rat="0.3")
    with pytest.raises(SpecError, match="does not read"):
        check_all_used(module)


def test_names_that_are_made_while_it_runs_pass(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(str(module.__file__))
    file.write_text(file.read_text() + 'RATES = [brim.param(f"lr_{i}", 0.1) for i in range(2)]\n')
    give(monkeypatch, lr_1="0.2")
    param("lr_1", 0.1)
    check_all_used(module)
