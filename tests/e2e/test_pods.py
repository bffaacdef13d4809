"""A run in pods: agents with one worker each, and a master that is called by a name.

Hosts of namespaces stand for nodes, and the name is a line of their /etc/hosts, which leads to
another host where the master moves.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attempts import check_page
from brim.wire.authority import Authority
from brim.wire.proofs import workers_secret
from brim.wire.run_identity import AGENT
from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DEADLINE, JOB, ROOT, Run, check_ledger, undisturbed, until
from e2e.test_attempts import as_json, table

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun"),
]
NAME, PORT = "job-master", 7077
TOKEN = "of this start alone"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, ...]]:
    with hosts_in(tmp_path, 3) as three:
        yield three


@pytest.fixture(scope="module")
def calm() -> str:
    """The digest of the same job on one host."""
    return str(undisturbed(*JOB)["weights_sha256"])


def lead_to(hosts: Sequence[Host], host: Host) -> None:
    """Have the name of the master lead to a host."""
    for reachable_host in hosts:
        if reachable_host.is_up:
            (reachable_host.root / "run" / "hosts").write_text(
                f"127.0.0.1 localhost\n{host.address} {NAME}\n"
            )


@contextlib.contextmanager
def master(
    host: Host, *options: str, job: Sequence[str] = JOB, token: str = TOKEN
) -> Iterator[Run]:
    """A pod with the master: one command, with any history."""
    run_dir = host.folder / "run"
    driver = Driver(host.folder, BRIM_TOKEN=token).with_prefix(host.prefix)
    command = ("master", *job, "--auto-resume", "--run-dir", str(run_dir), *options)
    with driver.start(
        *command, "--listen", f"0.0.0.0:{PORT}", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            yield Run(process, run_dir)
        finally:
            driver.end()


@contextlib.contextmanager
def worker(host: Host, *options: str, token: str = TOKEN) -> Iterator[subprocess.Popen[str]]:
    """A pod with one worker."""
    driver = Driver(host.folder, BRIM_TOKEN=token, BRIM_MACHINE=f"node-{host.number}")
    command = ("agent", f"{NAME}:{PORT}", "--workers", "1", "--patience", "60s", *options)
    with driver.with_prefix(host.prefix).start(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            driver.end()


# Slow enough for the births of pods, and for all attempts, on a busy machine.
PACED = (*JOB, "--workers", "2:4", "--set", "pause=0.5", "--set", "hurry=/run/hurry")


def hurry(hosts: Sequence[Host]) -> None:
    """End the pauses of a job, on each host by a file of its own."""
    for host in hosts:
        if host.is_up:
            (host.root / "run" / "hurry").touch()


def world(run: Run) -> int:
    rounds = run.events("round")
    return int(rounds[-1]["world_size"]) if rounds else 0


def has_stepped(run: Run, workers: int) -> bool:
    """Whether so many workers have made a step."""
    steps = run.steps()
    return world(run) == workers and bool(steps) and steps[-1]["round"] == len(run.events("round"))


def finish(run: Run) -> dict[str, Any]:
    _, explanation = run.process.communicate(timeout=DEADLINE)
    assert run.process.returncode == 0, explanation
    summary: dict[str, Any] = run.events("run_ended")[-1]["summary"]
    return summary


def check_waits(run: Run) -> None:
    """Check that a run without pods waits for others, behind a checkpoint of all that was done."""
    assert run.process.poll() is None, "it did not wait for another pod"
    assert run.events("checkpoint")[-1]["step"] == run.steps()[-1]["step"]


def test_pods_come_and_go_and_the_master_moves(hosts: tuple[Host, ...], calm: str) -> None:
    lead_to(hosts, hosts[0])
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(master(hosts[0], "--rejoin-timeout", "none", job=PACED))
        first = stack.enter_context(worker(hosts[1]))
        until(lambda: any("room" in e["message"] for e in run.events("warning")), "a wait", run)
        assert not run.events("round"), "it began with fewer than it was told"
        pods = [first, stack.enter_context(worker(hosts[2]))]
        until(lambda: has_stepped(run, 2), "a step of two", run)
        pods += [stack.enter_context(worker(host)) for host in hosts[1:]]
        until(lambda: has_stepped(run, 4), "a step of four", run)
        pods[1].send_signal(signal.SIGTERM)
        assert pods[1].wait(timeout=DEADLINE) == 0
        until(lambda: has_stepped(run, 3), "a step of three", run)
        assert all(event["redone"] == 0 for event in run.events("re_formed"))
        pods[2].kill()
        until(lambda: has_stepped(run, 2), "a step of two", run)
        hosts[0].kill()
        stood_at = run.steps()[-1]["step"]
        lead_to(hosts[1:], hosts[2])
        moved = stack.enter_context(master(hosts[2], job=PACED))
        moved.wait_for_step(stood_at + 3)
        pods.append(stack.enter_context(worker(hosts[1])))
        until(lambda: world(moved) == 3, "growth", moved)
        hurry(hosts)
        summary = finish(moved)
        assert [pod.wait(timeout=DEADLINE) for pod in (pods[0], pods[3], pods[4])] == [0, 0, 0]
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    assert moved.steps()[: stood_at - 1] == run.steps()[: stood_at - 1]
    check_ledger(hosts[2].folder / "run")


def test_a_run_waits_without_pods_and_goes_on(hosts: tuple[Host, ...], calm: str) -> None:
    """Workers that are asked to leave take their pods with them, and pods end their workers.

    A pod whose agent lived on would never be made again, and train nothing.
    """
    # As many as there are pods: none is started in the place of another.
    job = (*PACED, "--workers", "1:2", "--checkpoint-every", "1000")
    lead_to(hosts, hosts[0])
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(master(hosts[0], "--rejoin-timeout", "none", job=job))
        pods = [stack.enter_context(worker(hosts[1]))]
        until(lambda: has_stepped(run, 1), "a step", run)
        pods.append(stack.enter_context(worker(hosts[1])))
        until(lambda: has_stepped(run, 2), "a step of two", run)
        os.kill(hosts[1].outer_pid(run.pid("w1")), signal.SIGTERM)
        assert pods[0].wait(timeout=DEADLINE) == 0
        until(lambda: has_stepped(run, 1), "a step of one", run)
        os.kill(hosts[1].outer_pid(run.pid("w2")), signal.SIGTERM)
        assert pods[1].wait(timeout=DEADLINE) == 0
        check_waits(run)

        stood_at = run.steps()[-1]["step"]
        pods = [stack.enter_context(worker(host)) for host in hosts[1:]]
        until(lambda: has_stepped(run, 2), "a step of two", run)
        assert run.steps()[-1]["step"] > stood_at
        for pod in pods:
            pod.send_signal(signal.SIGTERM)
        assert [pod.wait(timeout=DEADLINE) for pod in pods] == [0, 0]
        check_waits(run)

        stood_at = run.steps()[-1]["step"]
        stack.enter_context(worker(hosts[1]))
        until(lambda: run.steps()[-1]["step"] > stood_at, "a step", run)
        hurry(hosts)
        summary = finish(run)
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    assert summary["steps_redone"] == 0
    check_ledger(hosts[0].folder / "run")


def test_pods_ending_together_write_a_checkpoint_first(
    hosts: tuple[Host, ...],
) -> None:
    """As where the job's object is deleted: without a master, workers could only wait for 25 s."""
    job = (*PACED, "--checkpoint-every", "1000")
    lead_to(hosts, hosts[0])
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(master(hosts[0], "--rejoin-timeout", "none", job=job))
        pods = [stack.enter_context(worker(host)) for host in hosts[1:]]
        until(lambda: has_stepped(run, 2), "a step of two", run)
        started = time.monotonic()
        for process in (run.process, *pods):
            process.send_signal(signal.SIGTERM)
        assert [pod.wait(timeout=DEADLINE) for pod in pods] == [0, 0], "they were not let go"
        assert time.monotonic() - started < 24.0
        assert run.process.wait(timeout=DEADLINE) == 0
        assert run.events("checkpoint")[-1]["step"] == run.steps()[-1]["step"]


def test_attempts_of_a_foreign_pod_achieve_nothing(hosts: tuple[Host, ...], calm: str) -> None:
    """On a network that lets it: where that enforces NetworkPolicies, it cannot even call."""
    own_authority, other_authority = (
        Authority.derived_from(workers_secret(secret)) for secret in (TOKEN, "another")
    )
    target = {
        "master": f"{hosts[0].address}:{PORT}",
        "identities": {
            "no certificate": {"authority": own_authority.certificate.decode()},
            "a certificate of another run": as_json(other_authority.issue(AGENT)),
            "a certificate that has expired": as_json(own_authority.issue(AGENT, for_s=-3600.0)),
        },
        "other_token": "of another run",
        "other_secret": "of another run",
    }
    lead_to(hosts, hosts[0])
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(master(hosts[0], "--rejoin-timeout", "none", job=PACED))
        for _ in range(2):
            stack.enter_context(worker(hosts[1]))
        until(lambda: has_stepped(run, 2), "a step of two", run)
        steps_before = len(run.steps())
        script = str(ROOT / "tests" / "e2e" / "attempts_of_hosts.py")
        attempts = subprocess.run(
            [*hosts[2].prefix, sys.executable, script],
            input=f"{json.dumps(target)}\n\n",
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert attempts.returncode == 0, attempts.stderr
        run.wait_for_step(steps_before + 5)
        assert world(run) == 2
        hurry(hosts)
        summary = finish(run)
    assert summary["weights_sha256"] == calm
    assert summary["steps_redone"] == 0
    columns = {"master": "port of the job's master"}
    rows_shown = table(json.loads(attempts.stdout), columns, "a pod of somebody else")
    check_page(Path(__file__).with_name("attempts_of_pods.md"), rows_shown)
