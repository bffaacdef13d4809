"""The code that documents show: Python that compiles, names and options that exist, lines of tests."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import brim
from brim.cli.__main__ import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+\.py)\)")
PROGRAMS = ("brim", ".venv/bin/brim")
BREAKS = frozenset({"&&", "||", "|", "&", ";", ">", "<"})
VARIABLE = re.compile(r"[A-Z_]+=")
SHOWN_AS_WRONG = {"trian"}  # to show the answer


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield block


def compiled(block: str) -> ast.Module:
    """A block of Python, or a part of one; an ellipsis in it stands for arguments."""
    return ast.parse(re.sub(r",? ?…", "", textwrap.dedent(block)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_compiles_and_its_names_exist(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(compiled(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "brim"
                and node.attr not in brim.__all__
            ):
                assert importlib.util.find_spec(f"brim.{node.attr}"), ast.unparse(node)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command of brim that a page shows, up to a word of the shell."""
    for block in blocks(page, "", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if "brim " not in line:
                continue
            for words in _simple_commands(line.removeprefix("$ ")):
                if words and words[0] in PROGRAMS:
                    yield words[1:]


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of the shell, without variables before them; none of a line of prose."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return
    for is_break, part in itertools.groupby(words, key=BREAKS.__contains__):
        if not is_break:
            yield list(itertools.dropwhile(VARIABLE.match, part))


def unknown(words: list[str]) -> list[str]:
    """The words of a command that brim has not: a verb, or options of it."""
    command: click.Command = cli
    context = click.Context(cli)
    options = _options(cli, context)
    for number, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--"):
            if word.partition("=")[0] not in options:
                return [word]
        elif isinstance(command, click.Group) and not word.startswith("-"):
            if word != words[0] and words[number - 1].startswith("--"):
                continue  # the value of an option before the verb
            found = command.get_command(context, word)
            if found is None:
                return [word] if command is cli else []
            command, context = found, click.Context(found, parent=context)
            options |= _options(command, context)
    return []


def _options(command: click.Command, context: click.Context) -> set[str]:
    return {
        name
        for parameter in command.get_params(context)
        for name in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    found = [word for words in commands(page) for word in unknown(words)]
    assert set(found) <= SHOWN_AS_WRONG


def test_commands_are_found() -> None:
    shown = sum(1 for page in PAGES for _ in commands(page))
    assert shown > 100


def test_unknown_words_are_found() -> None:
    assert unknown(["train", "FILE.py", "--wrokers", "4"]) == ["--wrokers"]
    assert unknown(["trian", "FILE.py"]) == ["trian"]
    assert unknown(["run", "--workers", "4", "--", "python", "x.py", "--lr", "1"]) == []
    assert unknown(["--server", "kubernetes://team", "status", "job"]) == []


def test_recipes_are_lines_of_tested_scripts() -> None:
    page = ROOT / "docs" / "guides" / "recipes.md"
    for part in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        scripts = [(page.parent / link).read_text(encoding="utf-8") for link in LINK.findall(part)]
        lines = {line.strip() for script in scripts for line in script.splitlines()}
        for _, block in BLOCK.findall(part):
            missing = [line for line in block.splitlines() if line.strip() not in lines | {""}]
            assert not missing, part.partition("\n")[0]
