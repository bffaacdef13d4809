"""A submission from the fields of a form, read as `brim submit` reads its command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.errors import SpecError
from brim.runs.submitting import request_of, submission

if TYPE_CHECKING:
    from brim.wire.cluster import Submit

_ENDINGS = (".py", ".yaml", ".yml")
_MOST_FILES = 2_000
_MOST_SEEN = 20_000  # entries of folders
_HIDDEN = (".", "_")


def files_in(folder: Path) -> list[str]:
    """List the training files and job.yaml that a form offers, relative to the folder."""
    found: list[str] = []
    seen, folders = 0, [folder]
    while folders and len(found) < _MOST_FILES and seen < _MOST_SEEN:
        folder_now = folders.pop(0)
        try:
            entries = sorted(folder_now.iterdir())
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if entry.name.startswith(_HIDDEN) or entry.is_symlink():
                continue
            if entry.is_dir():
                folders.append(entry)
            elif entry.suffix in _ENDINGS:
                found.append(str(entry.relative_to(folder)))
    return found[:_MOST_FILES]


def words_of(fields: Mapping[str, str]) -> list[str]:
    """Return the words of a command line from the fields of a form; empty ones are left out.

    Args:
        fields: `file`, options by their names, and `more`, as one would type it.

    >>> words_of({"file": "a.py", "workers": "1:4", "deadline": "", "more": "--set lr=0.1"})
    ['--workers', '1:4', '--set', 'lr=0.1', '--', 'a.py']

    Raises:
        SpecError: quotes in `more` do not match.
    """
    words: list[str] = []
    for name, value in fields.items():
        text = value.strip()
        if text and name not in ("file", "more"):
            words += [f"--{name}", text]
    try:
        words += shlex.split(fields.get("more", ""))
    except ValueError as error:
        raise SpecError("more options", got=str(error), need="matching quotes") from None
    return [*words, "--", fields.get("file", "").strip()]


def typed_request(words: Sequence[str], *, folder: Path) -> tuple[Submit, list[str]]:
    """Return the request that these words make, and notes for its person.

    Args:
        folder: the file is in it, or below.

    Raises:
        SpecError: something of it is wrong.
    """
    path = folder / words[-1]
    if not words[-1] or not path.resolve().is_relative_to(folder.resolve()):
        need = f"a file in {folder}, where brim dashboard was started"
        raise SpecError("file", got=repr(words[-1]), need=need)
    notes: list[str] = []
    try:
        with _typed.make_context("submit", [*words[:-1], str(path)]) as ctx:
            source: tuple[str, ...] = ctx.params.pop("file")
            note = notes.append
            request: Submit = request_of(ctx, source, ctx.params, say_level=note, warn=note)
            return request, notes
    except click.UsageError as error:
        raise SpecError(
            "options", got=error.format_message(), need="options of brim submit"
        ) from None


@click.command(add_help_option=False)
@submission
def _typed(**_: Any) -> None:
    """Read the options of a submission; nothing is done with them here."""
