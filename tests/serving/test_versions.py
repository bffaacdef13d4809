"""Which version of a directory comes next."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from brim.errors import EnvironmentFault, SpecError
from brim.serving.manifest import BundleManifest, write_manifest
from brim.serving.server import serve
from brim.serving.versions import Found, Versions, next_of, passed_over


def at(step: int, base: int | None = None) -> Found:
    manifest = BundleManifest(
        version=f"v{step}",
        step=step,
        base="" if base is None else f"v{base}",
        weights_sha256="",
        checkpoint="",
        training_file="",
        threads=1,
        versions={},
    )
    return Found(Path(f"{step}{'' if base is None else '-delta'}"), manifest)


@pytest.mark.parametrize(
    ("now", "candidates", "chosen"),
    [
        (None, [at(1), at(2)], at(2)),
        (None, [at(2, 1)], None),
        (1, [at(1)], None),
        (2, [at(1)], None),
        (1, [at(1), at(2, 1), at(3, 2)], at(2, 1)),
        (2, [at(1), at(2, 1), at(3, 2)], at(3, 2)),
        (1, [at(3), at(2, 1)], at(3)),
        (1, [at(3, 1), at(2, 1)], at(3, 1)),
        (1, [at(3, 2)], None),
        (3, [at(4, 1)], None),
    ],
)
def test_the_newest_bundle_or_its_delta_is_chosen(
    now: int | None, candidates: list[Found], chosen: Found | None
) -> None:
    current = None if now is None else at(now).manifest
    found, _ = next_of(candidates, current)
    assert (found and found.path) == (chosen and chosen.path)


def test_a_delta_that_waits_says_for_what() -> None:
    _, waiting = next_of([at(3, 2), at(4, 3)], at(1).manifest)
    assert list(waiting) == [Path("3-delta")], "the one behind it waits for that one alone"
    assert "changes version v2, and v1 is served" in waiting[Path("3-delta")]


def test_refused_versions_are_retried_after_changes(
    tmp_path: Path,
) -> None:
    directory, tries = tmp_path / "versions", 0
    make_version(directory / "1", step=1)
    versions = Versions(directory)

    def fail(_: Path) -> None:
        nonlocal tries
        tries += 1
        raise EnvironmentFault("it is damaged")

    def look() -> None:
        for version in versions.look():
            versions.attempt(version, fail)

    look()
    look()
    assert (tries, versions.problems) == (1, {directory / "1": "it is damaged"})
    (directory / "1" / "rows-0.safetensors").write_bytes(b"h")
    look()  # it is still being written, for all that is known
    (directory / "1" / "rows-0.safetensors").write_bytes(b"half")
    look()
    assert tries == 1
    look()
    assert tries == 2
    (directory / "1" / "code").mkdir()
    (directory / "1" / "code" / "file.py").write_text("")
    look()
    look()
    look()
    assert tries == 3
    (directory / "1" / "code" / "file.py").unlink()
    versions.look()
    assert [versions.attempt(version, lambda path: path.name) for version in versions.look()] == [
        "1"
    ]
    assert not versions.problems


def test_refused_versions_with_dangling_links_are_retried(tmp_path: Path) -> None:
    make_version(tmp_path / "1", step=1)
    for number in range(20):  # whatever order the system lists them in
        (tmp_path / "1" / f"link-{number}").symlink_to(tmp_path / "nothing")
    (tmp_path / "1" / "rows").write_bytes(b"")
    versions, tries = Versions(tmp_path), 0

    def fail(_: Path) -> None:
        nonlocal tries
        tries += 1
        raise EnvironmentFault("it is damaged")

    def look() -> None:
        for version in versions.look():
            versions.attempt(version, fail)

    look()
    for number in range(20):
        (tmp_path / "1" / f"rows-{number}").write_bytes(b"more")
        look()
        look()
    assert tries == 21


def test_files_changing_while_read_are_reread(tmp_path: Path) -> None:
    directory = tmp_path / "versions"
    make_version(directory / "1", step=1)
    versions = Versions(directory)

    def fail(path: Path) -> None:
        (path / "rows-0.safetensors").write_bytes(b"now it is whole")
        raise EnvironmentFault("it is damaged")

    for version in versions.look():
        versions.attempt(version, fail)
    versions.look()
    assert [version.path.name for version in versions.look()] == ["1"]


def make_version(directory: Path, *, step: int) -> None:
    directory.mkdir(parents=True)
    write_manifest(directory, at(step).manifest)


def test_late_versions_are_reported() -> None:
    served = at(20).manifest
    other_version = Found(Path("again"), msgspec.structs.replace(served, version="v20-again"))
    at_start = [at(10), at(20), other_version]
    paths_known: set[Path] = set()
    notes = passed_over(at_start, served, paths_known)
    assert list(notes) == [Path("again")], "what is older at the start is history"
    paths_known |= {version.path for version in at_start}
    assert passed_over([*at_start, at(30, 20), at(15), at(12, 10)], served, paths_known).keys() == {
        Path("15"),
        Path("12-delta"),
    }
    assert (
        "is of step 15, and 20 is served" in passed_over([at(15)], served, paths_known)[Path("15")]
    )


def test_run_is_no_directory_of_versions(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(SpecError, match=f"export {tmp_path} --output versions/1") as refused:
        serve(
            tmp_path,
            host="127.0.0.1",
            port=0,
            token="",
            certificate=None,
            most=1,
            wait=0.0,
            say=print,
        )
    assert "brim serve versions" in refused.value.hint
