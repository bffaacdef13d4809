"""The promises of docs/promises.md, and of the pages that say more, each with a test of the gate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
# A section or a bold start of a paragraph. Those that promise nothing: figures are the benchmarks'.
START = re.compile(r"^(?=#+ |\*\*)", re.MULTILINE)
WITHOUT = {
    "README.md": ("## Your own model", "## Where to go", "## Install", "**brim is on", "## Status"),
    "docs/tour.md": ("# A tour", "## The demo"),
    "docs/many-jobs.md": ("**Not yet:**",),
}


def _rows(text: str) -> list[tuple[str, str]]:
    """The cells of tables with two columns, without their heads."""
    return re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)[1:]


def plain(text: str) -> str:
    """The text without line breaks and addresses."""
    return " ".join(LINK.sub(r"\1", text).split())


def _read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


PROMISED, _, SENTENCES = _read("docs/promises.md").partition("## Each sentence and its tests")
PAGES = {page: _read(page) for page in WITHOUT}
SAID = plain(" ".join([PROMISED, *PAGES.values()]))
SHOWN = {
    promise: re.findall(r"`(tests/[^`]+::test_\w+)`", tests) for promise, tests in _rows(SENTENCES)
}


def test_each_promise_has_a_row() -> None:
    cells = _rows(PROMISED)
    assert len(cells) >= 10
    sentences = {text for cell, _ in cells for text in re.split(r"(?<=\.) ", plain(cell))}
    assert sentences - SHOWN.keys() == set()


def test_a_promise_is_shown_by_files_it_names() -> None:
    for cell, tests in _rows(PROMISED):
        named = {link.removeprefix("../") for _, link in LINK.findall(tests)}
        folders = {str(Path(link).parent) for link in named if link.endswith("table.py")}
        files_named = {
            test.partition("::")[0]
            for sentence in re.split(r"(?<=\.) ", plain(cell))
            for test in SHOWN[sentence]
        }
        assert named & files_named or folders & {str(Path(file).parent) for file in files_named}, (
            cell
        )


@pytest.mark.parametrize("page", PAGES)
def test_each_section_of_a_page_has_a_row(page: str) -> None:
    for part in filter(None, START.split(PAGES[page])):
        if not part.startswith(WITHOUT[page]):
            assert any(promise in plain(part) for promise in SHOWN), part.partition("\n")[0]


@pytest.mark.parametrize("promise", SHOWN)
def test_a_row_has_words_of_a_page(promise: str) -> None:
    assert promise in SAID
    assert SHOWN[promise]


def gate_tests(session: pytest.Session, file: str) -> Iterator[str]:
    """The tests of a file of which a case at least is not long."""
    module = pytest.Module.from_parent(session, path=ROOT / file)
    for item in module.collect():
        if isinstance(item, pytest.Function) and not item.get_closest_marker("long"):
            yield f"{file}::{item.originalname}"


def test_the_gate_runs_what_shows_a_promise(request: pytest.FixtureRequest) -> None:
    shown_tests = {test for tests in SHOWN.values() for test in tests}
    files = {test.partition("::")[0] for test in shown_tests}
    run = {test for file in files for test in gate_tests(request.session, file)}
    assert shown_tests - run == set()
