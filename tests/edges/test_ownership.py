"""brim obeys no directory that another account can change, and shows the remedy."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim.cli.__main__ import cli
from brim.errors import SpecError
from brim.runs.directories import claim
from brim.storage.files import write_whole
from brim.storage.ownership import check_ours, make_ours
from recorded_run import RecordedRun, spec

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_what_is_ours_is_taken(tmp_path: Path) -> None:
    check_ours(tmp_path, field="--state")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o775])
def test_a_directory_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    if mode == 0o775:
        if os.geteuid():
            pytest.skip("only root can give files away")
        os.chown(tmp_path, -1, NOBODY)  # a group of our own may
    tmp_path.chmod(mode)
    with pytest.raises(SpecError, match=rf"may write to \(mode {mode:o}\)[^\0]*hint: chmod go-w"):
        check_ours(tmp_path, field="--state")


@as_root
def test_a_directory_of_another_account(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, -1)
    with pytest.raises(SpecError, match=r"belongs to nobody, need a directory of root"):
        check_ours(tmp_path, field="--state")


def up(state: Path) -> None:
    found = CliRunner().invoke(cli, ["up", "--state", str(state)])
    assert found.exit_code == 2
    raise SpecError("up", got=found.stderr, need="a directory of ours")


def resume(run_dir: Path) -> None:
    found = CliRunner().invoke(cli, ["resume", str(run_dir)])
    assert found.exit_code == 2
    raise SpecError("resume", got=found.stderr, need="a directory of ours")


@pytest.mark.parametrize("use", [up, resume, claim])
def test_nothing_begins_in_it(tmp_path: Path, use: Callable[[Path], None]) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    if use is resume:
        RecordedRun(directory, spec(), samples=8192).begin()
    directory.chmod(0o777)
    files_before = sorted(directory.iterdir())
    with pytest.raises(SpecError, match="which other accounts may write to"):
        use(directory)
    assert sorted(directory.iterdir()) == files_before


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_files_follow_the_umask_and_secrets_do_not(tmp_path: Path, umask: int) -> None:
    umask_before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", b"x")
        write_whole(tmp_path / "token", b"x", mode=0o600)
        make_ours(tmp_path / "a" / "run")
    finally:
        os.umask(umask_before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "run").stat().st_mode & 0o777 == 0o755 & ~umask


@as_root
def test_another_account_reads_no_state(tmp_path: Path) -> None:
    """The directory that `brim up` makes is closed to it, from wherever it asks."""
    state = tmp_path / "state"
    make_ours(state, mode=0o700)
    (state / "token").write_text("secret")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
        if re.fullmatch(r"/tmp", str(folder)):
            break
    tried = subprocess.run(
        ["/bin/cat", str(state / "token")],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "secret" not in tried.stdout
    assert "Permission denied" in tried.stderr
