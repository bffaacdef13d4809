"""The words of brim: one name per class, plain first lines, nouns for names, no refused words.

`docs/glossary.md` has the terms and the refused words. Class names that still stand for several
things are listed here, and packages whose names or docstrings are still too full of pronouns. The
lists may only shrink: an entry that is not needed any more, or could be lower, fails.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"": ROOT / "src" / "brim", "lab/": ROOT / "lab" / "src" / "brim_lab"}
GLOSSARY = ROOT / "docs" / "glossary.md"
# Made from the code, where its words are looked at.
GENERATED = {
    ROOT / "docs" / "reference" / "python.md",
    *(ROOT / "docs" / "reference" / "python").glob("*.md"),
}

# Public names of classes that still stand for several things.
SHARED_NAMES = frozenset(
    {
        "Job",
        "Keeper",
        "Result",
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

# Words that name nothing by themselves: pronouns, determiners, relative words, prepositions, adverbs
# of place and time, auxiliaries, and participles of verbs that say only that something was done.
# `n`, `up`, `found`, `seen`, `out=` of torch, and `left` beside `right` are names of the field.
_PRONOUNS = """
    another any anybody anyone anything both each either enough every everybody everyone
    everything few fewer he her hers him his it its least less many mine more most much my neither
    no nobody none not nothing one ones other others our ours own same several she some somebody
    someone something such that their theirs them these they this those us we what whatever which
    whichever who whoever whom whose you your yours
"""
_PLACES_AND_TIMES = """
    about above across after again against ahead alone along already also although always among
    and anywhere apart around as at away because before behind below beside besides between but by
    during earlier else elsewhere even ever everywhere for from hence here how if in inside instead
    into just later meanwhile near never nor of off on only onto or otherwise outside over since so
    somewhere soon still than then there though through thus till to together too toward under
    until upon very when where whether while why with within without yet
"""
_AUXILIARIES = """
    am are be been being can could did do does has have having is may might must shall should was
    were will would asked began begun brought given gone got heard held kept known left made meant
    said shown taken told wanted
"""
FUNCTION_WORDS = frozenset((_PRONOUNS + _PLACES_AND_TIMES + _AUXILIARIES).split())

# Words with which a docstring says in a clause what English says by a noun.
RELATIVES = re.compile(r"\b(?:who|whom|whoever|what|whatever|nobody)\b", re.IGNORECASE)

# The most that a package may have: function words in a hundred bound names, relatives in a thousand
# words of docstrings; and words in the name of a test.
MAX_POOR_NAMES = 1.5
MAX_RELATIVES = 6.0
MAX_TEST_WORDS = 8

# Nouns that are counted in messages, and how often a module has one in the plural behind a number: a
# list, a limit, or a number that is never 1.
_COUNTED = re.compile(
    r" (?:devices|workers|jobs|nodes|replicas|steps|samples|rows|hosts|servers|files|pods)\b(?!/)"
)
ALWAYS_SEVERAL = {
    "coordination/job/reduction.py": 1,
    "domain/submission.py": 1,
    "embeddings/tables/kernels.py": 1,
    "policies/allotment.py": 1,
    "report/course.py": 1,
    "report/run.py": 1,
    "serving/application.py": 1,
    "serving/bodies.py": 1,
    "serving/inputs.py": 2,
    "simulator/compare.py": 1,
    "simulator/engine.py": 1,
    "simulator/happened.py": 1,
    "simulator/importers/formats.py": 1,
    "simulator/own_policy.py": 2,
    "storage/bundles.py": 1,
    "storage/job_file.py": 1,
    "train/checks/left_over.py": 1,
    "train/entry/keras.py": 1,
    "train/entry/training_file.py": 1,
    "train/exchange/distributed.py": 1,
    "train/exchange/folding.py": 1,
    "train/exchange/trade.py": 1,
    "train/trainer/arguments.py": 1,
    "train/trainer/elastic.py": 1,
    "user_code/own_code.py": 1,
}

_Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> Mapping[str, ast.Module]:
    """The modules of brim, by their path below `src/brim`, and those of the laboratory."""
    return {
        f"{prefix}{path.relative_to(folder)}": ast.parse(path.read_text())
        for prefix, folder in SOURCES.items()
        for path in sorted(folder.rglob("*.py"))
    }


def definitions(tree: ast.Module) -> Iterator[_Definition]:
    """Yield a module and what it defines at any depth; no expression is looked at."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Definition):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            held = getattr(node, block, ())
            waiting += held if isinstance(held, list) else ()


def classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path, tree in sources().items():
        for node in definitions(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path}:{node.lineno}")
    return found


def poor_heads(docstring: str) -> Iterator[str]:
    head, _, rest = docstring.partition("\n")
    if not head.endswith("."):
        yield "does not end its first line with a full stop"
    elif rest and not rest.startswith("\n"):
        yield "goes on right below its first line"
    if re.split(r"\W", head, maxsplit=1)[0].lower() in NO_SUBJECT:
        yield "does not begin with a verb or a noun"


@functools.cache
def refused_words() -> dict[str, str]:
    """The refused words of the glossary, each with its substitute."""
    _, _, table = GLOSSARY.read_text().partition("## Refused words")
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", table, re.MULTILINE)
    return {
        word.strip(): substitute
        for words, substitute in rows
        if words not in ("word", "---")
        for word in words.split(",")
    }


@functools.cache
def refused() -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(refused_words())})\b", re.IGNORECASE)


def refused_in(text: str) -> Iterator[str]:
    substitutes = refused_words()
    for match in refused().finditer(re.sub(r"`[^`\n]*`|state machine|--leader-elect\b", "", text)):
        yield f"says {match[0]!r}: {substitutes[match[0].lower()]}"


def fixed_plurals(tree: ast.Module) -> Iterator[str]:
    """Yield each number, other than the end of a range, before a noun in the plural, as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            texts = list(map(str, parts))
            for head, number, tail in zip(["", *texts], texts, texts[1:], strict=False):
                noun = _COUNTED.match(tail)
                if number == "{}" and noun and not head.endswith(" to "):
                    yield f"{head[-20:]}{number}{noun[0]}"


def faults() -> Iterator[str]:
    """The faults to mend, each with its place."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, _Definition) and (docstring := ast.get_docstring(node)):
                place = f"{path}:{node.body[0].lineno}"
                yield from (f"{place} {fault}" for fault in poor_heads(docstring))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                place = f"{path}:{node.lineno}"
                yield from (f"{place} {fault}" for fault in refused_in(node.value))


def test_docstrings_begin_with_a_verb_or_noun() -> None:
    to_mend = list(faults())
    assert not to_mend, "\n".join(to_mend)


def test_a_class_name_exists_once() -> None:
    shared = {name: places for name, places in classes().items() if len(places) > 1}
    public = {name for name in shared if not name.startswith("_")}
    new = {name: shared[name] for name in public - SHARED_NAMES}
    assert not new, f"say in one of the names what it is: {new}"
    assert not SHARED_NAMES - public, "these stand for one thing now: remove them from SHARED_NAMES"
    assert shared.keys() - public == SHARED_PRIVATE_NAMES


class Share(NamedTuple):
    """How many of some names or words are of a kind."""

    matching: int
    total: int

    def per(self, number: int) -> float:
        return number * self.matching / max(1, self.total)


@functools.cache
def modules_of_packages() -> Mapping[str, tuple[ast.Module, ...]]:
    """All modules, by the name of their package or, outside of brim, of their folder."""
    found: dict[str, list[ast.Module]] = defaultdict(list)
    for path, tree in sources().items():
        package, _, rest = path.partition("/")
        found[package if rest else "brim"].append(tree)
    for folder in ("tests", "benchmarks"):
        found[folder] = [ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")]
    return {package: tuple(trees) for package, trees in sorted(found.items())}


@pytest.fixture(scope="module", autouse=True)
def _trees_for_this_file_alone() -> Iterator[None]:
    """Let go of a gigabyte of trees, through which each collection of garbage would go."""
    yield
    sources.cache_clear()
    modules_of_packages.cache_clear()


_SCOPES = (
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def bound_by(node: ast.AST) -> str | None:
    """The name that a node binds: of a variable, parameter, attribute, function or class."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return f".{name}"
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def bound_names(tree: ast.Module) -> Iterator[frozenset[str]]:
    """Yield the names that each scope binds; attributes are with the scope that sets them."""
    names: dict[ast.AST, set[str]] = defaultdict(set)
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        node, scope = waiting.pop()
        if (name := bound_by(node)) and name not in ("self", "cls"):
            names[scope].add(name)
        inner = node if isinstance(node, _SCOPES) else scope
        waiting += ((child, inner) for child in ast.iter_child_nodes(node))
    yield from map(frozenset, names.values())


def poor_names(names: frozenset[str]) -> list[str]:
    """Those of a scope's names that are function words."""
    plain = {name: name.strip("._").lower() for name in names}
    sides = {"left"} if "right" in plain.values() else set()
    return [name for name, word in plain.items() if word in FUNCTION_WORDS - sides]


def share_of_names(trees: tuple[ast.Module, ...]) -> Share:
    scopes = [names for tree in trees for names in bound_names(tree)]
    return Share(sum(len(poor_names(names)) for names in scopes), sum(map(len, scopes)))


def share_of_relatives(trees: tuple[ast.Module, ...]) -> Share:
    texts = [
        docstring
        for tree in trees
        for node in definitions(tree)
        if (docstring := ast.get_docstring(node))
    ]
    words = sum(len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) for text in texts)
    return Share(sum(len(RELATIVES.findall(text)) for text in texts), words)


def long_test_names() -> list[str]:
    return [
        node.name
        for tree in modules_of_packages()["tests"]
        for node in definitions(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name.split("_")[1:]) > MAX_TEST_WORDS
    ]


def test_names_are_nouns_and_verbs() -> None:
    shares = {name: share_of_names(trees) for name, trees in modules_of_packages().items()}
    poor = {name: share.per(100) for name, share in shares.items()}
    assert not {name: share for name, share in poor.items() if share > MAX_POOR_NAMES}


def test_docstrings_have_nouns_for_clauses() -> None:
    shares = {name: share_of_relatives(trees) for name, trees in modules_of_packages().items()}
    relative = {name: share.per(1000) for name, share in shares.items()}
    assert not {name: share for name, share in relative.items() if share > MAX_RELATIVES}


def test_test_names_are_short() -> None:
    assert not long_test_names()


def test_function_words_among_names_are_found() -> None:
    code = """
def known(each, out, *, job):
    left, right = each
    self.told, node_held = [what for what in left], out
    with open(job) as there: pass
"""
    names = {name for scope in bound_names(ast.parse(code)) for name in poor_names(scope)}
    assert names == {"known", "each", ".told", "what", "there"}


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('f"held {n} devices"', ["held {} devices"]),
        ('f"from 1 to {n:,} workers of {m} jobs"', [" workers of {} jobs"]),
        ('f"from 1 to {n:,} workers"', []),
        ("f\"{counted(n, 'worker')} of {m}\"", []),
    ],
)
def test_a_fixed_plural_is_found(text: str, found: list[str]) -> None:
    assert list(fixed_plurals(ast.parse(text))) == found


def test_numbers_agree_with_their_nouns() -> None:
    found = {path: list(fixed_plurals(tree)) for path, tree in sources().items()}
    plurals = {
        path: texts for path, texts in found.items() if texts and not path.startswith("lab/")
    }
    counts = {path: len(texts) for path, texts in plurals.items()}
    assert counts == ALWAYS_SEVERAL, f"write brim.domain.quantities.counted, or count: {plurals}"


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
        f"{page.name}:{number} {fault}"
        for number, line in enumerate(text.split("\n"), 1)
        for fault in refused_in(line)
    ]
    assert not found, "\n".join(found)


def test_the_glossary_has_each_term_once_in_order() -> None:
    terms, _, _ = GLOSSARY.read_text().partition("## Refused words")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \|$", terms, re.MULTILINE)
    assert len(rows) == len({term for term, _ in rows}) > 50
    for term, meaning in rows:
        assert meaning.endswith("."), term
        assert not set(term.lower().split(", ")) & {word.lower() for word in refused_words()}, term
