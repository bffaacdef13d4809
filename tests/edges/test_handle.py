"""The handle of a run: which run a name means, and its knowledge where little is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.domain.job import WorkerRange
from brim.errors import SpecError
from brim.runs.directories import find_run
from brim.runs.handle import RunHandle, handle_of
from brim.runs.in_words import describe_resize
from brim.telemetry.events import RunFailed
from edges.test_dashboard import job


def _run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "events.jsonl").touch()
    return path


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a run, beside the present one, which has a run of the same name."""
    own_project, other_project = tmp_path / "here", tmp_path / "there"
    for project in (own_project, other_project):
        (_run(project / "runs" / "flights-1").parent / "latest").symlink_to("flights-1")
    monkeypatch.chdir(own_project)
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "state"))
    return other_project


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("{there}/runs/latest", ""),
        ("{there}/runs/latest/", ""),
        ("../there/runs/latest", ""),
        ("{there}/runs/flights-1", ""),
        ("{there}/mine", "runs/flights-1"),
        ("{there}/mine", "runs/latest"),
        ("../there/mine", "{there}/runs/flights-1"),
        ("mine", "../there/runs/flights-1"),
    ],
)
def test_a_path_means_the_run_at_that_path(project_folder: Path, name: str, target: str) -> None:
    path = name.format(there=project_folder)
    if target:
        Path(path).symlink_to(target.format(there=project_folder))
    for found in (find_run(path), handle_of(path).run_dir):
        assert found.samefile(project_folder / "runs" / "flights-1")
        assert found.name == "flights-1"


@pytest.mark.parametrize("name", [None, "latest", "runs/latest", "flights-1", "runs/flights-1"])
def test_a_name_means_the_run_of_this_project(project_folder: Path, name: str | None) -> None:
    assert find_run(name) == Path("runs/flights-1")


def test_a_dangling_link_is_no_run(project_folder: Path) -> None:
    link = project_folder / "runs" / "latest"
    link.unlink()
    link.symlink_to("gone")
    _run(Path("runs/gone"))
    with pytest.raises(SpecError, match="latest"):
        find_run(str(link))


def test_missing_run_beside_jobs_names_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "state" / "jobs" / "flights-1")
    with pytest.raises(SpecError, match="brim jobs lists them"):
        find_run(None, state=tmp_path / "state")


def test_a_run_before_its_beginning_is_not_dead(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="workers are not ready yet"):
        RunHandle(tmp_path).wait()


def test_a_run_failing_before_its_beginning_says_why(tmp_path: Path) -> None:
    failed = RunFailed(at=2.0, who="user", message="no such column", trace="")
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(failed) + b"\n")
    ending = RunHandle(tmp_path).wait()
    assert ending.state == "failed"
    assert "no such column" in ending.why


@pytest.mark.parametrize(
    ("fields", "workers", "words"),
    [
        ({"workers": 2, "planned": 2}, "2", "asked for 2 workers, has 2 now"),
        ({"workers": 1, "planned": 2}, "2", "asked for 2 workers, has 1 now and goes to 2"),
        (
            {"workers": 2, "planned": 2},
            "1:4",
            "asked for 1:4 workers, has 2 now; more come where the policy has devices and a use for them",
        ),
        (
            {
                "workers": 0,
                "planned": 0,
                "waits": "it needs 2 devices, and none is free: b-1 has 2",
            },
            "2",
            "asked for 2 workers, has none now; it needs 2 devices, and none is free: b-1 has 2",
        ),
        (
            {"workers": 0, "planned": 0, "wish": "hold"},
            "1",
            "asked for 1 worker, has none now; it is suspended, and brim resume a-1 lets it run again",
        ),
    ],
)
def test_a_resize_says_what_the_job_has(fields: dict[str, Any], workers: str, words: str) -> None:
    assert describe_resize(job(**fields), WorkerRange.parse(workers)) == words
