"""The documents' promises about files and names, and the cost of importing brim."""

from __future__ import annotations

import functools
import os
import re
import runpy
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import brim
from brim.domain.job import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "changes").glob("*.md"),
        *(ROOT / "tests").rglob("attempts*.md"),
    ]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)\s]+\)")
CODE_FILE = re.compile(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]+\.\w+)`")


def _words(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(_words(page)) if "://" not in link]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    missing += [name for name in CODE_FILE.findall(_words(page)) if not (ROOT / name).exists()]
    assert not missing


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """The names of a page's headings in links, as repository hosts and the site form them."""
    text = re.sub(r"^ *```.*?^ *```", "", _words(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+?) *$", LINK_TEXT.sub(r"\1", text), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    numbered = [f"{slug}-{count}" for slug in slugs for count in range(1, slugs.count(slug))]
    return frozenset((*slugs, *numbered, *re.findall(r'<a id="([^"]+)">', text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    found = [link.partition("#") for link in LINK.findall(_words(page)) if "://" not in link]
    missing = [
        f"{path}#{anchor}"
        for path, _, anchor in found
        if anchor
        and (target := page.parent / path if path else page).suffix == ".md"
        and anchor not in anchors(target.resolve())
    ]
    assert not missing


@pytest.mark.parametrize(
    ("page", "head"),
    [("docs/design/security.md", "| door |"), ("tests/edges/attempts_of_tenants.md", "| tried by")],
)
def test_rows_of_security_name_their_tests(page: str, head: str) -> None:
    table = _words(ROOT / page).partition(f"\n{head}")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 10
    for row in rows:
        links = (link for link in LINK.findall(row) if link.endswith(".py"))
        files = [(ROOT / page).parent / link for link in links]
        tests = set(re.findall(r"^def (test_\w+)", "\n".join(map(_words, files)), re.MULTILINE))
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= tests, row


def test_pages_named_in_code_exist() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md\b", _words(path)):
            assert (ROOT / page).exists(), f"{path} names {page}"


def test_each_decision_has_a_status() -> None:
    folder = ROOT / "docs" / "design" / "decisions"
    index = dict(
        re.findall(
            r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \| (.+) \|$", _words(folder / "README.md"), re.M
        )
    )
    pages = {page.name: page for page in folder.glob("*.md") if page.name != "README.md"}
    assert index.keys() == pages.keys()
    for name, page in pages.items():
        status = _words(page).splitlines()[2].removeprefix("Status: ")
        assert status == index[name]
        assert re.fullmatch(r"proposed|accepted|superseded by \[.+\]\(([\w-]+\.md)\)", status), name


def test_every_document_is_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "docs" / "README.md", ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(_words(page)) if "://" not in link)
        waiting += [
            (page.parent / link).resolve() for link in links if link and link.endswith(".md")
        ]
    assert not set((ROOT / "docs").rglob("*.md")) - seen


def test_every_document_has_a_place_on_the_site() -> None:
    navigation = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["NAVIGATION"]
    entries = [entry for parts in navigation.values() for part in parts.values() for entry in part]
    pages = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    placeless = [
        str(page)
        for page in pages
        if not any(
            page.match(entry) and len(page.parts) == entry.count("/") + 1 for entry in entries
        )
    ]
    assert not placeless, "name it in NAVIGATION of docs/site/conf.py"


def test_the_public_names_are_the_documented_ones() -> None:
    documented = re.findall(
        r"^\| `brim\.(\w+)` \|", _words(ROOT / "docs" / "README.md"), re.MULTILINE
    )
    assert sorted(brim.__all__) == sorted(documented)
    assert len(brim.__all__) <= 25


@pytest.mark.parametrize("page", ["stability", "timeouts"])
def test_a_generated_reference_is_that_of_the_code(page: str) -> None:
    script = ROOT / "docs" / "reference" / f"make_{page}.py"
    rendered = runpy.run_path(str(script))["render"]()
    assert rendered == _words(script.with_name(f"{page}.md")), f"python {script} makes it again"


def test_the_python_reference_is_that_of_the_code() -> None:
    folder = ROOT / "docs" / "reference"
    rendered = runpy.run_path(str(folder / "make_python.py"))["render"]()
    written = {f"python/{page.name}" for page in (folder / "python").iterdir()} | {"python.md"}
    assert written == rendered.keys()
    for path, text in rendered.items():
        assert text == _words(folder / path), "python docs/reference/make_python.py makes it again"


def test_documented_import_laws_are_the_proven_ones() -> None:
    settings = tomllib.loads(_words(ROOT / "pyproject.toml"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    assert "\n".join(["```", *layers, "```"]) in _words(ROOT / "CONTRIBUTING.md")


def test_each_published_policy_names_its_paper() -> None:
    settings = tomllib.loads(_words(ROOT / "pyproject.toml"))["project"]
    rows = {
        name
        for row in re.findall(r"^\| (`.+?`) \|", _words(ROOT / "docs" / "papers.md"), re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", row)
    }
    assert settings["entry-points"]["brim.baselines"].keys() | {"brim"} <= rows


def test_the_citation_is_of_this_version() -> None:
    version, licence = (
        re.search(rf"^{field}: (\S+)$", _words(ROOT / "CITATION.cff"), re.MULTILINE)
        for field in ("version", "license")
    )
    settings = tomllib.loads(_words(ROOT / "pyproject.toml"))["project"]
    assert version is not None
    assert licence is not None
    assert (version[1], licence[1]) == (brim.__version__, settings["license"])


def test_every_extra_is_listed() -> None:
    settings = tomllib.loads(_words(ROOT / "pyproject.toml"))["project"]
    page = _words(ROOT / "docs" / "guides" / "install.md")
    rows = re.findall(
        r"^\| (`.+?`) \|", page.partition("| extra | for |")[2].partition("\n\n")[0], re.M
    )
    listed = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == settings["optional-dependencies"].keys()


def test_paths_of_a_job_pass_rooms_that_exist() -> None:
    text = _words(ROOT / "docs" / "path-of-a-job.md")
    rooms = re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)
    source = ROOT / "src" / "brim"
    assert [room for room in rooms if not (source / room / "__init__.py").exists()] == []
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    named = {
        word.partition("/")[0]
        for word in re.findall(r"`([a-z_/]+)`|src/brim/([a-z_]+)/", text)
        for word in word
    }
    assert packages <= named


def test_the_readme_shows_its_two_commands_early() -> None:
    lines = _words(ROOT / "README.md").splitlines()
    first = "\n".join(lines[:25])
    assert "make demo" in first
    assert "make test" in first
    assert len(lines) <= 130  # two screens


@pytest.mark.parametrize(
    "program",
    ["import brim", "import brim.cli.__main__ as m; m.cli.main(['--help'])"],
    ids=["import", "help"],
)
def test_torch_is_not_imported(program: str) -> None:
    check = f"import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); {program}"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_help_is_quick() -> None:
    """Under 0.3 s, or under so many times a Python that does nothing, where the machine is slow."""
    bare = statistics.median(_seconds("-c", "pass") for _ in range(5))
    helps = statistics.median(_seconds("-m", "brim.cli", "--help") for _ in range(5))
    assert helps < max(0.3, 12 * bare)


def _seconds(*words: str) -> float:
    """The processor time of a Python, which others on a busy machine do not lengthen."""
    times_before = os.times()
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=300)
    times_after = os.times()
    return sum(times_after[2:4]) - sum(times_before[2:4])  # of children


def test_options_kept_by_resumed_runs_are_documented() -> None:
    page = _words(ROOT / "docs" / "reference" / "command-line.md")
    named = page.partition("cannot change: the file or command,")[2].partition(".\n")[0]
    names_kept = {option.named for option in OPTIONS.values() if option.decides}
    assert set(re.findall(r"`(--[\w-]+)`", named)) == names_kept
