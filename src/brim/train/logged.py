"""Numbers by name, as `job.log` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brim.errors import SpecError


def logged_numbers(unnamed: Sequence[object], named: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers that `job.log` was given.

    Args:
        unnamed: what it was given by position, which should be nothing.
        named: what it was given by name.

    Raises:
        SpecError: a value has no name, or is not one number.

    >>> logged_numbers((), {"loss": 3, "accuracy": 0.5})
    {'loss': 3.0, 'accuracy': 0.5}
    """
    if unnamed:
        raise SpecError(
            "job.log",
            got=", ".join(map(repr, unnamed)),
            need="values by name",
            hint=_written_by_name(unnamed),
        )
    return {name: _number(name, value) for name, value in named.items()}


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # torch's for several elements
        raise SpecError(
            f"job.log({name}=)",
            got=f"{value!r}",
            need="one number",
            hint=f"job.log({name}=float(value))",
        ) from None


def _written_by_name(unnamed: Sequence[object]) -> str:
    """Return a call as it should be: other libraries take `(name, value, step)`, or a dict.

    >>> _written_by_name(["loss", 3]), _written_by_name(["train/loss", 3, 7])
    ('job.log(loss=3)', "job.log(**{'train/loss': 3}); brim knows the step")
    >>> _written_by_name([{"loss": 3}]), _written_by_name([3])
    ("job.log(**{'loss': 3})", 'job.log(loss=3)')
    """
    first, *rest = unnamed
    if isinstance(first, Mapping):
        return "job.log(**{" + ", ".join(f"{key!r}: {_short(first[key])}" for key in first) + "})"
    if not isinstance(first, str):
        return f"job.log(loss={_short(first)})"
    value = _short(rest[0]) if rest else "..."
    call = f"{first}={value}" if first.isidentifier() else f"**{{{first!r}: {value}}}"
    return f"job.log({call})" + ("; brim knows the step" if len(rest) > 1 else "")


def _short(value: object) -> str:
    return repr(value) if isinstance(value, (int, float)) else "..."
