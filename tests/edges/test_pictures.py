"""The pictures of the documents are drawn from records of real runs, and load quickly."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SCRIPT = runpy.run_path(str(PICTURES / "make_demo.py"))
RECORDS: dict[str, Any] = json.loads((PICTURES / "demo.json").read_text())
PICTURE = (PICTURES / "demo.svg").read_text()


def test_the_demos_picture_is_drawn_from_its_records() -> None:
    assert SCRIPT["draw"](RECORDS) == PICTURE, "python docs/pictures/make_demo.py draws it again"


def test_the_demos_runs_ended_alike() -> None:
    broken, alone = RECORDS["broken"], RECORDS["alone"]
    assert broken["losses"] == alone["losses"]
    assert broken["weights_sha256"] == alone["weights_sha256"]
    assert PICTURE.count(broken["weights_sha256"]) == 2
    assert [clause.split()[0] for _, clause in broken["faults"]] == ["kill", "add", "term"]
    assert [count for _, count in broken["workers"]] == [4, 4, 6, 5]
    assert [count for _, count in alone["workers"]] == [1]


def test_the_demos_faults_are_those_of_the_makefile() -> None:
    makefile = (PICTURES.parents[1] / "Makefile").read_text()
    for _, clause in RECORDS["broken"]["faults"]:
        assert clause in makefile


def test_pictures_are_small() -> None:
    large = [path.name for path in PICTURES.glob("*.*g") if path.stat().st_size > 100_000]
    assert not large
