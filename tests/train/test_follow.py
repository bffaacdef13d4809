"""Parts of a log that are yet to come: impossible ones are named at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim import data
from brim.data.datasets import Columnar
from brim.errors import SpecError


@pytest.fixture
def history(tmp_path: Path) -> Columnar:
    path = tmp_path / "history.csv"
    path.write_text("color,sold\n" + "red,0\nblue,1\n" * 10)
    return data.csv(path, columns=[data.vocabulary("color")], target=data.target("sold"))


@pytest.mark.parametrize("pattern", ["2026-*/clicks.csv", "clicks/**", "**/*.csv"])
def test_wildcards_are_for_the_names_of_parts_alone(history: Columnar, pattern: str) -> None:
    with pytest.raises(SpecError, match="need a folder without wildcards"):
        data.follow(history, pattern, rows=10)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("clics/*.csv", "no such folder.*did you mean 'clicks'"),
        ("clicks", r"got a folder.*hint: .*clicks/\*"),
        ("history.csv/*.csv", "history.csv, which is no folder"),
    ],
)
def test_missing_folders_are_not_awaited(
    history: Columnar, pattern: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "clicks").mkdir()
    followed = data.follow(history, str(tmp_path / pattern), rows=10, patience=1e9)
    with pytest.raises(SpecError, match=rf"(?s){message}"):
        next(iter(followed))


def test_rows_come_in_the_order_of_names(history: Columnar, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "2.csv").write_text("color,sold\n" + "blue,1\n" * 6)
    (tmp_path / "parts" / "1.csv").write_text("color,sold\n" + "red,0\n" * 6)
    followed = data.follow(history, str(tmp_path / "parts/*.csv"), rows=10)
    assert [float(target) for _, target in followed] == [0.0] * 6 + [1.0] * 4
