"""A directory of versions: which is the newest bundle, and which delta comes next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from brim.errors import BrimError, SpecError
from brim.serving.manifest import MANIFEST, BundleManifest, read_manifest

__all__ = ["Found", "Versions", "next_of"]


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle or a delta in the directory."""

    path: Path
    manifest: BundleManifest


class Versions:
    """Looks into a directory again and again; what was read is not read again, unless it is another file now.

    Args:
        directory: with a directory for each bundle and delta.

    Attributes:
        problems: what is wrong, by the path of what it is wrong with.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[Path, tuple[tuple[int, int], BundleManifest | None]] = {}
        self.problems: dict[Path, str] = {}

    def refuse(self, path: Path, why: str) -> None:
        """Pass over a version from now on."""
        if path in self._known:
            self._known[path] = (self._known[path][0], None)
        self.problems[path] = why

    def look(self) -> list[Found]:
        """Find what is there and was not refused, the earliest step first.

        Raises:
            SpecError: the directory is gone.
        """
        there: dict[Path, tuple[int, int]] = {}
        try:
            for path in self.directory.iterdir():
                if not path.name.startswith("."):
                    try:
                        file = (path / MANIFEST).stat()
                    except OSError:
                        continue  # no bundle, or one that is being removed
                    there[path] = (file.st_mtime_ns, file.st_ino)
        except OSError as error:
            raise SpecError(
                str(self.directory), got=str(error.strerror), need="a directory of bundles", hint=""
            ) from error
        for path in self._known.keys() - there.keys():
            del self._known[path]
            self.problems.pop(path, None)
        for path, identity in there.items():
            if path not in self._known or self._known[path][0] != identity:
                self.problems.pop(path, None)
                self._known[path] = (identity, None)
                try:
                    self._known[path] = (identity, read_manifest(path))
                except BrimError as error:
                    self.problems[path] = str(error)
        found = [Found(path, manifest) for path, (_, manifest) in self._known.items() if manifest is not None]
        return sorted(found, key=lambda each: (each.manifest.step, each.path))


def next_of(found: Iterable[Found], current: BundleManifest | None) -> tuple[Found | None, dict[Path, str]]:
    """Choose what to load next: the newest bundle of a later step, else the delta for the current version.

    Args:
        found: what there is.
        current: what is served now; None where nothing is yet.

    Returns:
        What to load, or None; and what is to be said of deltas that wait for another version.
    """
    later = [each for each in found if current is None or each.manifest.step > current.step]
    bundles = [each for each in later if not each.manifest.base]
    if bundles:
        return max(bundles, key=lambda each: each.manifest.step), {}
    deltas = [each for each in later if each.manifest.base]
    for each in deltas:
        if current is not None and each.manifest.base == current.version:
            return each, {}
    bases = {each.manifest.version for each in deltas}
    waiting = {
        each.path: f"{each.path} changes version {each.manifest.base}"
        + (
            f", and {current.version} is served: it waits for a bundle, or for the deltas between"
            if current
            else ""
        )
        for each in deltas
        if each.manifest.base not in bases
    }
    return None, waiting
