"""The zoo's table has distinct names and existing files."""

from __future__ import annotations

from zoo.running import CASES
from zoo.table import TABLE


def test_the_table_is_a_zoo() -> None:
    names = [case.name for case in TABLE]
    assert len(names) == len(set(names)) >= 60
    assert {case.source for case in TABLE} <= {path.name for path in CASES.glob("*.py")}
