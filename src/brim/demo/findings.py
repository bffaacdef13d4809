"""A demo, and its findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of a demo.

    Args:
        numbers: everything, in types that JSON has; `held` says whether all claims did.
        table: a heading and rows.
        sentence: the finding, or the claim that did not hold.
        figure: a picture or page of it.
    """

    numbers: dict[str, Any]
    table: tuple[Sequence[str], Sequence[Sequence[str]]]
    sentence: str
    figure: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """One demo.

    Args:
        minutes: how long it takes, in words.
        title: one line about it.
        needs: the extra of brim that has each package which it imports.
        run: performs it: in a folder of its own, reporting its progress, in full or, with `quick`,
            smaller.
    """

    minutes: str
    title: str
    needs: dict[str, str]
    run: Callable[[Path, Callable[[str], None], bool], Findings]
