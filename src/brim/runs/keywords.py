"""Options as keyword arguments of Python.

The parsers of the command line read them; errors name them as Python does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from brim.domain.options import reworded
from brim.errors import SpecError, did_you_mean


def context_of(
    command: click.Command, caller: str, arguments: Mapping[str, Any], *words: str
) -> click.Context:
    """Return the parsed options of `command` as Python gave them.

    Those that it did not give are as on the command line.

    Args:
        command: whose options the keywords are, `global_batch_size` for `--global-batch-size`.
        caller: what is called in Python, for errors.
        arguments: None leaves an option to its default.
        words: arguments of the command.

    Raises:
        SpecError: a keyword that is no option, or a value that will not do.
    """
    options = {
        keyword_of(param): param for param in command.params if isinstance(param, click.Option)
    }
    line = [
        word for name, value in arguments.items() for word in _words(caller, name, value, options)
    ]
    with in_python():
        return command.make_context(caller, [*line, "--", *words])


def keyword_of(option: click.Option) -> str:
    """`set` of `--set`, `exact` of `--exact/--no-exact`."""
    return _as_keyword(max(option.opts, key=len).removeprefix("--"))


def _as_keyword(name: str) -> str:
    """The keyword for an option; Python has `async` for itself."""
    return {"async": "asynchronous"}.get(name, name.replace("-", "_"))


def _words(
    caller: str, name: str, value: Any, options: Mapping[str, click.Option]
) -> Iterator[str]:
    """The keyword as the command line writes it."""
    if name not in options:
        close = did_you_mean(name, options)
        raise SpecError(
            f"{name}=",
            got=f"a keyword that {caller} does not have",
            need="one of its options",
            hint=close if close.startswith("did") else _hint_of_set(name, value, options),
        )
    option = options[name]
    if value is None:
        return
    if option.is_flag:
        yield from _flag(name, value, option)
    elif option.multiple:
        yield from (f"{option.opts[0]}={word}" for word in _values_of(name, value))
    else:
        yield f"{option.opts[0]}={value}"


def _hint_of_set(name: str, value: Any, options: Mapping[str, click.Option]) -> str:
    if "set" in options:
        return f"set={{{name!r}: {value!r}}}, if the training file reads it with brim.param"
    return "known: " + ", ".join(sorted(options))


def _flag(name: str, value: Any, option: click.Option) -> Iterator[str]:
    if not isinstance(value, bool):
        raise SpecError(f"{name}=", got=repr(value), need="True or False", hint=f"{name}=True")
    if value:
        yield option.opts[0]
    elif option.secondary_opts:
        yield option.secondary_opts[0]


def _values_of(name: str, value: Any) -> list[str]:
    """The values of an option that may be repeated: a mapping's pairs, or the words as they are."""
    if isinstance(value, Mapping):
        return [f"{key}={item}" for key, item in value.items()]
    words = (
        [value]
        if isinstance(value, str)
        else list(value)
        if isinstance(value, Iterable)
        else [value]
    )
    for word in words:
        if not isinstance(word, str):
            raise SpecError(
                f"{name}=", got=f"a {type(word).__name__}", need="a word, or a list of words"
            )
    return words


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Errors about options speak of keywords within: `workers=` in place of `--workers`."""
    try:
        yield
    except SpecError as wrong:
        parts = [_spoken(part) for part in (wrong.field, wrong.got, wrong.need, wrong.hint)]
        raise SpecError(parts[0], got=parts[1], need=parts[2], hint=parts[3]) from None


def _spoken(text: str) -> str:
    """A part of an error, in words of Python; a whole command stays as it is.

    >>> _spoken("--micro-batches 8, or leave it out"), _spoken("--no-exact"), _spoken("--set rate=0.1")
    ('micro_batches=8, or leave it out', 'exact=False', "set={'rate': '0.1'}")
    """
    if text == "WORKERS":  # which `brim resize` takes without an option
        return "workers="
    return reworded(text, _keyword)


def _keyword(option: str, value: str | None) -> str:
    name = _as_keyword(option)
    if name.startswith("no_"):
        return f"{name.removeprefix('no_')}=False"
    if name in ("set", "env") and value:
        key, _, text = value.partition("=")
        return f"{name}={{{key!r}: {text!r}}}" if text else f"{name}={{{key!r}: …}}"
    if value is None:
        return f"{name}="
    return f"{name}={value}" if re.fullmatch(r"\d+(\.\d+)?", value) else f"{name}={value!r}"
