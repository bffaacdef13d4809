"""The two images of the test cluster, written as `ctr images import` reads them.

`localhost/pause:1` holds a pod's namespaces. `localhost/brim:1` is almost empty: each container of
a node sees the programs and libraries of this machine, and a Python with torch and brim, read-only
at their own paths, whatever volumes lie over these (`node.py`). So a pod needs no volumes for
them, and runs where Pod Security is `restricted`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from brim.errors import EnvironmentFault
from brim.storage.files import write_whole
from brim_lab.kubernetes.spaces import HIDDEN, is_hidden

PAUSE, BRIM = "localhost/pause:1", "localhost/brim:1"
NOBODY_UID = 65532  # as images without a root user have it

_PASSWD = (
    f"root:x:0:0:root:/root:/bin/sh\nnonroot:x:{NOBODY_UID}:{NOBODY_UID}:nonroot:/tmp:/bin/sh\n"
)
_ETC = {
    "etc/passwd": _PASSWD,
    "etc/group": f"root:x:0:\nnonroot:x:{NOBODY_UID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr
_FOLDERS = {
    "usr": 0o755,
    "etc": 0o755,
    "root": 0o755,
    "tmp": 0o1777,
    "var": 0o755,
    "var/tmp": 0o1777,
}


def shared_paths(*additional: Path) -> list[Path]:
    """The files and folders of this machine that each container sees, read-only.

    Raises:
        EnvironmentFault: this machine's programs are not below /usr alone, or a user without rights
            could not read some of it in a pod.
    """
    for name in ("bin", "lib"):
        if not Path("/", name).is_symlink():
            raise EnvironmentFault(
                f"/{name} is a folder beside /usr/{name}, and images are made for machines that "
                "have one for both\n"
                "  hint: set BRIM_TEST_KUBECONFIG to a cluster made with kind or k3s"
            )
    checkout = Path(__file__).resolve().parents[4]
    paths = [
        *(Path("/etc", name) for name in ("ld.so.cache", "alternatives", "fonts")),
        *(Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), checkout),
        *(path.absolute() for path in additional),
    ]
    found = sorted({path for path in paths if path.exists()})
    for path in found:
        _check_readable(path)
    return [path for path in found if not any(other_path in path.parents for other_path in found)]


def _check_readable(path: Path) -> None:
    if is_hidden(path):
        raise EnvironmentFault(
            f"pods would not see {path}: nodes have their own {', '.join(HIDDEN)}\n"
            "  hint: move it elsewhere, such as to /opt"
        )
    needed = 0o005 if path.is_dir() else 0o004
    if path.stat().st_mode & needed != needed:
        raise EnvironmentFault(
            f"a pod without rights could not read {path}\n  hint: chmod -R go+rX {path}"
        )


def write_images(folder: Path, pause: Path) -> list[Path]:
    """Write both images into a folder, and return their files.

    Args:
        pause: the program of the first.
    """
    layer = _Layer()
    layer.file("pause", pause.read_bytes(), mode=0o755)
    config = {"Entrypoint": ["/pause"], "User": f"{NOBODY_UID}:{NOBODY_UID}"}
    _write(folder / "pause.tar", PAUSE, layer, config)
    write_image(folder / "brim.tar", BRIM, {})
    return [folder / "pause.tar", folder / "brim.tar"]


def write_image(path: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Write an image in which a Python with torch and brim runs.

    Args:
        name: what pods call it; with its registry, `docker.io` where they name none.
        files: what it has of its own, by paths from its root; all may be executed.
    """
    layer = _Layer()
    for folder, mode in _FOLDERS.items():
        layer.folder(folder, mode)
    for link in _MERGED:
        if Path("/", link).is_symlink():
            layer.link(link, os.readlink(f"/{link}"))
    for file, text in _ETC.items():
        layer.file(file, text.encode())
    for file, content in files.items():
        layer.file(file, content, mode=0o755)
    programs = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/opt/bin"  # the last: its own
    variables = {"PATH": programs, "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    config = {
        "User": f"{NOBODY_UID}:{NOBODY_UID}",
        "WorkingDir": "/",
        "Cmd": ["python3"],
        "Env": [f"{key}={value}" for key, value in variables.items()],
    }
    _write(path, name, layer, config)


class _Layer:
    """The files of an image."""

    def __init__(self) -> None:
        self._entries: list[tuple[tarfile.TarInfo, bytes]] = []

    def folder(self, name: str, mode: int) -> None:
        self._add(name, tarfile.DIRTYPE, mode)

    def link(self, name: str, target: str) -> None:
        self._add(name, tarfile.SYMTYPE, 0o777, target=target)

    def file(self, name: str, content: bytes, *, mode: int = 0o644) -> None:
        self._add(name, tarfile.REGTYPE, mode, content)

    def content(self) -> bytes:
        with io.BytesIO() as buffer:
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                for info, content in self._entries:
                    tar.addfile(info, io.BytesIO(content))
            return buffer.getvalue()

    def _add(
        self, name: str, kind: bytes, mode: int, content: bytes = b"", *, target: str = ""
    ) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(content), target
        self._entries.append((info, content))


def _write(path: Path, name: str, layer: _Layer, config: Mapping[str, object]) -> None:
    content = layer.content()
    whole = {
        "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    archive = _Layer()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    archive.file("config.json", json.dumps(whole).encode())
    archive.file("layer.tar", content)
    archive.file("manifest.json", json.dumps(manifest).encode())
    write_whole(path, archive.content())
