"""A process of root touches files of an account with that account's rights, and no link leads it
further.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from pathlib import Path

import pytest

from brim.domain.cluster import Cluster, ClusterSpec
from brim.domain.tenancy import Tenant
from brim.errors import EnvironmentFault, SpecError
from brim.host import account
from brim.host.account import (
    acting_as,
    acting_uid,
    check_account,
    environment_of,
    give,
    owns,
    unreadable,
)
from brim.scheduler.loop import check_accounts
from brim.telemetry.logs import Tail

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """A directory of another account, which it can reach."""
    for parent in itertools.takewhile(
        lambda path: path != Path(tempfile.gettempdir()), tmp_path.parents
    ):
        parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)
    directory = tmp_path / "theirs"
    directory.mkdir(mode=0o700)
    give(directory, "nobody")
    return directory


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("of root\n")
    path.chmod(0o600)
    return path


def test_a_link_of_theirs_leads_nowhere(foreign_folder: Path, secret: Path) -> None:
    (foreign_folder / "logs").mkdir()
    (foreign_folder / "logs" / "w1.log").symlink_to(secret)
    (foreign_folder / "agent.log").symlink_to(secret)
    os.chown(foreign_folder / "logs", NOBODY, NOBODY)
    assert (
        foreign_folder / "logs" / "w1.log"
    ).read_text() == "of root\n"  # as root: this is what it is about
    assert Tail(foreign_folder).fresh() == []
    with acting_as("nobody"):
        assert Tail(foreign_folder).fresh() == []
        with pytest.raises(PermissionError):
            (foreign_folder / "agent.log").open("ab")
        with pytest.raises(PermissionError):
            secret.unlink()
    assert secret.read_text() == "of root\n"


def test_what_is_made_is_theirs_and_afterwards_ours(foreign_folder: Path, tmp_path: Path) -> None:
    with acting_as("nobody"):
        assert acting_uid() == NOBODY
        (foreign_folder / "file").write_text("x")
    assert (foreign_folder / "file").stat().st_uid == NOBODY
    assert acting_uid() == 0
    (tmp_path / "file").write_text("x")
    assert (tmp_path / "file").stat().st_uid == 0


def test_only_this_thread_acts_as_another(secret: Path) -> None:
    read, now = list[str](), threading.Event()

    def look() -> None:
        assert now.wait(10.0)
        read.append(secret.read_text())

    thread = threading.Thread(target=look)
    thread.start()
    with acting_as("nobody"):
        now.set()
        thread.join()
        with pytest.raises(PermissionError):
            secret.read_text()
    assert read == ["of root\n"]
    assert secret.read_text() == "of root\n"


def test_an_error_restores_our_account(secret: Path) -> None:
    with pytest.raises(ZeroDivisionError), acting_as("nobody"):
        1 / 0
    assert secret.read_text() == "of root\n"


def test_no_such_account(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="no account 'nemo'"), acting_as("nemo"):
        pass
    with pytest.raises(SpecError, match="got 'nemo', need an account of this host"):
        check_account("nemo", field="user")


def test_only_processes_of_the_account_are_killed() -> None:
    assert not owns("nobody", os.getpid())
    assert not owns("nobody", 2**30)
    assert owns("root", os.getpid())


def test_no_tenants_jobs_are_roots() -> None:
    spec = ClusterSpec(
        cluster=Cluster.parse("1x1"),
        tenants=(Tenant(id="ads", user="nobody"), Tenant(id="web", user="root")),
    )
    with pytest.raises(SpecError, match="tenant web: user: got root"):
        check_accounts(spec)


def test_accounts_must_be_able_to_run_python(
    foreign_folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (foreign_folder / "python").touch(mode=0o755)
    assert unreadable("nobody", [str(foreign_folder / "python")]) == ""
    assert unreadable("nobody", [str(secret)]) == f"{secret}: Permission denied"
    monkeypatch.setattr(account, "PYTHON_FILES", (str(secret),))
    spec = ClusterSpec(cluster=Cluster.parse("1x1"), tenants=(Tenant(id="ads", user="nobody"),))
    with pytest.raises(
        SpecError, match="tenant ads: user: got 'nobody', which cannot read"
    ) as wrong:
        check_accounts(spec)
    assert str(secret) in wrong.value.got
    monkeypatch.setattr(account, "PYTHON_FILES", ())
    check_accounts(spec)


def test_naming_another_account_needs_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SpecError, match="need a scheduler that runs as root"):
        check_account("nobody", field="user")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    check_account("nobody", field="user")


def test_the_environment_is_theirs() -> None:
    assert environment_of("nobody")["USER"] == "nobody"
    assert environment_of("nobody")["HOME"] != os.environ.get("HOME")
