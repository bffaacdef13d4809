"""The scripts for Slurm under its own daemons, on three nodes of this host.

They need Debian's packages slurmctld, slurmd, slurm-client and munge, and root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.client import Client
from brim_lab.driver import Driver
from e2e.running import DEADLINE, LONG_JOB, ROOT, free_port, lines, started, undisturbed, until

SCRIPTS = ROOT / "examples" / "08-slurm"
OURS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in OURS),
        reason="Slurm is not here, or this is not root: apt-get install slurmctld slurmd slurm-client munge",
    ),
]
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=25
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-3] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2
PartitionName=spot Nodes=n[1-3] Default=YES PriorityTier=1 GraceTime=25
PartitionName=urgent Nodes=n[1-3] PriorityTier=10
"""
BRIM = """#!/bin/sh
[ "$1" != "$FAILING_VERB" ] || exit 1
exec {python} -m brim "$@"
"""


class Slurm:
    """Slurm's daemons in a folder, in which its jobs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Below those that the kernel gives to anybody: a node of Slurm listens at one that is named.
        port = 16_000 + os.getpid() % 4000
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0], port=port, folder=folder, first=port + 1,
            last=port + 3,
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        (folder / "state").mkdir()
        (folder / "bin").mkdir()
        brim = folder / "bin" / "brim"
        brim.write_text(BRIM.format(python=sys.executable))
        brim.chmod(0o755)
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{brim.parent}:{os.environ['PATH']}",
        }
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = [
            f"--{name}={folder}/munge.{name.split('-')[0]}"
            for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
        ]
        self.daemons = [
            self.daemon("munged", "--foreground", "--force", *munge),
            self.daemon("slurmctld", "-D"),
            *(self.daemon("slurmd", "-D", "-N", node) for node in ("n1", "n2", "n3")),
        ]
        until(lambda: self.nodes("idle") == 3, "3 idle nodes")

    def daemon(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words, env=self.environment, cwd=self.folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self.environment, cwd=self.folder, capture_output=True, text=True,
            timeout=DEADLINE,
        )  # fmt: skip
        return done.stdout.strip()

    def nodes(self, state: str) -> int:
        return len(self.ask("sinfo", "-h", "-N", "-t", state, "-p", "spot").splitlines())

    def submit(self, script: str, *words: str, options: tuple[str, ...] = ()) -> str:
        return self.ask("sbatch", "--parsable", *options, str(SCRIPTS / script), *words)

    def preempt(self, *nodes: str) -> None:
        """Take nodes for a job with a better right, and give them back."""
        where = f"--nodelist={','.join(nodes)}"
        self.ask("srun", "-p", "urgent", "-N", str(len(nodes)), where, "--exclusive", "true")

    def begin(self, job: str) -> None:
        """Start a job again that was put back in line, without Slurm's pause of two minutes."""
        until(lambda: self.state(job) == "PENDING", "its place in line")
        until(lambda: self.nodes("idle") == 3, "the end of what its last start left")
        time.sleep(1.1)  # a node does not start a job in the second in which it has ended it
        until(lambda: self._is_begun(job), "its start")

    def _is_begun(self, job: str) -> bool:
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        return self.state(job) == "RUNNING"

    def state(self, job: str) -> str:
        return self.ask("squeue", "-h", "-j", job, "-o", "%T")

    def close(self) -> None:
        self.ask("scancel", "--user=root", "--signal=KILL")
        self.ask("scancel", "--user=root")
        until(lambda: not self.ask("squeue", "-h"), "the end of all jobs")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60.0)


def joined(client: Client) -> list[str]:
    """The nodes of other hosts that are up."""
    return sorted(n.node for n in client.nodes() if n.state == "up" and n.node != "home")


def ends(run: Path) -> list[dict[str, Any]]:
    return [
        event["summary"] for event in lines(run / "events.jsonl") if event["kind"] == "run_ended"
    ]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.close()


@pytest.fixture(scope="module")
def calm() -> str:
    return str(undisturbed(*LONG_JOB)["weights_sha256"])


def test_runs_go_on_in_later_allocations(slurm: Slurm, calm: str) -> None:
    run = slurm.folder / "runs" / "digits"
    pause = ("--set", f"hurry={slurm.folder / 'hurry'}", "--set", "pause=0.1")
    job = slurm.submit(
        "run.sbatch", *LONG_JOB, *pause, "--workers", "1:3", "--agents", "3",
        options=("--job-name=digits",),
    )  # fmt: skip
    steps = run / "steps.jsonl"
    until(lambda: len(lines(steps)) >= 4, "steps on three nodes")
    slurm.preempt("n2")
    first_pause = len(lines(steps))
    slurm.begin(job)
    until(lambda: len(lines(steps)) >= first_pause + 4, "steps of the second allocation")
    slurm.ask("scancel", "--signal=TERM", job)  # as --signal has it, before a time limit
    slurm.begin(job)
    second_pause = len(lines(steps))
    (slurm.folder / "hurry").touch()
    until(lambda: bool(ends(run)), "its end")
    events = lines(run / "events.jsonl")
    (summary,) = ends(run)
    assert (summary["exit"], summary["weights_sha256"]) == ("done", calm)
    printed = (slurm.folder / f"slurm-{job}.out").read_text()
    assert "the template process died" not in printed  # Slurm asks all processes to end
    assert sum(event["redone"] for event in events if event["kind"] == "re_formed") == 0
    restored = [event["step"] for event in events if event["kind"] == "restored"]
    assert restored == [first_pause, second_pause]


def test_runs_without_agents_are_not_repeated(slurm: Slurm) -> None:
    """Its agents end with an error, as where a node lacks a package."""
    options = ("--job-name=lacking", "--export=ALL,FAILING_VERB=agent")
    job = slurm.submit("run.sbatch", *LONG_JOB, options=options)
    until(lambda: "JobState=FAILED" in slurm.ask("scontrol", "show", "job", job), "its failure")
    assert "Restarts=0" in slurm.ask("scontrol", "show", "job", job)


def test_allocations_lend_workers_to_a_run(slurm: Slurm, calm: str) -> None:
    """One of them is cancelled, another preempted."""
    run_dir, port = slurm.folder / "lent", free_port()
    token = slurm.folder / "lent.token"
    words = ("--workers", "1:3", "--workers-here", "1", "--listen", f"127.0.0.1:{port}")
    with started(run_dir, "train", *LONG_JOB, "--set", "pause=0.1", *words) as run:
        run.wait_for_step(1)
        token.write_text(json.loads((run_dir / "master.json").read_text())["token"])
        job = slurm.submit("lend.sbatch", f"127.0.0.1:{port}", str(token), options=("--array=1-2",))
        until(lambda: len(run.members()) == 3, "workers of both", run)
        slurm.ask("scancel", f"{job}_1")
        until(lambda: len(run.members()) == 2, "the loss of one", run)
        slurm.preempt("n1", "n2", "n3")
        until(lambda: len(run.members()) == 1, "the loss of the other", run)
        run.hurry()
        summary = run.finish()
    assert summary["weights_sha256"] == calm
    assert summary["steps_redone"] == 0


def test_allocations_are_nodes_of_a_scheduler(slurm: Slurm, calm: str) -> None:
    state, port = slurm.folder / "state-of-brim", free_port()
    driver = Driver(slurm.folder, BRIM_HOME=str(state))
    cluster = slurm.folder / "cluster.yaml"
    cluster.write_text("nodes: [{name: home, workers: 0}]\n")
    driver.call("up", "--cluster", str(cluster), "--nodes", f"127.0.0.1:{port}", timeout=DEADLINE)
    try:
        token = state / "nodes.token"
        job = slurm.submit("node.sbatch", f"127.0.0.1:{port}", str(token))
        client = Client(state)
        until(lambda: joined(client) == ["n1", "n2"], "two nodes")
        words = ("submit", *LONG_JOB, "--set", "pause=0.05", "--workers", "2:4")
        name = json.loads(driver.call(*words, "--json", timeout=DEADLINE).stdout)["job"]
        until(lambda: client.job(name).workers == 4, "workers on both")
        slurm.ask("scancel", job)
        until(lambda: not joined(client), "the loss of both")
        slurm.submit("node.sbatch", f"127.0.0.1:{port}", str(token))
        assert client.wait(name, timeout=DEADLINE).summary["weights_sha256"] == calm
    finally:
        driver.call("down", "--kill", timeout=DEADLINE)
