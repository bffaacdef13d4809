"""Options of a job: how each is written, read and checked, and its help.

`JobSpec` declares one with each of its fields. The command line, the values of Python's keywords,
the checks of a spec, and the rule of what a resumed run must keep are all made from these
declarations. Written by hand are the names of the keywords (`JobOptions` in `runs/verbs.py`), the
options of `brim.join`, and what `fingerprint` (`domain/submission.py`) looks at.

Pure: texts and values come in, values and `SpecError` go out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from brim.domain.quantities import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    parse_bytes,
    parse_duration,
)
from brim.errors import SpecError, did_you_mean

LARGEST_COUNT = 10**9  # of anything; what follows from counts is kept in 64 bits
LARGEST_SIZE = 1 << 60  # bytes
LARGEST_PORT = (1 << 16) - 1
PORTS_VARIABLE = "BRIM_PORTS"  # the range from which ports are taken that other hosts call


def _right(value: Any, option: str) -> None:
    """Accept any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A sort of values.

    Args:
        metavar: stands for a value in help texts; empty for a switch.
        read: makes a value of what somebody wrote, given the option as they named it; raises
            SpecError.
        check: raises SpecError for a value that cannot be, given the option's name.
        words: all that can be written, where those are few.
        written_as: the types by which a format that has types writes a value.
        minimum, maximum: bounds of the numbers among them; None where there is none.
        exclusive_minimum: numbers have to be larger than this; None: see `minimum`.
        pattern: a regular expression of the texts among them; empty where none says it.
        example: texts that will do, where there is a pattern.
    """

    metavar: str
    read: Callable[[str, str], Any]
    check: Callable[[Any, str], None] = _right
    words: tuple[str, ...] = ()
    written_as: tuple[type, ...] = (str,)
    minimum: int | None = None
    maximum: int | None = None
    exclusive_minimum: int | None = None
    pattern: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a job.

    Args:
        kind: of its values.
        help: its text for people.
        flag: on the command line, such as `--workers`, or `--exact/--no-exact` for a switch.
        default: its default as people write it; None where it has none, or the help says it.
        unset: the value of a spec that is silent; it stands for itself, and is not checked.
        decides: the result depends on it, so that a run that is resumed must keep it.
        scheduled: a job of a scheduler has it, too.
        repeated: it can be repeated, and each value is `NAME=VALUE`.
    """

    kind: Kind
    help: str
    flag: str = ""
    default: Any = None
    unset: Any = None
    decides: bool = False
    scheduled: bool = True
    repeated: bool = False

    @property
    def named(self) -> str:
        """The option in an error: as it is typed to change the default."""
        return self.flag.rpartition("/")[2]

    def check(self, value: Any) -> None:
        """Raises SpecError for a value that cannot be."""
        if value is not None and value != self.unset:
            self.kind.check(value, self.named)


def option(kind: Kind, *, default: Any = MISSING, unset: Any = MISSING, **settings: Any) -> Any:
    """Declare a field of a dataclass as an option.

    Args:
        default: as people write it: the help shows it.
        unset: the field's value where it is not given; the help shows none.
        settings: the rest of an `Option`.
    """
    if default is not MISSING:
        value = kind.read(default, "its default") if isinstance(default, str) else default
        declared = Option(kind=kind, default=default, **settings)
        return field(default=value, metadata={"option": declared})
    declared = Option(kind=kind, unset=None if unset is MISSING else unset, **settings)
    return field(default=unset, metadata={"option": declared})


def pairs(kind: Kind, **settings: Any) -> Any:
    """Declare a field of a dataclass as an option that is repeated, each value a `NAME=VALUE`."""
    return field(
        default_factory=dict, metadata={"option": Option(kind=kind, repeated=True, **settings)}
    )


def options_of(spec: type[Any]) -> Mapping[str, Option]:
    """The options that a dataclass declares, by field."""
    declared = {spec_field.name: spec_field.metadata.get("option") for spec_field in fields(spec)}
    return {
        name: replace(declared_option, flag=declared_option.flag or f"--{name.replace('_', '-')}")
        for name, declared_option in declared.items()
        if declared_option is not None
    }


# An option and its value: a word with a digit in it, or the last one; `--resume goes on` has none.
_WRITTEN = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: ([\w.:/=%-]*\d[\w.:/=%-]*|[\w.:/=-]+$))?")


def reworded(text: str, word: Callable[[str, str | None], str]) -> str:
    """Reword option names in a text for other places; a command stays as it is.

    Args:
        word: is given the name of an option without its hyphens, and its value where one is named.

    >>> reworded("--micro-batches 8, or leave it out", lambda name, value: f"<{name}: {value}>")
    '<micro-batches: 8>, or leave it out'
    >>> reworded("--array 1-100%4", lambda name, value: f"<{name}: {value}>")
    '<array: 1-100%4>'
    """
    if text.startswith("brim "):
        return text
    return _WRITTEN.sub(lambda found: word(found[1], found[2]), text)


# Kinds ------------------------------------------------------------------------------------------


def text(metavar: str) -> Kind:
    """Words that are taken as they are."""
    return Kind(metavar=metavar, read=lambda text, _: text)


def whole(
    *, minimum: int, maximum: int = LARGEST_COUNT, metavar: str = "N", hint: str = ""
) -> Kind:
    """Whole numbers.

    Args:
        hint: the replacement; empty: the option with the least number that means something.
    """

    def read(text: str, option: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            _refuse(repr(text), f"a whole number from {minimum}", option)
        return number

    def check(number: int, option: str) -> None:
        if number < minimum:
            _refuse(str(number), f"a whole number from {minimum}", option)
        if number > maximum:
            _refuse(str(number), f"at most {maximum:,}", option)

    def _refuse(actual: str, need: str, option: str) -> None:
        suggestion = hint or f"{option.split()[0]} {max(minimum, 1)}"
        raise SpecError(option, got=actual, need=need, hint=suggestion)

    return Kind(
        metavar=metavar, read=read, check=check, written_as=(int,), minimum=minimum, maximum=maximum
    )


def read_ports(text: str, option: str) -> range:
    """Return the ports that a text such as `4100-4199` names.

    Args:
        option: where it was written, for the error.

    Raises:
        SpecError: these are none.

    >>> read_ports("4100-4102", "--ports")
    range(4100, 4103)
    """
    first, dash, last = (part.strip() for part in text.partition("-"))
    if dash and all(part.isascii() and part.isdigit() for part in (first, last)):
        found = range(int(first), int(last) + 1)
        if found and found[0] >= 1 and found[-1] <= LARGEST_PORT:
            return found
    raise SpecError(
        option,
        got=repr(text),
        need=f"FIRST-LAST, two ports from 1 to {LARGEST_PORT}, the smaller one first",
        hint=f"{option.split()[0]} 4100-4199",
    )


def choice(*words: str) -> Kind:
    """One of a few words."""

    def check(word: str, option: str) -> None:
        if word not in words:
            raise SpecError(
                option,
                got=repr(word),
                need="one of " + ", ".join(words),
                hint=did_you_mean(word, words),
            )

    def read(text: str, option: str) -> str:
        check(text, option)
        return text

    return Kind(metavar="|".join(words), read=read, check=check, words=words)


def _read_number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        hint = f"{option.split()[0]} 1.0"
        raise SpecError(option, got=repr(text), need="a number", hint=hint) from None


def _check_number(number: float, option: str) -> None:
    if not 0 < number < float("inf"):
        hint = "leave it out for none"
        raise SpecError(option, got=f"{number:g}", need="a number above 0", hint=hint)


def _read_duration(text: str, option: str) -> float:
    return parse_duration(text, field=option)


def _check_duration(seconds: float, option: str) -> None:
    if not 0 < seconds < float("inf"):
        raise SpecError(option, got=f"{seconds:g}", need="a duration above 0", hint=f"{option} 3s")


def _read_duration_or_never(text: str, option: str) -> float | None:
    return None if text.strip() in ("none", "0", "0s") else parse_duration(text, field=option)


def size(*, minimum: int = 1, hint: str, allows_none: bool = False) -> Kind:
    """Numbers of bytes, which people write with a unit.

    Args:
        hint: a size that will do.
        allows_none: the word `allows_none` stands for no limit.
    """
    limit_text = f"at least {minimum >> 20} MiB" if minimum > 1 else "a size above 0"

    def read(text: str, option: str) -> int | None:
        return None if allows_none and text.strip() == "none" else parse_bytes(text, field=option)

    def check(number: int, option: str) -> None:
        if not minimum <= number <= LARGEST_SIZE:
            need = f"{limit_text}, and at most {LARGEST_SIZE >> 40:,} TiB"
            raise SpecError(option, got=f"{number:,} bytes", need=need, hint=f"{option} {hint}")

    return Kind(
        metavar="SIZE|none" if allows_none else "SIZE",
        read=read,
        check=check,
        pattern=f"none|{SIZE_PATTERN}" if allows_none else SIZE_PATTERN,
        example=f"{hint}, or none" if allows_none else hint,
    )


PLACE = text("PATH|URL")  # where files of a run are kept
SWITCH = Kind(metavar="", read=lambda text, _: text, written_as=(bool,))
NUMBER = Kind(
    metavar="X", read=_read_number, check=_check_number, written_as=(float,), exclusive_minimum=0
)
DURATION = Kind(
    metavar="DURATION",
    read=_read_duration,
    check=_check_duration,
    pattern=DURATION_PATTERN,
    example="500ms, 5s, 10m or 1h30m",
)
DURATION_OR_NEVER = Kind(
    metavar="DURATION|none",
    read=_read_duration_or_never,
    check=_check_duration,
    pattern=f"none|{DURATION_PATTERN}",
    example="30m, 1h30m or none",
)
