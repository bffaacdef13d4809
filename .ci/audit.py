"""Compares requirements.lock with advisories in OSV's format that were downloaded elsewhere: no
network is needed.

    python .ci/audit.py ADVISORIES [LOCK]

ADVISORIES is OSV's archive of all advisories for Python packages (`all.zip`), a folder of its
files, or one of them. Exit status: 0 nothing is known, 1 something is, 2 nobody can tell.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


class _Package(msgspec.Struct):
    name: str
    ecosystem: str


class _Range(msgspec.Struct):
    type: str
    events: list[dict[str, str]]


class _Affected(msgspec.Struct):
    package: _Package | None = None
    ranges: list[_Range] = []
    versions: list[str] = []


class _Advisory(msgspec.Struct):
    id: str
    modified: str
    withdrawn: str = ""
    aliases: list[str] = []
    summary: str = ""
    affected: list[_Affected] = []


def main(words: list[str]) -> int:
    if not 1 <= len(words) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    lock = Path(words[1]) if len(words) == 2 else _LOCK
    try:
        pinned = pins(lock.read_text(encoding="utf-8"))
        advisories = list(read(Path(words[0])))
    except (OSError, ValueError, zipfile.BadZipFile) as error:  # msgspec's errors are ValueErrors
        print(f"cannot compare {lock} with {words[0]}: {error}", file=sys.stderr)
        return 2
    if not (pinned and advisories):
        print(
            f"{lock} has {len(pinned)} pins, {words[0]} {len(advisories)} advisories",
            file=sys.stderr,
        )
        return 2
    found = sorted(line for advisory in advisories for line in complaints(advisory, pinned))
    print(*found, sep="\n", end="\n" if found else "")
    newest = max(advisory.modified for advisory in advisories)
    print(
        f"{len(pinned)} pins, {len(advisories)} advisories up to {newest}: {len(found)} found",
        file=sys.stderr,
    )
    return 1 if found else 0


def pins(lock: str) -> set[tuple[str, str]]:
    """Names and versions; a package may have several, for different versions of Python."""
    return {(canonicalize_name(name), version) for name, version in _PIN.findall(lock)}


def read(path: Path) -> Iterator[_Advisory]:
    """Raises OSError, ValueError or BadZipFile where one cannot be read: what was passed over might
    be the one.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            files = [
                (name, archive.read(name)) for name in archive.namelist() if name.endswith(".json")
            ]
    else:
        files = [
            (str(each), each.read_bytes())
            for each in (path.glob("*.json") if path.is_dir() else [path])
        ]
    decoder = msgspec.json.Decoder(_Advisory)
    for name, content in files:
        try:
            yield decoder.decode(content)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def complaints(advisory: _Advisory, pinned: set[tuple[str, str]]) -> Iterator[str]:
    """A line for each pin that an advisory concerns."""
    if advisory.withdrawn:
        return
    known = ", ".join([advisory.id, *advisory.aliases])
    for name, version in pinned:
        about = [
            each for each in advisory.affected if _is_about(each, name) and _has(each, version)
        ]
        if about:
            fixes = sorted(
                {event["fixed"] for each in about for event in _events(each) if "fixed" in event}
            )
            mended = f"fixed in {', '.join(fixes)}" if fixes else "no fix is known"
            yield f"{name} {version}: {advisory.summary or 'no summary'} ({known}; {mended})"


def _is_about(affected: _Affected, name: str) -> bool:
    package = affected.package
    return (
        package is not None
        and package.ecosystem == "PyPI"
        and canonicalize_name(package.name) == name
    )


def _events(affected: _Affected) -> list[dict[str, str]]:
    return [event for each in affected.ranges if each.type == "ECOSYSTEM" for event in each.events]


def _has(affected: _Affected, version: str) -> bool:
    """As OSV's specification says; whatever cannot be compared counts as affected."""
    if version in affected.versions:
        return True
    try:
        return any(
            _is_in(each, Version(version)) for each in affected.ranges if each.type == "ECOSYSTEM"
        )
    except InvalidVersion:
        return True


def _is_in(given: _Range, version: Version) -> bool:
    inside = False
    for at, kind in sorted(
        (_place(text), kind) for event in given.events for kind, text in event.items()
    ):
        match kind:
            case "introduced" if version >= at:
                inside = True
            case "fixed" | "limit" if version >= at:
                inside = False
            case "last_affected" if version > at:
                inside = False
    return inside


def _place(text: str) -> Version:
    return Version("0.dev0" if text == "0" else text)  # 0 is before any version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
