"""Bundles: the code of a job as one archive, which its digest names.

The same files make the same archive. It is unpacked, read-only, into a folder of the account that
the job runs as, where all of its processes find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brim.errors import EnvironmentFault, SpecError
from brim.host.account import home
from brim.host.clock import SystemClock
from brim.storage.files import drafts_beside, is_lock_of
from brim.user_code.own_code import COMPILED

LARGEST = 8 << 20  # bytes of an archive
MOST_FILES = 4_000
_LONGEST_NAME = 512  # characters
_LONGEST_ENCODED = 4 * _LONGEST_NAME + 1  # bytes of a name, with the one at its end
_BLOCK = tarfile.BLOCKSIZE
# Where a header has what: its name ends, and its size, its sum and its type begin.
_NAME = tarfile.LENGTH_NAME
_SIZE = 124
_SUM = 148
_TYPE = 156
_ENCODING = "utf-8"
_ERRORS = "surrogateescape"
_ATTEMPTS = 8  # to have a folder whole that others may be making, or removing, too
_CODE_LIFETIME = 7 * 86_400.0  # seconds that code which no process uses is kept
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_folder_descriptors: list[
    int
] = []  # descriptors of the folders that this process, or a fork of it, may read


def pack(files: Mapping[str, bytes]) -> bytes:
    """Make an archive of files, by their names relative to the folder of the code.

    >>> pack({"a.py": b"1", "b.py": b"2"}) == pack({"b.py": b"2", "a.py": b"1"})
    True
    """
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed,
        mode="w",
        format=tarfile.GNU_FORMAT,
        encoding=_ENCODING,
        errors=_ERRORS,
    ) as archive:
        for name, content in sorted(files.items()):
            archive.addfile(_entry(name, len(content)), io.BytesIO(content))
    return packed.getvalue()


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)  # of nobody, and of no time
    entry.size, entry.mode = size, 0o400
    return entry


_OF_LONG_NAME = _entry("n" * (_NAME + 1), 0).tobuf(tarfile.GNU_FORMAT, _ENCODING, _ERRORS)
_LONG, _PLAIN = _OF_LONG_NAME[:_BLOCK], _OF_LONG_NAME[-_BLOCK:]  # headers of both kinds


def digest_of(bundle: bytes) -> str:
    """Return the name of a bundle: its sha256."""
    return hashlib.sha256(bundle).hexdigest()


def read_bundle(bundle: bytes, digest: str) -> dict[str, bytes]:
    """Return the files of a bundle that came from elsewhere.

    Raises:
        EnvironmentFault: it is not the one of this digest, or not as `pack` makes it: it has links,
            names that lead out of its folder, or more than a bundle may.
    """
    if len(bundle) > LARGEST:
        raise EnvironmentFault(
            f"a bundle of code of {len(bundle):,} bytes: at most {LARGEST:,} are taken"
        )
    if digest_of(bundle) != digest:
        raise EnvironmentFault(f"the bundle of code is not {digest}: it was damaged on its way")
    try:
        files = dict(_entries(bundle))
    except ValueError as error:
        raise EnvironmentFault(f"bundle {digest} is not as brim packs it: {error}") from error
    _check_names(list(files), digest)
    return files


def _entries(bundle: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of a bundle, by the layout of `pack` alone.

    `tarfile` reads much more than that, some of it very slowly, and is given none of it.

    Raises:
        ValueError: `pack` would make another archive of these files.
    """
    offset, last, count = 0, "", 0
    while any(head := bundle[offset : offset + _BLOCK]):
        name, size = _header(bundle, offset)
        expected_headers = _headers(name.encode(_ENCODING, _ERRORS), size)
        begin = offset + len(expected_headers)
        offset = begin + -(-size // _BLOCK) * _BLOCK
        if bundle[begin - len(expected_headers) : begin] != expected_headers or any(
            bundle[begin + size : offset]
        ):
            raise ValueError(
                f"its entry at {begin - len(expected_headers):,} is not a regular file"
            )
        if (count and name <= last) or offset > len(bundle):
            raise ValueError(f"the file {name!r} is not in its place, or not whole")
        count += 1
        if count > MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES:,} files")
        yield name, bundle[begin : begin + size]
        last = name
    end = -(-(offset + 2 * _BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if not head or len(bundle) != end or any(bundle[offset:]):
        raise ValueError(f"it does not end at {offset:,}")


def _headers(name: bytes, size: int) -> bytes:
    """Return the header that `pack` writes for a file; `tarfile` takes ten times as long."""
    head = _filled(_PLAIN, name, size)
    if len(name) <= _NAME:
        return head
    length = len(name) + 1
    padded_name = name.ljust(-(-length // _BLOCK) * _BLOCK, b"\0")
    return _filled(_LONG, _LONG[:_NAME], length) + padded_name + head


def _filled(like: bytes, name: bytes, size: int) -> bytes:
    """A header like another, with this name and size."""
    head = bytearray(like)
    head[:_NAME] = name[:_NAME].ljust(_NAME, b"\0")
    head[_SIZE : _SIZE + 12] = b"%011o\0" % size
    head[_SUM : _SUM + 8] = b" " * 8
    head[_SUM : _SUM + 8] = b"%06o\0 " % sum(head)
    return bytes(head)


def _header(bundle: bytes, offset: int) -> tuple[str, int]:
    """The name and the size that the header of an entry states. Raises ValueError."""
    name = bundle[offset : offset + _NAME]
    if bundle[offset + _TYPE : offset + _TYPE + 1] == tarfile.GNUTYPE_LONGNAME:
        length = _number(bundle, offset)
        if length > _LONGEST_ENCODED:
            raise ValueError(f"it has a name of {length:,} bytes")
        name = bundle[offset + _BLOCK : offset + _BLOCK + length]
        offset += _BLOCK + -(-length // _BLOCK) * _BLOCK
    return name.rstrip(b"\0").decode(_ENCODING, _ERRORS), _number(bundle, offset)


def _number(bundle: bytes, offset: int) -> int:
    """The size in the header of an entry. Raises ValueError."""
    digits = bundle[offset + _SIZE : offset + _SIZE + 11]
    if len(digits) < 11 or not digits.isdigit():
        raise ValueError(f"it has no entry of code at {offset:,}")
    return int(digits, 8)


def _check_names(names: Sequence[str], digest: str) -> None:
    """Raises EnvironmentFault for a name that is none of a file of code.

    Args:
        names: in order.
    """
    for name in names:
        parts = name.split("/")
        is_plain = name.isprintable() and "\\" not in name and len(name) <= _LONGEST_NAME
        leads_out = any(part in ("", ".", "..", COMPILED) for part in parts)
        index = bisect_left(names, f"{name}/")
        is_folder = index < len(names) and names[index].startswith(f"{name}/")
        if not is_plain or leads_out or is_folder:
            raise EnvironmentFault(f"bundle {digest} has a file of the name {name!r}")


def unpack(bundle: bytes, digest: str) -> Path:
    """Unpack a bundle for this account; the folder with its files, all of them read-only.

    The folder is there, whole, for as long as this process or a fork of it lives. Where it was
    there before, its content is compared.

    Raises:
        EnvironmentFault: it is no bundle, or there is no place for it.
    """
    files = read_bundle(bundle, digest)
    try:
        cache = _cache()
        folder = cache / digest
        _folder_descriptors.append(_held_whole(folder, files))
        _forget_unused(cache)
    except OSError as error:
        raise EnvironmentFault(f"cannot unpack the code of a job: {error}") from error
    return folder


def _cache() -> Path:
    """The folder in which this account keeps unpacked bundles, and which it alone can change.

    Raises:
        OSError: there is none.
    """
    problem: OSError | None = None
    for find in (_user_cache, _temporary_cache):
        try:
            if (place := find()) is None:
                continue
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{place} is not a directory of this account")
            place.chmod(0o700)
            if not os.access(place, os.W_OK):
                raise PermissionError(f"{place} cannot be written")
        except OSError as error:
            problem = problem or error
        else:
            return place
    assert problem is not None
    raise problem


def _user_cache() -> Path | None:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "brim" / "code"
    with contextlib.suppress(SpecError):
        return home() / ".cache" / "brim" / "code"
    return None


def _temporary_cache() -> Path:
    """Raises OSError where there is no directory for temporary files."""
    return Path(tempfile.gettempdir(), f"brim-code-{os.geteuid()}")


def _held_whole(folder: Path, files: Mapping[str, bytes]) -> int:
    """Have a folder there, whole, and return a descriptor that keeps it there.

    Raises:
        OSError: the disk does not take it, or gives other bytes back.
    """
    for _ in range(_ATTEMPTS):
        if (descriptor := _hold(folder, files)) is not None:
            return descriptor
        _make(folder, files)
    raise OSError(f"{folder} does not have what was written to it")


def _hold(folder: Path, files: Mapping[str, bytes]) -> int | None:
    """Return a descriptor that keeps a folder there; None where it is not there, or not whole."""
    try:
        descriptor = os.open(folder, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if is_lock_of(descriptor, folder) and _content_of(folder) == files:
        os.utime(descriptor)
        return descriptor
    os.close(descriptor)
    return None


def _content_of(folder: Path) -> dict[str, bytes] | None:
    """The files of a folder; None where it has something else, or one that cannot be read."""
    found: dict[str, bytes] = {}
    try:
        for path in _contents_of(folder):
            if path.is_symlink():
                return None
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    except OSError:
        return None
    return found


def _contents_of(folder: Path) -> Iterator[Path]:
    """All files in a folder, except those that Python has compiled there for root."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != COMPILED]
        yield from (Path(parent, name) for name in [*folders, *names])


def _make(folder: Path, files: Mapping[str, bytes]) -> None:
    """Have the folder there, whole: ours, or that of another process which was faster."""
    with drafts_beside(folder) as drafts:
        draft = drafts / "code"
        draft.mkdir()
        for name, content in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o400)
        for parent, folders, _ in os.walk(draft):
            for folder_name in folders:
                Path(parent, folder_name).chmod(0o500)
        try:
            draft.rename(folder)
        except OSError:
            if _content_of(folder) != files:
                _remove(folder, drafts)  # damaged: the next attempt makes another
            _open_up(draft)
            return
        folder.chmod(0o500)  # behind the rename, which changes the folder itself


def _forget_unused(cache: Path) -> None:
    """Remove code that no process has used for long."""
    old = SystemClock().wall() - _CODE_LIFETIME
    for folder in cache.iterdir():
        with contextlib.suppress(OSError):
            if folder.name.startswith(".") or folder.lstat().st_mtime > old:
                continue
            descriptor = os.open(folder, _FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with drafts_beside(folder) as drafts:
                    _remove(folder, drafts)
            finally:
                os.close(descriptor)


def _remove(folder: Path, drafts: Path) -> None:
    """Take a folder away whole, and leave it to the remover of the drafts."""
    folder.chmod(0o700)
    moved = folder.rename(drafts / "gone")
    _open_up(moved)
    shutil.rmtree(moved, ignore_errors=True)


def _open_up(folder: Path) -> None:
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
