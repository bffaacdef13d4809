"""The kind of a host: everything about it on which the bits of a result depend. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """Facts of a host's hardware and software, as far as results depend on them.

    Args:
        python, brim: versions; of Python without the last number, which changes no result.
        torch: version and build.
        cpu: vendor, family and model.
        capability: the level of instructions that torch's own kernels are chosen by.
        instructions: that the libraries below torch choose their kernels by.
        gpus: models.
        cudnn: version.
        settings: variables that change how the libraries compute.
    """

    python: str = ""
    brim: str = ""
    torch: str = ""
    cpu: str = ""
    capability: str = ""
    instructions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    cudnn: str = ""
    settings: dict[str, str] = field(default_factory=dict)


_NAMED = {
    "python": "Python",
    "brim": "brim",
    "torch": "torch",
    "cpu": "processor",
    "capability": "processor capability",
}


def differences(
    kinds: tuple[HostKind, HostKind],
    hosts: tuple[str, str],
    *,
    device: str,
    ignored: Collection[str] = (),
) -> list[str]:
    """Return how two hosts differ, a phrase for each difference; empty where they are alike.

    Args:
        kinds: theirs; `hosts` are their names.
        device: of the job; GPUs are not compared for `cpu`.
        ignored: variables that the job itself sets, on both.

    >>> a, b = HostKind(torch="2.13.0", gpus=("H100",)), HostKind(torch="2.12.0")
    >>> differences((a, b), ("a", "b"), device="cpu")
    ['torch 2.13.0 on a and 2.12.0 on b']
    >>> differences((a, a), ("a", "b"), device="cuda")
    []
    """
    first_kind, second_kind = kinds
    sides = [
        (words, getattr(first_kind, name), getattr(second_kind, name))
        for name, words in _NAMED.items()
    ]
    first, second = set(first_kind.instructions), set(second_kind.instructions)
    sides.append(("further instructions", _listed(first - second), _listed(second - first)))
    if device != "cpu":
        sides.append(("GPUs", _listed(first_kind.gpus), _listed(second_kind.gpus)))
        if first_kind.gpus and second_kind.gpus:
            sides.append(("cuDNN", first_kind.cudnn, second_kind.cudnn))
    settings = sorted({*first_kind.settings, *second_kind.settings} - set(ignored))
    sides += [
        (name, first_kind.settings.get(name, ""), second_kind.settings.get(name, ""))
        for name in settings
    ]
    return [
        f"{words} {value or 'none'} on {hosts[0]} and {other_value or 'none'} on {hosts[1]}"
        for words, value, other_value in sides
        if value != other_value
    ]


def to_remember(kind: HostKind) -> HostKind:
    """Return the facts of a host that a job is compared by when it goes on.

    The version of brim is not in it: a job that waits while brim is upgraded goes on.
    """
    return replace(kind, brim="")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def unlike(hosts: tuple[str, str], found: Collection[str], *, exact: bool) -> str:
    """Say that a host is not like another of the same run, and the remedy.

    Args:
        hosts: the one that is not like the other, and that one.
        found: what `differences` gave.
        exact: the run is to have the same bits on any hosts.
    """
    difference = f"{hosts[0]} is not like {hosts[1]}: {'; '.join(found)}"
    if not exact:
        return f"{difference}; the result depends on which of them computes"
    return (
        f"{difference}; the weights would depend on which of them computes: have the same on both, or "
        "train with --no-exact"
    )
