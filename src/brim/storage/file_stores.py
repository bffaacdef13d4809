"""Storage that may outlive a host: a directory, or any store that fsspec has a file system for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import monotonic, sleep
from brim.host.installation import command_for
from brim.storage.files import sizes_of, sync_directory, write_through, write_whole

T = TypeVar("T")
Data = bytes | bytearray
_STORE_TIMEOUT = 60.0  # seconds that a store may be away
_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds between tries; then the last again
_NOT_SHARED = ("memory",)
# Short timeouts: a connection that hangs must not outlast the patience above. Trying again is done
# here.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 1}},
        "use_listings_cache": False,
    }
}


class FileStore(Protocol):
    """Files by relative names such as `step-00000820/manifest.json`.

    Every method raises EnvironmentFault.
    """

    def names(self) -> dict[str, int]:
        """All files, with their sizes in bytes."""
        ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: Data) -> None:
        """Store a file without readers yet, durably."""
        ...

    def replace(self, name: str, data: Data) -> None:
        """Store a file that others look at: at every moment all of it, or the one before."""
        ...

    def publish(self, draft: str, name: str, data: Data) -> None:
        """Give `name` the content of `draft`, which is `data`.

        At every moment readers see all of it, or the one before.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def location(self, name: str) -> str:
        """Return the name for people of a file of this place."""
        ...


class Directory:
    """A directory of this host, or of a file system that hosts share.

    It is made by the first write.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def location(self, name: str) -> str:
        return str(self._root / name) if name else str(self._root)

    def names(self) -> dict[str, int]:
        with self._translated_errors("list", ""):
            return sizes_of(self._root)

    def read(self, name: str) -> bytes:
        with self._translated_errors("read", name):
            return (self._root / name).read_bytes()

    def write(self, name: str, data: Data) -> None:
        path = self._root / name
        with self._translated_errors("write", name):
            self._make_folder_of(path)
            try:
                write_through(path, data)
            except OSError:
                path.unlink(missing_ok=True)
                raise

    def _make_folder_of(self, path: Path) -> None:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            for directory in {self._root, self._root.parent}:
                sync_directory(directory)

    def replace(self, name: str, data: Data) -> None:
        path = self._root / name
        with self._translated_errors("write", name):
            self._make_folder_of(path)
            write_whole(path, bytes(data))

    def publish(self, draft: str, name: str, data: Data) -> None:
        with self._translated_errors("write", name):
            (self._root / draft).replace(self._root / name)
            sync_directory((self._root / name).parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        with self._translated_errors("remove", name):
            path.unlink(missing_ok=True)
        if path.parent != self._root:
            with contextlib.suppress(OSError):  # not empty yet
                path.parent.rmdir()

    @contextlib.contextmanager
    def _translated_errors(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentFault(
                f"cannot {verb} {self.location(name)}: {error.strerror or error}"
            ) from error


class Remote:
    """A store of objects: each is put whole or not at all.

    Failures are tried again for `patience` seconds.

    Args:
        system: fsspec's file system.
        root: path in it.
        url: what people call it.
        patience: seconds; 0 tries once.
        warn: told once each time the store is found to be away.
    """

    def __init__(
        self,
        system: Any,
        root: str,
        url: str,
        *,
        patience: float = _STORE_TIMEOUT,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._system, self._root, self._url = system, root.rstrip("/"), url.rstrip("/")
        self._patience, self._warn = patience, warn

    def location(self, name: str) -> str:
        return f"{self._url}/{name}" if name else self._url

    def names(self) -> dict[str, int]:
        def find() -> dict[str, int]:
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
            return {path[len(self._root) + 1 :]: int(info["size"]) for path, info in found.items()}

        return self._tried("list", "", find)

    def read(self, name: str) -> bytes:
        return self._tried(
            "read", name, lambda: bytes(self._system.cat_file(f"{self._root}/{name}"))
        )

    def write(self, name: str, data: Data) -> None:
        self._tried("write", name, lambda: self._system.pipe_file(f"{self._root}/{name}", data))

    def replace(self, name: str, data: Data) -> None:
        self.write(name, data)

    def publish(self, draft: str, name: str, data: Data) -> None:
        self.write(name, data)

    def remove(self, name: str) -> None:
        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{name}")

        self._tried("remove", name, remove)

    def _tried(self, verb: str, name: str, function: Callable[[], T]) -> T:
        """Call a function until it succeeds, or patience ends, or waiting cannot help."""
        started, tries = monotonic(), 0
        while True:
            try:
                return function()
            except (FileNotFoundError, PermissionError) as error:
                raise EnvironmentFault(f"cannot {verb} {self.location(name)}: {error}") from error
            except Exception as error:  # each store's library has exceptions of its own
                waited = monotonic() - started
                if waited >= self._patience:
                    raise EnvironmentFault(
                        f"cannot {verb} {self.location(name)} after {waited:.0f} s: {error}",
                        retryable=True,
                    ) from error
                if not tries:
                    self._warn(f"cannot {verb} {self.location(name)} yet: {error}; trying again")
            sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1


def open_place(
    location: str,
    *,
    field: str = "--checkpoints",
    patience: float = _STORE_TIMEOUT,
    warn: Callable[[str], None] = lambda _: None,
) -> FileStore:
    """The place that a path or a URL names.

    Args:
        location: `/mnt/shared/run`, `file:///mnt/shared/run`, `s3://bucket/run` or any other URL
            that fsspec knows.
        field: where it was given, for the message.
        patience: seconds that a store which does not answer is tried again.
        warn: told of a store that does not answer.

    Raises:
        SpecError: no such kind of URL, a package that is not installed, or a store that processes
            do not share.
    """
    protocol, colon, rest = location.partition("://")
    if not colon:
        return Directory(Path(location))
    if protocol in ("file", "local"):
        return Directory(Path(rest))
    need = "a path or a URL that all workers can write to, such as s3://bucket/run"
    if protocol in _NOT_SHARED:
        raise SpecError(
            field, got=repr(location), need=need, hint="what is in memory is lost with its process"
        )
    try:
        import fsspec

        system, root = fsspec.core.url_to_fs(location, **_OPTIONS.get(protocol, {}))
    except ImportError as error:
        hint = command_for("s3") if protocol == "s3" else "install the package that it names"
        raise SpecError(field, got=f"{location!r} ({error})", need=need, hint=hint) from None
    except ValueError as error:
        raise SpecError(
            field, got=f"{location!r} ({error})", need=need, hint=f"{field} s3://bucket/run"
        ) from None
    if not root.strip("/"):
        raise SpecError(
            field, got=repr(location), need=need, hint=f"{field} {location.rstrip('/')}/run"
        )
    return Remote(system, root, location, patience=patience, warn=warn)


def is_url(location: str) -> bool:
    return "://" in location


def absolute(location: str) -> str:
    """Return the place as processes elsewhere can use it: a local path becomes absolute.

    An empty text stays empty.
    """
    return (
        location
        if not location or is_url(location)
        else os.path.abspath(os.path.expanduser(location))
    )


def location_of(checkpoints: str, run_dir: str | os.PathLike[str]) -> str:
    """Return the location of a run's checkpoints, by `--checkpoints` or in its directory."""
    return checkpoints or os.path.join(run_dir, "checkpoints")
