"""The words of brim: one name per class, plain first lines, and no refused words.

`docs/glossary.md` has the terms and the refused words. Class names that still stand for several
things are listed here. The lists may only shrink: a listed name that stands for one thing fails.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"": ROOT / "src" / "brim", "lab/": ROOT / "lab" / "src" / "brim_lab"}
GLOSSARY = ROOT / "docs" / "glossary.md"
# Made from the code, where its words are looked at.
GENERATED = {ROOT / "docs" / "reference" / "python.md"}

# Public names of classes that still stand for several things.
SHARED_NAMES = frozenset(
    {
        "Holding",
        "Job",
        "Keeper",
        "Prints",
        "Result",
        "Run",
        "Settings",
        "Start",
        "State",
        "View",
    }
)

# Names of private classes that several modules have. Each is seen in its module only, so it may
# be short; but a reader who searches for it finds the others, so there may not be more of them.
SHARED_PRIVATE_NAMES = frozenset({"_Replay", "_Running", "_Watch"})

# A first line names its subject: it begins with a verb ("Return …") or with a noun ("The …").
_NO_SUBJECT = """
    after also anybody anyone anything as at because before by everybody everyone everything
    everywhere for from he hence her here him his how if i in it its my no nobody none nothing not
    of on once only or our she so somebody someone something that their them then there these they
    this those to until us was we were what when where whether which while who whoever whom whose
    why with without you your is are was were has had can must may
"""
NO_SUBJECT = frozenset(_NO_SUBJECT.split())

_Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> Mapping[str, ast.Module]:
    """The modules of brim, by their path below `src/brim`, and those of the laboratory."""
    return {
        f"{prefix}{path.relative_to(folder)}": ast.parse(path.read_text())
        for prefix, folder in SOURCES.items()
        for path in sorted(folder.rglob("*.py"))
    }


def classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return found


def poor_heads(docstring: str) -> Iterator[str]:
    head, _, below = docstring.partition("\n")
    if not head.endswith("."):
        yield "does not end its first line with a full stop"
    elif below and not below.startswith("\n"):
        yield "goes on right below its first line"
    if re.split(r"\W", head, maxsplit=1)[0].lower() in NO_SUBJECT:
        yield "does not begin with a verb or a noun"


def refused_words() -> dict[str, str]:
    """The refused words of the glossary, each with what to say instead."""
    _, _, table = GLOSSARY.read_text().partition("## Refused words")
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.MULTILINE)
    return {
        word.strip(): instead
        for words, instead in rows
        if words not in ("word", "---")
        for word in words.split(",")
    }


@functools.cache
def refused() -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(refused_words())})\b", re.IGNORECASE)


def refused_in(text: str) -> Iterator[str]:
    instead = refused_words()
    for match in refused().finditer(re.sub(r"`[^`\n]*`|state machine|--leader-elect\b", "", text)):
        yield f"says {match[0]!r}: {instead[match[0].lower()]}"


def faults() -> Iterator[str]:
    """What is to be mended, each with its place."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, _Definition) and (docstring := ast.get_docstring(node)):
                at = f"{path}:{node.body[0].lineno}"
                yield from (f"{at} {each}" for each in poor_heads(docstring))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                at = f"{path}:{node.lineno}"
                yield from (f"{at} {each}" for each in refused_in(node.value))


def test_docstrings_begin_with_a_verb_or_a_noun_and_words_are_plain() -> None:
    to_mend = list(faults())
    assert not to_mend, "\n".join(to_mend)


def test_a_class_name_exists_once() -> None:
    shared = {name: where for name, where in classes().items() if len(where) > 1}
    public = {name for name in shared if not name.startswith("_")}
    new = {name: shared[name] for name in public - SHARED_NAMES}
    assert not new, f"say in one of the names what it is: {new}"
    assert not SHARED_NAMES - public, "these stand for one thing now: remove them from SHARED_NAMES"
    assert shared.keys() - public == SHARED_PRIVATE_NAMES


@pytest.mark.parametrize(
    ("docstring", "problems"),
    [
        ("Return the sum.", 0),
        ("The sum of all parts.\n\n    With a reason.", 0),
        ("Return the sum", 1),
        ("Return the sum.\n    None where there is none.", 1),
        ("Whether it is so.", 1),
        ("What comes of\n    it.", 2),
    ],
)
def test_a_poor_first_line_is_found(docstring: str, problems: int) -> None:
    assert len(list(poor_heads(docstring))) == problems


def test_a_refused_word_is_found() -> None:
    assert list(refused_in("the Quorum of `quorum` members"))
    assert not list(refused_in("the round of `quorum` members, a state machine"))


@pytest.mark.parametrize(
    "page",
    [
        *sorted(set((ROOT / "docs").rglob("*.md")) - GENERATED),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((ROOT / "tests").rglob("attempts*.md")),
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_pages_have_no_refused_words(page: Path) -> None:
    text = page.read_text()
    if page == GLOSSARY:
        text = text.partition("## Refused words")[0]
    found = [
        f"{page.name}:{number} {each}"
        for number, line in enumerate(text.split("\n"), 1)
        for each in refused_in(line)
    ]
    assert not found, "\n".join(found)


def test_the_glossary_has_each_term_once_in_order() -> None:
    terms, _, _ = GLOSSARY.read_text().partition("## Refused words")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", terms, re.MULTILINE)
    assert len(rows) == len({term for term, _ in rows}) > 50
    for term, meaning in rows:
        assert meaning.endswith("."), term
        assert not set(term.lower().split(", ")) & {word.lower() for word in refused_words()}, term
