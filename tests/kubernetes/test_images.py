"""The images of the test cluster, and its containers' view of this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from brim.errors import EnvironmentFault
from brim_lab.kubernetes.images import BRIM, NOBODY_UID, PAUSE, shared_paths, write_images
from brim_lab.kubernetes.node import container


def test_images_have_hashed_layers_and_unprivileged_users(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"a program")
    names = []
    for path in write_images(tmp_path, program):
        with tarfile.open(path) as archive:
            files = {member.name: archive.extractfile(member) for member in archive}
            read = {name: file.read() for name, file in files.items() if file is not None}
        (manifest,) = json.loads(read["manifest.json"])
        config = json.loads(read[manifest["Config"]])
        layer = read[manifest["Layers"][0]]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
        assert config["config"]["User"] == f"{NOBODY_UID}:{NOBODY_UID}"
        with tarfile.open(fileobj=io.BytesIO(layer)) as content:
            assert len(content.getnames()) == len(set(content.getnames()))
        names += manifest["RepoTags"]
    assert names == [PAUSE, BRIM]


def test_containers_share_python_and_checkout_once() -> None:
    paths = shared_paths(Path("/usr/share"))
    for needed in (Path(sys.executable).resolve(), Path(sys.prefix), Path(__file__).resolve()):
        assert any(needed.is_relative_to(path) for path in paths)
    assert not [path for path in paths if any(other_path in path.parents for other_path in paths)]


def test_unreadable_folders_are_refused(tmp_path: Path) -> None:
    """A checkout in `mktemp -d`, for one: its modules are not found, and nothing says why."""
    (tmp_path / "checkout").mkdir(mode=0o700)
    with pytest.raises(EnvironmentFault, match=r"could not read .*\n  hint: chmod -R go\+rX /"):
        shared_paths(tmp_path / "checkout")
    with pytest.raises(EnvironmentFault, match="would not see /run: nodes have their own /run"):
        shared_paths(Path("/run"))


@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("runc") and shutil.which("ctr")),
    reason="needs root, runc and ctr: apt-get install runc containerd",
)
def test_volumes_over_shared_folders_hide_nothing(tmp_path: Path) -> None:
    """As a pod's own /tmp lies over a checkout in /tmp."""
    upper, share = tmp_path / "over", tmp_path / "over" / "checkout"
    share.mkdir(parents=True)
    (share / "code").write_text("brim")
    (tmp_path / "volume" / "checkout").mkdir(parents=True)  # as another container has left it
    root = tmp_path / "rootfs"
    for folder in ("usr", "etc"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        if Path("/", link).is_symlink():
            (root / link).symlink_to(os.readlink(f"/{link}"))
    spec = container([share])
    volume = {"type": "bind", "source": str(tmp_path / "volume"), "options": ["bind", "rw"]}
    spec["mounts"].append({**volume, "destination": str(upper)})
    script = "cat checkout/code; touch own; touch checkout/code"  # the last fails
    spec["process"] |= {"args": ["/bin/sh", "-c", script], "cwd": str(upper)}
    spec["process"]["env"] = ["PATH=/usr/bin"]
    spec["linux"]["cgroupsPath"] = f"/{tmp_path.parent.name}-{tmp_path.name}"
    (tmp_path / "config.json").write_text(json.dumps(spec))
    command = ["runc", "--root", str(tmp_path / "state"), "run", "--bundle", str(tmp_path), "one"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.returncode) == ("brim", 1), done.stderr
    assert "Read-only file system" in done.stderr
    assert (tmp_path / "volume" / "own").exists()
