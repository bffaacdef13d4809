"""A directory of versions: which is the newest bundle, and which delta comes next."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from brim.errors import BrimError, SpecError
from brim.serving.manifest import MANIFEST, BundleManifest, read_manifest

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle or a delta in the directory."""

    path: Path
    manifest: BundleManifest


class Versions:
    """The versions in a directory, as they are at each look.

    A version is read once, unless its files change.

    A version that cannot be opened is tried again once its files have changed and are at rest: it
    was being copied.

    Args:
        directory: with a directory for each bundle and delta.

    Attributes:
        problems: of versions, by path.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._manifests: dict[Path, tuple[_Stamp, BundleManifest]] = {}
        self._refused: dict[Path, _Refused] = {}
        self.problems: dict[Path, str] = {}

    def look(self) -> list[Found]:
        """Find the present versions that were not refused, the earliest step first.

        Raises:
            SpecError: the directory is gone.
        """
        stamps: dict[Path, _Stamp] = {}
        try:
            for path in self.directory.iterdir():
                if not path.name.startswith("."):
                    try:
                        stamps[path] = _stamp(path / MANIFEST)
                    except OSError:
                        continue  # no bundle, or one that is being removed
        except OSError as error:
            raise SpecError(
                str(self.directory), got=str(error.strerror), need="a directory of bundles", hint=""
            ) from error
        for by_path in (self._manifests, self._refused, self.problems):
            for path in by_path.keys() - stamps.keys():
                del by_path[path]
        for path, stamp in stamps.items():
            if path in self._refused:
                if not self._refused[path].has_changed(_stamps(path)):
                    continue
                self._forget(path)
            if path not in self._manifests or self._manifests[path][0] != stamp:
                self._forget(path)
                manifest = self._try(path, read_manifest)
                if manifest is not None:
                    self._manifests[path] = (stamp, manifest)
        found = [Found(path, manifest) for path, (_, manifest) in self._manifests.items()]
        return sorted(found, key=lambda version: (version.manifest.step, version.path))

    def attempt(self, version: Found, open: Callable[[Path], T]) -> T | None:
        """Open a version.

        Where that fails, return None, and pass it over until its files change.
        """
        opened = self._try(version.path, open)
        if opened is None:
            self._manifests.pop(version.path, None)
        return opened

    def _try(self, path: Path, open: Callable[[Path], T]) -> T | None:
        stamps_before = _stamps(path)  # what changes while it is read has changed
        try:
            return open(path)
        except BrimError as error:
            self.problems[path] = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a version is, the one before is served
            _log.exception("%s cannot be opened", path)
            self.problems[path] = f"{path} cannot be opened: {type(error).__name__}: {error}"
        self._refused[path] = _Refused(stamps_before)
        return None

    def _forget(self, path: Path) -> None:
        self._manifests.pop(path, None)
        self._refused.pop(path, None)
        self.problems.pop(path, None)


_Stamp = tuple[
    str, int, int, int
]  # of a file: its name, and what changes with whatever is written to it


class _Refused:
    """A version that cannot be opened, as it was then, and as it was seen last."""

    def __init__(self, stamps: tuple[_Stamp, ...]) -> None:
        self._first_stamps = self._last = stamps

    def has_changed(self, now: tuple[_Stamp, ...]) -> bool:
        """Return whether its files are others, and were the same at the last look."""
        rests, self._last = now == self._last, now
        return rests and now != self._first_stamps


def _stamp(path: str | Path) -> _Stamp:
    status = os.stat(path)
    return str(path), status.st_ino, status.st_size, status.st_ctime_ns


def _stamps(directory: Path) -> tuple[_Stamp, ...]:
    """Return the stamps of all files in a version."""
    return tuple(sorted(_walk(str(directory))))


def _walk(directory: str) -> Iterator[_Stamp]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(entry.path)
                with contextlib.suppress(OSError):  # a link to nothing
                    yield _stamp(entry.path)
    except OSError:  # somebody is removing it: that it is another will be seen
        return


def next_of(
    found: Iterable[Found], current: BundleManifest | None
) -> tuple[Found | None, dict[Path, str]]:
    """Choose the version to load next.

    The newest bundle of a later step, else the delta for the current version.

    Args:
        found: the present ones.
        current: the served one; None where there is none yet.

    Returns:
        What to load, or None; and what is to be said of deltas that wait for another version.
    """
    newer = [
        version for version in found if current is None or version.manifest.step > current.step
    ]
    bundles = [version for version in newer if not version.manifest.base]
    if bundles:
        return max(bundles, key=lambda version: version.manifest.step), {}
    deltas = [version for version in newer if version.manifest.base]
    for delta in deltas:
        if current is not None and delta.manifest.base == current.version:
            return delta, {}
    bases = {delta.manifest.version for delta in deltas}
    waiting = {
        delta.path: f"{delta.path} changes version {delta.manifest.base}"
        + (
            f", and {current.version} is served: it waits for a bundle, or for the deltas between"
            if current
            else ""
        )
        for delta in deltas
        if delta.manifest.base not in bases
    }
    return None, waiting


def passed_over(
    found: Iterable[Found], current: BundleManifest, ignored: Collection[Path]
) -> dict[Path, str]:
    """Name the versions that will never be served.

    They come too late, or are another version of the step that is served.

    Args:
        found: what there is.
        current: what is served now.
        ignored: what was there before; empty at the start, when what is older is history.
    """
    return {
        version.path: f"{version.path} is of step {version.manifest.step}, and {current.step} is served "
        f"({current.version}): "
        "only a later step takes over; start a server with this bundle to go back"
        for version in found
        if version.path not in ignored
        and version.manifest.version != current.version
        and (
            version.manifest.step == current.step
            or (ignored and version.manifest.step < current.step)
        )
    }
