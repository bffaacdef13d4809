"""Which version of a directory comes next."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.serving.manifest import BundleManifest
from brim.serving.versions import Found, next_of


def at(step: int, base: int | None = None) -> Found:
    manifest = BundleManifest(
        version=f"v{step}",
        step=step,
        base="" if base is None else f"v{base}",
        weights_sha256="",
        checkpoint="",
        training_file="",
        threads=1,
        versions={},
    )
    return Found(Path(f"{step}{'' if base is None else '-delta'}"), manifest)


@pytest.mark.parametrize(
    ("now", "there", "chosen"),
    [
        (None, [at(1), at(2)], at(2)),
        (None, [at(2, 1)], None),
        (1, [at(1)], None),
        (2, [at(1)], None),
        (1, [at(1), at(2, 1), at(3, 2)], at(2, 1)),
        (2, [at(1), at(2, 1), at(3, 2)], at(3, 2)),
        (1, [at(3), at(2, 1)], at(3)),
        (1, [at(3, 1), at(2, 1)], at(3, 1)),
        (1, [at(3, 2)], None),
        (3, [at(4, 1)], None),
    ],
)
def test_the_newest_bundle_or_else_the_delta_for_what_is_served(
    now: int | None, there: list[Found], chosen: Found | None
) -> None:
    current = None if now is None else at(now).manifest
    found, _ = next_of(there, current)
    assert (found and found.path) == (chosen and chosen.path)


def test_a_delta_that_waits_says_for_what() -> None:
    _, waiting = next_of([at(3, 2), at(4, 3)], at(1).manifest)
    assert list(waiting) == [Path("3-delta")], "the one behind it waits for that one alone"
    assert "changes version v2, and v1 is served" in waiting[Path("3-delta")]
