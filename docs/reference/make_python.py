"""Makes the reference of the public Python API from signatures and docstrings.

`python.md` lists its pages, which are in `python/`: one for each public name or class, and one for
the options of runs and jobs.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import brim
from brim.runs.keywords import keyword_of
from brim.runs.options import run_options
from brim.runs.submitting import submission

FOLDER = Path(__file__).parent
_INDEX, _PAGES = "python.md", "python/{}.md"
_HEAD = """# Python

The public names of `import brim`, generated from the docstrings in the code by `python docs/reference/make_python.py`.
Importing brim does not load torch until you use a name that needs it. Wrong input raises `brim.errors.SpecError`,
whose message has four parts: its subject, what brim got, what it needs, and a hint.

| page | what it is |
|---|---|
"""
_LINE = 88  # letters of a call on one line
# public name -> the class of what it returns, which is described with it
_RETURNED = {"join": (("brim.train.job", "Job"), ("brim.train.step", "MicroBatch"))}
_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example|Source)(?:: *(.*)|s? as (.*))")


def render() -> dict[str, str]:
    """Return the text of each page, by its path beside this file."""
    pages = {_PAGES.format(name): text for name, text in _pages()}
    rows = (_row(path, text) for path, text in pages.items())
    return {_INDEX: _HEAD + "".join(rows), **pages}


def _pages() -> Iterator[tuple[str, str]]:
    for name in brim.__all__:
        thing = getattr(brim, name)
        if name == "train":
            thing = importlib.import_module("brim.runs.verbs").train
        if isinstance(thing, ModuleType):
            yield f"brim.{name}", _text(_module(name, thing))
        elif not isinstance(thing, str):
            yield f"brim.{name}", _text(_entry(f"brim.{name}", thing, "#"))
            yield from _returned(name)
    yield "options", _text(_options())


def _text(parts: Iterator[str]) -> str:
    return "\n".join(parts).rstrip() + "\n"


def _row(path: str, text: str) -> str:
    """The row of a page in the list: its heading and its first sentence."""
    heading = text.partition("\n")[0].removeprefix("# ")
    prose = re.sub(r"```.*?```", "", text.partition("\n")[2], flags=re.DOTALL).strip()
    sentence = " ".join(re.split(r"(?<=\.)\s|\n\n", prose, maxsplit=1)[0].split())
    return f"| [{heading}]({path}) | {sentence} |\n"


def _module(name: str, module: ModuleType) -> Iterator[str]:
    yield f"# brim.{name}\n\n{_prose(module)}"
    for each in module.__all__:
        yield from _entry(f"brim.{name}.{each}", getattr(module, each), "##")


def _returned(name: str) -> Iterator[tuple[str, str]]:
    for module, each in _RETURNED.get(name, ()):
        thing = getattr(importlib.import_module(module), each)
        yield each, _text(_entry(each, thing, "#", made_by_users=False))


def _entry(name: str, thing: Any, level: str, *, made_by_users: bool = True) -> Iterator[str]:
    """A function, or a class with its methods."""
    yield f"{level} {name}\n"
    if made_by_users:
        yield f"```python\n{_call(name, thing)}\n```\n"
    yield _prose(thing)
    if not inspect.isclass(thing):
        return
    for method, about in vars(thing).items():
        if method.startswith("_") or not inspect.getdoc(about):
            continue
        heading = f"{level}# {name.rpartition('.')[2]}.{method}\n"
        if isinstance(about, property):
            yield f"{heading}\n{_prose(about)}"
        elif inspect.isfunction(about):
            yield f"{heading}\n```python\n{_call(method, about)}\n```\n\n{_prose(about)}"


def _call(name: str, thing: Any) -> str:
    """`name(arguments) -> result`, without self."""
    signature = inspect.signature(thing)
    shown = [each for each in signature.parameters.values() if each.name != "self"]
    arguments = str(
        signature.replace(parameters=[each.replace(annotation=_Plain(each)) for each in shown])
    )
    line = name + arguments.partition(" -> ")[0] + _result(signature)
    return line if len(line) <= _LINE else _broken(line)


def _broken(call: str) -> str:
    """A call with one argument a line."""
    depth, lines = 0, [""]
    for letter in call:
        depth -= letter in ")]"
        if letter == ")" and depth == 0:
            lines += [""]
        lines[-1] += letter
        if (letter == "(" and depth == 0) or (letter == "," and depth == 1):
            lines += [""]
        depth += letter in "(["
    head, *arguments, tail = (line.strip() for line in lines)
    return "\n".join([head, *(f"    {argument}" for argument in arguments), tail])


class _Plain:
    """An annotation that is shown as it is written, without quotes."""

    __module__ = "builtins"

    def __init__(self, parameter: inspect.Parameter) -> None:
        self._text = parameter.annotation if isinstance(parameter.annotation, str) else "Any"

    def __repr__(self) -> str:
        return self._text


def _result(signature: inspect.Signature) -> str:
    given = signature.return_annotation
    return f" -> {given}" if isinstance(given, str) and given != "None" else ""


def _prose(thing: Any) -> str:
    """The docstring as Markdown."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    shown: list[str] = []
    section = ""
    for line in lines:
        head = _SECTION.fullmatch(line)
        if head:
            section = head[1]
            shown.append(
                f"\n*{section}*{': ' + (head[2] or head[3]) if head[2] or head[3] else ''}\n"
            )
        elif line.startswith(" ") and section == "Example":
            shown.append(f"    {line.strip().split('# doctest')[0].rstrip()}")
        elif re.match(r"    \w[\w, .*]*: ", line) and section in ("Args", "Attributes", "Raises"):
            names, _, text = line.strip().partition(": ")
            shown.append(f"- `{names}`: {text}")
        elif line.lstrip().startswith((">>>", "...")):
            shown.append(f"    {line.strip().split('# doctest')[0].rstrip()}")
        else:
            section = section if line.startswith(" ") or not line else ""
            shown.append(line.strip() if not section else f"  {line.strip()}" if line else "")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(shown)).strip() + "\n"


def _options() -> Iterator[str]:
    """What `brim.train`, `brim.run` and `brim.submit` take,
    from the options of the command line.
    """
    yield "# Options\n"
    yield (
        "Keyword arguments of `brim.train`, `brim.run` and `brim.submit`; `set` and `env` take a "
        "dict.\n"
    )
    yield "| keyword | for | meaning |\n|---|---|---|"
    runs, jobs = _described(run_options), _described(submission)
    for name in [*runs, *(each for each in jobs if each not in runs)]:
        where = (
            "all" if name in runs and name in jobs else "submit" if name in jobs else "train, run"
        )
        text = re.sub(r"--(?:no-)?([a-z]+(?:-[a-z]+)*)", _as_keyword, (runs | jobs)[name])
        yield f"| `{name}` | {where} | {text.replace('|', chr(92) + '|')} |"


def _as_keyword(found: re.Match[str]) -> str:
    name = found[1].replace("-", "_")
    return f"`{name}=False`" if found[0].startswith("--no-") else f"`{name}`"


def _described(decorate: Any) -> dict[str, str]:
    """The help of each option, with its default."""

    def nothing(**_: Any) -> None:
        """For its options."""

    found = {}
    for option in click.command()(decorate(nothing)).params:
        if isinstance(option, click.Option) and option.expose_value:
            plain = isinstance(option.default, str | int) and option.default not in ("", False)
            default = f" [default: {option.default}]" if plain and option.show_default else ""
            found[keyword_of(option)] = f"{option.help}{default}"
    return found


def write() -> None:
    """Write all pages, and remove those of names that are gone."""
    pages = render()
    for path in FOLDER.joinpath(_PAGES).parent.glob("*.md"):
        if _PAGES.format(path.stem) not in pages:
            path.unlink()
    for name, text in pages.items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
