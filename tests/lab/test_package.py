"""The laboratory is a package of its own that fits the brim beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import brim
from brim.user_code.plugins import DEMOS, POLICIES, VERBS, how_to_install, load_plugin, plugins

ROOT = Path(__file__).resolve().parents[2]


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def test_both_packages_have_one_version() -> None:
    lab, product = project(ROOT / "lab"), project(ROOT)
    assert lab["version"] == product["version"] == brim.__version__
    (needed,) = (name for name in lab["dependencies"] if name.startswith("brim"))
    assert needed.startswith("brim[")
    assert needed.endswith(f"]=={brim.__version__}")
    assert lab["requires-python"] == product["requires-python"]


def test_missing_laboratory_packages_are_explained() -> None:
    entry_points = project(ROOT / "lab")["entry-points"]
    assert entry_points.keys() == {VERBS, POLICIES, DEMOS}
    for group, names in entry_points.items():
        assert all(how_to_install(group, name) for name in names)
        for name, value in names.items():
            assert plugins(group)[name].value == value
            load_plugin(plugins(group)[name])
    assert how_to_install(VERBS, "train") == ""
