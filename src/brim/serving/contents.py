"""The files of a version in memory of this process's own.

Later changes of the files change no answer.

A mapped file shows what others write to it, and a process that reads behind the end of one that was
cut dies of SIGBUS. So each file is copied while its checksum is taken, and nothing is read from its
place again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import weakref
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.host.anonymous import anonymous_file
from brim.host.untrusted import open_regular
from brim.serving.manifest import DENSE, MANIFEST, BundleManifest
from brim.serving.rows import FileCopy
from brim.storage.files import temporary_folder
from brim.storage.ownership import check_ours

_PIECE = (
    1 << 20
)  # bytes that are copied at once: what was just read is still in the cache when it is written


class Contents:
    """Copies of a version's files, each of which is as the manifest says.

    Args:
        directory: of the version.
        manifest: of it.

    Attributes:
        folder: where those are that are read as files, such as code; it is gone with this.
        tensors: those with tensors, in memory, by their names.

    Raises:
        SpecError: others may write to a file.
        EnvironmentFault: a file is missing or damaged, or there is no room for it; the message
            names it.
    """

    def __init__(self, directory: Path, manifest: BundleManifest) -> None:
        tensors = {DENSE, *(table.file for table in manifest.tables)}
        named = {*tensors, *filter(None, (manifest.program, manifest.code))}
        for name in sorted(named - manifest.files.keys()):
            raise EnvironmentFault(
                f"{directory / MANIFEST} is damaged: it has no checksum of {name}"
            )
        place = contextlib.ExitStack()
        self.folder = place.enter_context(temporary_folder("brim-version-"))
        self.tensors: dict[str, FileCopy] = {}
        weakref.finalize(self, place.close)
        for name, file_facts in manifest.files.items():
            path = directory / name
            try:
                check_ours(path.parent, field=str(path.parent))
                check_ours(path, field=str(path))
                target = self._for_tensors(name, path) if name in tensors else self._for_file(name)
                digest = _copied(path, target, file_facts.bytes)
            except OSError as error:
                raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error
            if digest != file_facts.sha256:
                raise EnvironmentFault(
                    f"{path} is damaged: it does not have the checksum of {MANIFEST}"
                )

    def _for_tensors(self, name: str, path: Path) -> int:
        self.tensors[name] = FileCopy(path, anonymous_file(f"brim {name}"))
        return os.dup(self.tensors[name].descriptor)

    def _for_file(self, name: str) -> int:
        copy = self.folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        return os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _copied(path: Path, target: int, size: int) -> str:
    """Copy a file; its sha256, or nothing where it has another size."""
    digest, remaining = hashlib.sha256(), size
    with os.fdopen(target, "wb") as copy, os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while piece := file.read(min(_PIECE, remaining + 1)):
            remaining -= len(piece)
            if remaining < 0:
                return ""
            digest.update(piece)
            copy.write(piece)
    return digest.hexdigest() if not remaining else ""
