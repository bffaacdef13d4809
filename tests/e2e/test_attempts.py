"""Attempts of another account of the host, and of another host of the network, door by door, while
jobs train: the tables of the pages beside this file, and the digests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from attempts import check_page
from brim.client import Client
from brim.storage.contact import read_contact, read_scheduler_contact
from brim.wire.authority import Authority
from brim.wire.identity import Identity
from brim.wire.proofs import workers_secret
from brim.wire.run_identity import AGENT
from brim_lab.chaos.hosts import DEVICE, Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.reachable import reachable
from e2e.running import (
    DEADLINE,
    JOB,
    LONG_JOB,
    PACED,
    ROOT,
    Run,
    check_ledger,
    joining,
    leftovers,
    started,
    undisturbed,
    until,
)
from e2e.strangers import CAN_BE_ANOTHER, STRANGER
from e2e.wiretap import Stream, calls, tapped

pytestmark = [
    pytest.mark.e2e,
]
SLOW = ("--set", "pause=0.3")  # the attempts take half a minute
CLUSTER = """
nodes: [{name: n1, workers: 2}]
tenants:
  - {name: ads, guaranteed: 1}
  - {name: web, guaranteed: 1}
"""
COLUMNS = {
    "none": "no token",
    "wrong": "a wrong one",
    "another": "another tenant's",
    "right": "the right one",
}
# Of a worker, who hears others only while it waits for one: they are sent away, or never answered.
OF_HOSTS = {"master": "port of the master", "worker": "ports of workers"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can enter: its files have to protect themselves."""
    umask = os.umask(0o022)
    path = Path(tempfile.mkdtemp(prefix="brim-doors-"))
    path.chmod(0o755)
    yield path
    os.umask(umask)
    shutil.rmtree(path)


@contextlib.contextmanager
def scheduled(folder: Path) -> Iterator[tuple[Path, str]]:
    """A cluster with a job of tenant ads under way."""
    state = folder / "state"
    (folder / "cluster.yaml").write_text(CLUSTER)

    driver = Driver(folder, BRIM_HOME=str(state))

    def brim(*words: str) -> str:
        return driver.call(*words).stdout

    brim("up", "--cluster", "cluster.yaml")
    try:
        yield (
            state,
            brim("submit", *LONG_JOB, "--tenant", "ads", "--workers", "1:2", *SLOW).strip(),
        )
    finally:
        brim("down", "--kill")
        until(lambda: not leftovers(state), "the end")


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[Run]:
    """A run of two hosts, which are both this one, under way."""
    slow = (*SLOW, "--set", f"hurry={folder / 'run' / 'hurry'}")
    hosts = ("--workers", "2", "--listen", "127.0.0.1:0", "--agents", "2", "--spares", "0")
    with (
        started(folder / "run", "train", *LONG_JOB, *slow, *hosts) as run,
        joining(folder / "run") as guest,
    ):
        try:
            yield run
            assert guest.wait(DEADLINE) == 0
        finally:
            guest.kill()


def family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def brims(directory: Path) -> list[psutil.Process]:
    """All processes that have to do with a directory, and their descendants."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        if str(directory) in " ".join(process.info["cmdline"] or []):
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {process.pid: process for process in family(process.pid)}
    return list(found.values())


def ports_of(process: psutil.Process) -> list[int]:
    return [
        net_connection.laddr.port
        for net_connection in process.net_connections("tcp")
        if net_connection.status == psutil.CONN_LISTEN
    ]


def table(
    rows: dict[str, dict[str, str]],
    columns: dict[str, str] = COLUMNS,
    caller: str = "another account",
) -> str:
    lines = [
        f"| tried by {caller} | " + " | ".join(columns.values()) + " |",
        "|---|" + "---|" * len(columns),
        *(
            f"| {door} | " + " | ".join(row.get(column, "—") for column in columns) + " |"
            for door, row in rows.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def nameless(processes: list[psutil.Process], folder: Path) -> bool:
    """Whether memory shared by these processes has no name that another account could open, or be
    first to make.
    """
    sockets = set[str]()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            shared = [
                memory_map.path
                for memory_map in process.memory_maps()
                if memory_map.path.startswith("/dev/shm/")
            ]
            mapped_paths = [
                open_file.path
                for open_file in process.open_files()
                if open_file.path.startswith(("/tmp/", "/dev/shm/"))
            ]
            if shared or any(
                not path.startswith((str(folder), tempfile.gettempdir())) for path in mapped_paths
            ):
                return False
            sockets |= {
                os.readlink(path)
                for path in Path(f"/proc/{process.pid}/fd").iterdir()
                if path.is_symlink()
            }
    named = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    abstract = [line[6] for line in named if len(line) > 7 and line[7].startswith("@")]
    return not any(f"socket:[{inode}]" in sockets for inode in abstract)


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason="needs another account")
def test_attempts_of_another_account_achieve_nothing(folder: Path) -> None:
    calm = undisturbed(*LONG_JOB)
    with scheduled(folder) as (state, job), listening(folder) as run:
        client, run_dir = Client(state), state / "jobs" / job
        until(lambda: client.job(job).step > 5, "steps of the job")
        run.wait_for_step(5)
        scheduler, contact = read_scheduler_contact(state), read_contact(run.directory)
        contact_of_run = read_contact(run_dir)
        assert scheduler is not None
        assert contact is not None
        assert contact_of_run is not None
        worker = psutil.Process(run.pid(run.members()[0]))
        processes = [*brims(state), *brims(run.directory)]
        master = int(contact.address.rpartition(":")[2])
        target = {
            "account": STRANGER,
            "address": f"{scheduler.host}:{scheduler.port}",
            "tokens": {
                "none": "",
                "wrong": "wrong",
                "another": client.give_token("web"),
                "right": client.give_token("ads"),
            },
            "job": job,
            "master": contact.address,
            "token": contact.token,
            "ports": [scheduler.port, master],
            "worker": f"127.0.0.1:{ports_of(worker)[0]}",
            "control": str(run.directory / "control"),
            "node": str(state / "nodes" / "n1" / "socket"),
            "state": str(state),
            "files": [
                *(
                    str(state / name)
                    for name in ("token", "scheduler.json", "scheduler.db", "scheduler.log")
                ),
                *(
                    str(run_dir / name)
                    for name in ("master.json", "job.json", "journal", "logs/master.log")
                ),
            ],
            "folders": [
                str(folder) for folder in (state, run_dir, run.directory, run.directory / "logs")
            ],
            "contact": str(run.directory / "master.json"),
            "open": [str(run.directory / name) for name in ("logs/master.log", "events.jsonl")],
            "pids": [process.pid for process in processes if process.is_running()],
        }
        steps = client.job(job).step, len(run.steps())
        done = subprocess.run(
            [*reachable(), sys.executable, str(ROOT / "tests" / "e2e" / "attempts.py")],
            input=json.dumps(target),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[str, str]] = json.loads(done.stdout)
        # What anybody can read of a process tells no secret, and nothing is shared by a name.
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                command_line = " ".join(process.cmdline())
                assert not any(
                    token in command_line
                    for token in (contact.token, contact_of_run.token, scheduler.token)
                )
        assert nameless(processes, folder)
        assert client.job(job).step >= steps[0]
        (run_dir / "hurry").touch()
        run.hurry()
        ends: list[dict[str, Any]] = [client.wait(job, timeout=DEADLINE).summary, run.finish()]
        assert client.job(job).launches == 1
    for end in ends:
        assert end["exit"] == "done"
        assert end["weights_sha256"] == calm["weights_sha256"]
        assert end["steps_redone"] == 0
    check_ledger(folder / "run")
    check_page(Path(__file__).with_name("attempts_of_accounts.md"), table(found))


def put_into(host: Host, port: int) -> tuple[int, ...]:
    """Put bytes into a connection of a host with the first host, and return its ports."""
    words = (sys.executable, "-m", "e2e.forger", DEVICE, "10.77.0.2", "10.77.0.1", str(port))
    done = subprocess.run(
        ["ip", "netns", "exec", host.namespace, *words],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


def connections(host: Host) -> set[tuple[int, ...]]:
    """The ports of the other end and of its own, of all connections of a host."""
    listing = subprocess.run(
        ["ip", "netns", "exec", host.namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    ends = (line.split()[1:4] for line in listing.stdout.splitlines() if ":" in line[:12])
    return {
        tuple(int(end.rpartition(":")[2], 16) for end in (remote, local))
        for local, remote, state in ends
        if state == "01"
    }


def breaks(hosts: Sequence[Host], port: int) -> bool:
    """Put bytes into a connection of the second host with the first, and return whether it ended.

    It does not where the second host said something at that very moment: its own bytes came first.
    """
    ports = put_into(hosts[1], port)
    for _ in range(50):
        if ports not in connections(hosts[0]):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
@pytest.mark.long
def test_injected_bytes_break_only_the_connection(
    tmp_path: Path,
) -> None:
    calm = undisturbed(*JOB)
    with contextlib.ExitStack() as undo:
        hosts = undo.enter_context(hosts_in(tmp_path, 2))
        run_dir = hosts[0].folder / "run"
        slow = (*PACED, "--set", f"hurry={run_dir / 'hurry'}")
        options = ("--workers-here", "1", "--spares", "0", "--listen", "10.77.0.1:7077")
        words = ("train", *JOB, *slow, "--workers", "2", "--agents", "2", *options)
        run = undo.enter_context(started(run_dir, *words, prefix=hosts[0].prefix))
        guest = joining(run_dir, address="10.77.0.1:7077", prefix=hosts[1].prefix)
        undo.callback(guest.kill)
        run.wait_for_step(5)
        for port, description in ((-7077, "of two workers"), (7077, "of an agent and the master")):
            until(partial(breaks, hosts, port), f"the end of a connection {description}", run)
            run.wait_for_step(len(run.steps()) + 15)  # more than an agent has to come back
            lost = [event["worker"] for event in run.events("worker") if event["state"] == "lost"]
            assert port == 7077 or (run.events("re_formed") and not lost), f"{description}: {lost}"
        # An agent that was counted as lost joins again, and hears the end of the run.
        until(lambda: run.events("round")[-1]["world_size"] == 2, "both workers again", run)
        run.hurry()
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert 1 <= summary["steps_redone"] <= 2
    check_ledger(run_dir)


def said_to(port: int, streams: dict[Stream, bytes]) -> str:
    """The words of the longest connection to a port, as far as they are needed to say them again."""
    to_it = [words_said for (_, _, _, target), words_said in streams.items() if target == port]
    return base64.b64encode(max(to_it, key=len)[: 1 << 16]).decode()


def as_json(identity: Identity) -> dict[str, str]:
    names = ("key", "certificate", "authority")
    return {name: getattr(identity, name).decode() for name in names}


@pytest.mark.netns
@pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
def test_attempts_of_another_host_achieve_nothing(
    tmp_path: Path,
) -> None:
    """While it tries, a worker comes: so others hear its call, and one takes over a state."""
    calm = undisturbed(*LONG_JOB)
    with contextlib.ExitStack() as undo:
        hosts = undo.enter_context(hosts_in(tmp_path, 3))
        run_dir = hosts[0].folder / "run"
        slow = (*SLOW, "--set", f"hurry={run_dir / 'hurry'}")
        words = ("--workers", "2", "--spares", "0", "--listen", "10.77.0.1:7077", "--agents", "2")
        streams_of_host = undo.enter_context(tapped(hosts[1], tmp_path / "packets"))
        run = undo.enter_context(
            started(run_dir, "train", *LONG_JOB, *slow, *words, prefix=hosts[0].prefix)
        )
        guest = joining(run_dir, address="10.77.0.1:7077", prefix=hosts[1].prefix)
        undo.callback(guest.kill)
        run.wait_for_step(5)
        contact = read_contact(run_dir)
        assert contact is not None
        own_authority, other_authority = (
            Authority.derived_from(workers_secret(secret)) for secret in (contact.token, "x")
        )

        def calls_of_workers() -> set[tuple[str, int]]:
            """The ends that were called: of either host, whichever has rank 0."""
            return {(host, port) for _, _, host, port in calls(streams_of_host()) if port != 7077}

        # What was sent is on record a moment later.
        until(lambda: len(calls_of_workers()) == 1, "a call of a worker", run)
        streams, ((host, worker),) = streams_of_host(), calls_of_workers()
        target = {
            "master": contact.address,
            "worker": f"{host}:{worker}",
            "identities": {
                "no certificate": {"authority": own_authority.certificate.decode()},
                "a certificate of another run": as_json(other_authority.issue(AGENT)),
                "a certificate that has expired": as_json(
                    own_authority.issue(AGENT, for_s=-3600.0)
                ),
            },
            "other_token": "of another run",
            "other_secret": "of another run",
            "recorded": {"master": said_to(7077, streams), "worker": said_to(worker, streams)},
        }
        script = str(ROOT / "tests" / "e2e" / "attempts_of_hosts.py")
        strangers = subprocess.Popen(
            [*hosts[2].prefix, sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        undo.callback(strangers.kill)
        assert strangers.stdin is not None
        print(json.dumps(target), file=strangers.stdin, flush=True)
        steps_before = len(run.steps())
        run.wait_for_step(steps_before + 10)
        Driver().with_prefix(hosts[0].prefix).call("resize", str(run_dir), "3")
        until(lambda: len(run.members()) == 3, "the third worker", run)
        output, problem = strangers.communicate("\n", timeout=DEADLINE)
        assert strangers.returncode == 0, problem
        run.hurry()
        summary = run.finish()
        assert guest.wait(DEADLINE) == 0
    found: dict[str, dict[str, str]] = json.loads(output)
    for row in found.values():
        assert row["worker"] in ("refused", "nothing")
        row["worker"] = "nothing"
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert summary["steps_redone"] == 0
    check_ledger(run_dir)
    page = table(found, OF_HOSTS, "another host")
    check_page(Path(__file__).with_name("attempts_of_hosts.md"), page)
