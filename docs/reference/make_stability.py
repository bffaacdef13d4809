"""Makes stability.md, the features with their stability, from the table that help texts use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brim.domain.stability import FEATURES, Feature, Stability

PAGE = Path(__file__).with_name("stability.md")
_HEAD = """# Stability of features

Generated from [domain/stability.py](../../src/brim/domain/stability.py) by `python docs/reference/make_stability.py`.
`brim --help` marks verbs and options that are not stable.

| stability | promise |
|---|---|
| stable | Names and meaning stay. A change is announced one release ahead; files of earlier versions stay readable |
| beta | Complete and tested. Names, objects and files may change in a release; the changelog says how to move |
| alpha | May change or go in any release. Some need an alpha API or feature gate of another system |

An option that no row names is as stable as its verb, or as the option that it goes with. Exactness, and every promise
of the README, hold for all features unless their guide says otherwise.

"""


def render() -> str:
    """Return the page."""
    rows = [row for stability in Stability for row in _rows(stability)]
    table = [
        "| feature | stability | verbs, options, kinds and names | note |",
        "|---|---|---|---|",
    ]
    return _HEAD + "\n".join([*table, *rows]) + "\n"


def _rows(stability: Stability) -> Iterator[str]:
    for feature in FEATURES:
        if feature.stability is stability:
            uses = ", ".join(f"`{use}`" for use in _uses(feature))
            yield f"| {feature.name} | {stability} | {uses} | {feature.note} |"


def _uses(feature: Feature) -> Iterator[str]:
    yield from (f"brim {verb}" for verb in feature.verbs)
    yield from feature.options
    yield from feature.kinds
    yield from (f"brim.{name}" for name in feature.names)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
