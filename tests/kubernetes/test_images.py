"""The images of the test cluster, and what its containers see of this machine."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

from brim_lab.kubernetes.images import BRIM, NOBODY, PAUSE, shared_paths, write_images


def test_an_image_names_its_layer_by_its_hash_and_has_a_user_without_rights(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"a program")
    names = []
    for path in write_images(tmp_path, program):
        with tarfile.open(path) as archive:
            files = {each.name: archive.extractfile(each) for each in archive}
            read = {name: file.read() for name, file in files.items() if file is not None}
        (manifest,) = json.loads(read["manifest.json"])
        config = json.loads(read[manifest["Config"]])
        layer = read[manifest["Layers"][0]]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
        assert config["config"]["User"] == f"{NOBODY}:{NOBODY}"
        with tarfile.open(fileobj=io.BytesIO(layer)) as content:
            assert len(content.getnames()) == len(set(content.getnames()))
        names += manifest["RepoTags"]
    assert names == [PAUSE, BRIM]


def test_containers_see_this_python_and_this_checkout_and_no_folder_twice() -> None:
    paths = shared_paths(Path("/usr/share"))
    for needed in (Path(sys.executable).resolve(), Path(sys.prefix), Path(__file__).resolve()):
        assert any(needed.is_relative_to(path) for path in paths)
    assert not [path for path in paths if any(other in path.parents for other in paths)]
