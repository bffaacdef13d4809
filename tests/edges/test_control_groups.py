"""Control groups: all processes in one are found by its folder's name, and end at one blow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.host import control_groups
from brim.host.control_groups import ControlGroup, files_about_us, groups_of, make_group, processors
from e2e.running import has_ended, until
from groups import needs_groups

# Two forks and a session of its own: no parent, no session and no name leads to what is left.
LEAVES = """
import os, subprocess, sys
from pathlib import Path
from brim.host.control_groups import ControlGroup
assert ControlGroup(Path(sys.argv[1])).enter()
script = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
print(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True).stdout, end="")
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ControlGroup]:
    group = make_group(tmp_path)
    assert group is not None
    yield group
    assert group.end(patience=60.0)


def left_in(group: ControlGroup) -> int:
    """A process that another left in a group."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(group.path)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@needs_groups
def test_only_leftovers_of_the_group_end(tmp_path: Path, group: ControlGroup) -> None:
    inner, second = group.subgroup("job-1"), group.subgroup("job-2")
    assert inner is not None
    assert second is not None
    survivors, survivors_beside = left_in(inner), left_in(second)
    assert (inner.members(), group.members()) == ([survivors], [survivors, survivors_beside])
    assert inner.end(patience=60.0)
    assert has_ended(survivors)
    assert not inner.path.exists()
    assert not has_ended(survivors_beside)
    assert group.end(patience=60.0)
    assert has_ended(survivors_beside)
    assert groups_of(tmp_path) == []
    assert group.end()  # it is gone


@needs_groups
def test_a_group_is_found_by_its_folder(tmp_path: Path, group: ControlGroup) -> None:
    """By a process that is in another group, as one of another service or session is."""
    foreign_group = make_group(tmp_path / "elsewhere")
    assert foreign_group is not None
    look = "import sys; from pathlib import Path; from brim.host.control_groups import *\n"
    look += (
        "assert ControlGroup(Path(sys.argv[1])).enter(); print(*(each.path for each in "
        "groups_of(Path(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", look, str(foreign_group.path), str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.split() == [str(group.path)]
    assert make_group(tmp_path) == group  # there is one
    assert foreign_group.end(patience=60.0)


@needs_groups
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a group away")
def test_same_named_groups_of_other_accounts_are_foreign(
    tmp_path: Path, group: ControlGroup
) -> None:
    os.chown(group.path, 65534, 65534)
    assert groups_of(tmp_path) == []
    os.chown(group.path, os.geteuid(), os.getegid())
    assert groups_of(tmp_path) == [group]


@needs_groups
def test_who_leaves_removes_it_unless_somebody_is_left(group: ControlGroup) -> None:
    come_and_go = (
        "import sys; from pathlib import Path; from brim.host.control_groups import ControlGroup\n"
    )
    come_and_go += "group = ControlGroup(Path(sys.argv[1])); assert group.enter(); group.leave()"
    command = [sys.executable, "-c", come_and_go, str(group.path)]
    survivors = left_in(group)
    subprocess.run(command, check=True)
    assert group.members() == [survivors]
    assert group.end(patience=60.0)
    group.path.mkdir()
    subprocess.run(command, check=True)
    assert not group.path.exists()


def test_where_there_are_no_groups_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "_mounts", lambda: iter(()))
    assert make_group(tmp_path) is None
    assert groups_of(tmp_path) == []
    assert files_about_us("memory.events") == []


@pytest.mark.parametrize("place", ["file", "unable"])
def test_a_place_where_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A directory that is no control group, or where nothing can be made, as in most containers."""
    (tmp_path / "file").touch()
    (tmp_path / "unable").mkdir()
    mount = control_groups._Mount("cgroup2", "/", tmp_path / place, frozenset())
    monkeypatch.setattr(control_groups._Mount, "place_of_ours", lambda mount: mount.mount_point)
    monkeypatch.setattr(control_groups, "_mounts", lambda: iter([mount]))
    assert make_group(tmp_path) is None
    assert groups_of(tmp_path) == []
    assert not ControlGroup(tmp_path / place).enter()
    assert list((tmp_path / "unable").iterdir()) == []


def test_files_of_the_nearest_group_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_group = tmp_path / "service" / "brim-1"
    own_group.mkdir(parents=True)
    mount = control_groups._Mount("cgroup2", "/", tmp_path, frozenset())
    monkeypatch.setattr(control_groups._Mount, "place_of_ours", lambda _: own_group)
    monkeypatch.setattr(control_groups, "_mounts", lambda: iter([mount]))
    assert files_about_us("memory.events") == []
    (own_group.parent / "memory.events").touch()
    assert files_about_us("memory.events") == [own_group.parent / "memory.events"]
    (own_group / "memory.events").touch()
    assert files_about_us("memory.events") == [own_group / "memory.events"]


@pytest.mark.parametrize(
    ("version", "files", "share"),
    [
        ("cgroup2", {"pod/cpu.max": "150000 100000\n", "pod/box/cpu.max": "max 100000\n"}, 2),
        ("cgroup2", {"pod/cpu.max": "400000 100000\n", "pod/box/cpu.max": "20000 100000\n"}, 1),
        ("cgroup2", {"cpu.max": "300000 100000\n"}, 3),
        ("cgroup2", {"pod/cpu.max": "max 100000\n"}, 64),
        ("cgroup2", {}, 64),
        (
            "cgroup",
            {"pod/cpu.cfs_quota_us": "250000\n", "pod/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        ("cgroup", {"pod/cpu.cfs_quota_us": "-1\n", "pod/cpu.cfs_period_us": "100000\n"}, 64),
        ("cgroup", {"pod/cpu.cfs_quota_us": "nonsense"}, 64),
    ],
)
def test_processors_are_those_of_the_container(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    files: dict[str, str],
    share: int,
) -> None:
    own_group = tmp_path / "pod" / "box"
    own_group.mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    mount = control_groups._Mount(version, "/", tmp_path, frozenset())
    monkeypatch.setattr(control_groups._Mount, "place_of_ours", lambda _: own_group)
    monkeypatch.setattr(control_groups, "_mounts", lambda: iter([mount]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert processors() == share


@pytest.mark.parametrize(
    ("version", "options", "root", "line", "place"),
    [
        ("cgroup2", "rw", "/", "0::/user.slice/a", "user.slice/a"),
        ("cgroup2", "rw", "/", "0::/", "."),
        ("cgroup2", "rw", "/docker/7", "0::/docker/7/brim", "brim"),
        ("cgroup2", "rw", "/docker/7", "0::/docker/8", None),  # not to be seen from here
        ("cgroup", "rw,memory", "/", "4:memory:/box", "box"),
        ("cgroup", "rw,cpu,cpuacct", "/", "4:cpu,cpuacct:/box", "box"),
        ("cgroup", "rw,cpu", "/", "4:memory:/box", None),
    ],
)
def test_where_the_group_of_this_process_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    options: str,
    root: str,
    line: str,
    place: str | None,
) -> None:
    mount = control_groups._Mount(version, root, tmp_path, frozenset(options.split(",")))
    monkeypatch.setattr(control_groups, "read_proc", lambda _: f"3:pids:/elsewhere\n{line}\n")
    assert mount.place_of_ours() == (None if place is None else tmp_path / place)


@needs_groups
def test_a_constantly_forking_group_is_ended(group: ControlGroup) -> None:
    forks = "import os, sys, time; from pathlib import Path\n"
    forks += "from brim.host.control_groups import processors, ControlGroup\n"
    forks += "assert ControlGroup(Path(sys.argv[1])).enter(); end = time.monotonic() + 60\n"
    forks += "while time.monotonic() < end:\n    if os.fork(): os._exit(0)\n"
    subprocess.run([sys.executable, "-c", forks, str(group.path)], check=True)
    assert group.end(patience=60.0)
    until(lambda: not group.path.exists(), "its end")


def test_equal_paths_in_containers_have_separate_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another directory lies there, or other processes are to be seen."""
    folder, name = tmp_path / "run", control_groups._name_for
    folder.mkdir()
    first = name(folder)
    assert name(folder) == name(tmp_path / "other" / ".." / "run") == first
    folder.rename(tmp_path / "elsewhere")  # it keeps its number: no other gets that
    folder.mkdir()
    second = name(folder)
    assert second != first
    stat = Path.stat

    def of_another_namespace(path: Path, **options: bool) -> os.stat_result:
        return stat(
            Path("/proc/self/ns/mnt") if path == Path("/proc/self/ns/pid") else path, **options
        )

    monkeypatch.setattr(Path, "stat", of_another_namespace)
    assert name(folder) not in (first, second)


def test_groups_with_invisible_processes_are_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = control_groups._Mount("cgroup2", "/", tmp_path, frozenset())
    monkeypatch.setattr(control_groups, "_mounts", lambda: iter([mount]))
    group = ControlGroup(tmp_path / control_groups._name_for(tmp_path))
    group.path.mkdir()
    for members, found in (("7\n", [group]), ("7\n0\n", [])):
        (group.path / "cgroup.procs").write_text(members)
        assert groups_of(tmp_path) == found


def test_a_mount_path_may_contain_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    line = r"36 35 0:29 / /my\040groups\134 rw - cgroup2 cgroup2 rw"
    monkeypatch.setattr(control_groups, "read_proc", lambda _: f"{line}\n")
    (mount,) = control_groups._mounts()
    assert mount.mount_point == Path("/my groups\\")
