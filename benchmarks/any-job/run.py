"""Jobs of every kind on one cluster of two tenants, resized, preempted and killed: see README.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.report import Report, table
from brim.client import Client
from brim.domain.job import WorkerRange
from brim.storage.contact import read_scheduler_contact
from brim.wire.cluster import JobView
from brim_lab.driver import Driver
from brim_lab.environments import python_with

BENCHMARK = Path(__file__).parent
EXAMPLES = BENCHMARK.parents[1] / "examples"
PYTHON = sys.executable
CLUSTER = """
nodes: [{name: here, workers: 6}]
grace: 40s
tenants:
  - {name: ads, guaranteed: 1, limit: 6}
  - {name: web, guaranteed: 5, limit: 5}
"""
AT_ONCE = 3  # jobs, of two workers at most: all six slots
TO_END = 900.0  # seconds for so many jobs
INTERVAL = 5.0  # seconds between disturbances
TO_HAVE = 6  # seconds for which the other tenant has its slots
MOST_CLAIMS = 3  # for each three jobs
DEADLINE = "40m"
PATTERN = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>[\d.]+)"
GRACE = ("--grace", "30s")
SCIKIT = "scikit-learn==1.9.1"


@dataclass(slots=True, kw_only=True)
class Kind:
    """A kind of job.

    Args:
        name: in the report.
        level: `exact` or `restart`.
        folder: of the example.
        command: that is run; `{out}` is a folder of its own.
        options: of `brim submit`, beside those of all.
        result: the file that it writes, alike in any life; empty: none is compared.
        packages: of an environment of its own; none: it runs in this one.
    """

    name: str
    level: str
    folder: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    result: str = ""
    packages: tuple[str, ...] = ()


KINDS = (
    Kind(name="transformers' Trainer with LoRA", level="exact", folder="09-fine-tune",
         command=("python", "adapt.py", "{out}", "80"), result="adapter_model.safetensors"),
    Kind(name="Keras, fit", level="exact", folder="07-keras", command=("python", "digits.py", "80")),
    Kind(name="XGBoost", level="restart", folder="10-xgboost",
         command=("python", "flights.py", "5000", "{out}/flights.json", "0.005"), result="flights.json"),
    Kind(name="transformers' Trainer as it is", level="restart", folder="06-any-command",
         command=("python", "trainer.py", "10", "0.1")),
    Kind(name="a loop of accelerate", level="restart", folder="06-any-command",
         command=("python", "digits_accelerate.py", "10", "0.1"), options=("--progress", PATTERN)),
    Kind(name="torch's FSDP", level="restart", folder="06-any-command",
         command=("python", "digits_fsdp.py", "10", "0.1"), options=("--progress", PATTERN)),
    Kind(name="Lightning", level="restart", folder="06-any-command",
         command=("python", "digits_lightning.py", "10", "0.1"), options=("--progress", PATTERN)),
    Kind(name="TRL's SFT with LoRA", level="restart", folder="09-fine-tune",
         command=("python", "sft.py", "{out}", "80"),
         packages=("trl==1.16.0", "peft==0.21.2", "transformers==5.23.0", "accelerate==1.15.0",
                   "torch==2.13.0", "numpy==2.4.6")),
    Kind(name="TensorFlow", level="restart", folder="06-any-command",
         command=("python", "digits_tensorflow.py"), options=("--progress", PATTERN),
         packages=("tensorflow-cpu==2.21.0", SCIKIT)),
    Kind(name="JAX", level="restart", folder="06-any-command",
         command=("python", "digits_jax.py", "30"), options=("--progress", PATTERN),
         packages=("jax==0.10.2", "jaxlib==0.10.2", "optax==0.2.8", SCIKIT)),
    Kind(name="a shell command", level="restart", folder="06-any-command",
         command=("sh", "-c", "for i in $(seq 60); do echo step $i/60 loss 1; sleep 1; done"),
         options=("--progress", PATTERN, "--workers", "1")),
)  # fmt: skip


@dataclass(slots=True)
class Life:
    """What happened to one job.

    Args:
        step: that it had reached when it was disturbed last.
        sizes: its numbers of workers, one after the other.
        happenings: how often it was `killed`, made smaller (`shrunk`), made larger again (`grown`), and had
            to give workers to the other tenant (`preempted`).
    """

    job: str
    step: int = 0
    sizes: list[int] = field(default_factory=list)
    happenings: Counter[str] = field(default_factory=Counter)


def next_act(happenings: Counter[str], *, resizable: bool) -> str:
    """The next thing that has not happened to a job yet; empty: all have.

    >>> next_act(Counter(), resizable=True), next_act(Counter(killed=1), resizable=True)
    ('killed', 'shrunk')
    >>> next_act(Counter(killed=1), resizable=False)
    ''
    """
    acts = ("killed", "shrunk", "grown") if resizable else ("killed",)
    return next((act for act in acts if not happenings[act]), "")


class Scene:
    """The cluster with all jobs on it."""

    def __init__(self, folder: Path, report: Report, pythons: dict[str, str]) -> None:
        self.folder, self.report, self.pythons = folder, report, pythons
        self.state = folder / "state"
        (folder / "cluster.yaml").write_text(CLUSTER)
        self.driver = Driver(folder, BRIM_HOME=str(self.state))
        self.driver.call("up", "--cluster", str(folder / "cluster.yaml"), "--env", "PYTHONPATH")
        self.client = Client(self.state)
        self.lives: dict[str, Life] = {}
        self.owners: list[str] = []
        # Workers by kind, when the other tenant asked for its slots; and how often it did, since jobs
        # were submitted last.
        self.before: dict[str, int] = {}
        self.claims = 0

    def submit(self, kind: Kind) -> None:
        place = self.folder / kind.name.replace(" ", "-").replace("'", "")
        shutil.copytree(self.folder / kind.folder, place)
        command = [word.format(out=place / "out") for word in kind.command]
        (place / "out").mkdir()
        if command[0] == "python":
            command[0] = self.pythons.get(kind.name, PYTHON)
        options = ("--tenant", "ads", "--workers", "1:2", "--deadline", DEADLINE, *kind.options)
        job = self.ask(place, *GRACE, *options, "--", *command, level=kind.level)
        self.lives[kind.name] = Life(job)

    def ask(self, place: Path, *words: str, level: str = "restart") -> str:
        driver = Driver(place, BRIM_HOME=str(self.state))
        answer = driver.call("submit", "--json", *words, timeout=120.0, codes=(0, 3))
        assert f"level: {level}" in answer.stderr, answer.stderr
        return str(json.loads(answer.stdout)["job"])

    def submit_chain(self) -> None:
        """An array behind a preparation, and a job behind them all."""
        place = self.folder / "chain"
        place.mkdir()
        common = (*GRACE, "--tenant", "web")
        first = self.ask(place, *common, "--name", "prepare", "--", "sleep", "5")
        behind = ("--after", f"{first}:ok", "--array", "1-4%1")
        array = self.ask(
            place, *common, *behind, "--name", "fold", "--", "sh", "-c", "sleep 2; exit 0"
        )
        last = self.ask(place, *common, "--after", f"{array}:ok", "--name", "pick", "--", "true")
        self.chain = [first, array, last]

    def views(self) -> dict[str, JobView]:
        return {view.job: view for view in self.client.jobs()}

    def look(self) -> dict[str, JobView]:
        views = self.views()
        for name, life in self.lives.items():
            view = views[life.job]
            if view.workers and (not life.sizes or life.sizes[-1] != view.workers):
                life.sizes.append(view.workers)
            if view.workers < self.before.get(name, 0) and not view.has_ended:
                life.happenings["preempted"] += 1
                del self.before[name]
        if self.owners and views[self.owners[-1]].has_ended:
            self.before.clear()
        return views

    def disturb(self, rng: random.Random) -> None:
        views = self.look()
        running = {
            name: life for name, life in self.lives.items() if views[life.job].state == "running"
        }
        # Starts are left alone: a job is hit again once it has made a step more, and first once its
        # deadline was judged.
        ready = {
            name: life
            for name, life in running.items()
            if views[life.job].judged and views[life.job].step > life.step
        }
        if not ready or self.before:
            return
        spared = not all(life.happenings["preempted"] for life in ready.values())
        if spared and len(ready) == len(running) and self.claims < MOST_CLAIMS:
            self.claims += 1
            self.before = {name: views[life.job].workers for name, life in running.items()}
            for life in running.values():
                life.step = views[life.job].step
            words = ("--tenant", "web", "--workers", "5", "--name", "owner")
            self.owners.append(self.ask(self.folder / "chain", *words, "--", "sleep", str(TO_HAVE)))
            self.report.say(f"web takes five slots back for {TO_HAVE} seconds")
            return
        acts = {
            name: next_act(life.happenings, resizable=name != "a shell command")
            for name, life in ready.items()
        }
        left = [name for name, act in acts.items() if act]
        if not left:
            return
        name = min(left, key=lambda name: (ready[name].happenings.total(), rng.random()))
        life, act = ready[name], acts[name]
        view, life.step = views[life.job], views[life.job].step
        if act == "killed":
            pids = processes_of(view.run)
            if not pids:
                return
            os.kill(rng.choice(pids), signal.SIGKILL)
        else:
            most = 1 if act == "shrunk" else 2
            self.client.resize(life.job, WorkerRange(minimum=1, maximum=most))
        life.happenings[act] += 1
        self.report.say(f"{life.job}: {act}")

    def close(self) -> None:
        if read_scheduler_contact(self.state) is not None:
            self.driver.call("down", "--kill", timeout=120.0)


def processes_of(run: str) -> list[int]:
    """The processes that compute for a job: those of its command, else its workers."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except psutil.Error:
            continue
        if variables.get("BRIM_RUN_DIR") == run and "BRIM_WORKER" in variables:
            found.append(process.pid)
    return found or workers_of(Path(run))


def workers_of(run: Path) -> list[int]:
    """The workers of a job, which are forked, and have the environment of another process."""
    last = {}
    for record in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        if record["kind"] == "worker" and record["pid"]:
            last[record["worker"]] = record
    living = [record["pid"] for record in last.values() if record["state"] not in ("lost", "left")]
    return [pid for pid in living if psutil.pid_exists(pid)]


def run_alone(kind: Kind, folder: Path) -> str:
    """The digest of what the same command writes by itself, in one process."""
    place = folder / f"alone-{kind.folder}"
    shutil.copytree(folder / kind.folder, place)
    command = [word.format(out=place / "out") for word in kind.command]
    (place / "out").mkdir()
    perform([PYTHON, *command[1:]], place)
    return digest(place / "out" / kind.result)


def perform(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TO_END)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    report = Report(BENCHMARK, "Jobs of every kind on one cluster", seed=seed)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as name:
        folder = Path(name)
        for example in {kind.folder for kind in KINDS}:
            shutil.copytree(EXAMPLES / example, folder / example)
        perform([PYTHON, "base.py"], folder / "09-fine-tune")  # the model that LoRA adapts
        pythons = {
            kind.name: python_with(kind.packages, folder / f"environment-{place}")
            for place, kind in enumerate(KINDS)
            if kind.packages
        }
        expected = {kind.name: run_alone(kind, folder) for kind in KINDS if kind.result}
        scene = Scene(folder, report, pythons)
        try:
            scene.submit_chain()
            for first in range(0, len(KINDS), AT_ONCE):
                for kind in KINDS[first : first + AT_ONCE]:
                    scene.submit(kind)
                scene.claims = 0
                run(scene, rng)
            report_on(scene, expected, report)
        finally:
            scene.close()


def run(scene: Scene, rng: random.Random) -> None:
    """Disturb the jobs every few seconds until all have ended."""
    start_time, moment = time.monotonic(), 0
    while time.monotonic() < start_time + TO_END:
        views = scene.look()
        watched = [life.job for life in scene.lives.values()] + scene.chain + scene.owners
        if all(views[job].has_ended for job in watched):
            return
        if time.monotonic() > start_time + INTERVAL * (moment + 1):
            scene.disturb(rng)
            moment += 1
        time.sleep(0.2)
    raise RuntimeError(f"not all jobs ended within {TO_END:.0f} s")


def report_on(scene: Scene, expected: dict[str, str], report: Report) -> None:
    views, rows = scene.views(), []
    for kind in KINDS:
        life = scene.lives[kind.name]
        view = views[life.job]
        assert view.ended is not None
        story = Counter(change.event for change in scene.client.explain(life.job))
        events = Path(view.run) / "events.jsonl"
        records = [json.loads(line) for line in events.read_text().splitlines()]
        starts = sum(record["kind"] == "round" for record in records)
        costs = starts_of(records) if kind.level == "restart" else []
        place = scene.folder / kind.name.replace(" ", "-").replace("'", "")
        same = ""
        if kind.result:
            same = "yes" if digest(place / "out" / kind.result) == expected[kind.name] else "NO"
        promised = story["promised"] > 0
        kept = view.deadline is not None and view.ended <= view.deadline and view.state == "done"
        promise = ("kept" if kept else "BROKEN") if promised else "none given"
        rows.append([
            kind.name, kind.level, view.state, " → ".join(map(str, life.sizes)), str(starts),
            str(life.happenings["killed"]),
            str(life.happenings["shrunk"] + life.happenings["grown"]),
            f"{life.happenings['preempted']} ({story['suspended']})", seconds_of(costs),
            f"{view.ended - view.submitted:.0f} s", promise, same,
        ])  # fmt: skip
    head = ["job", "level", "end", "workers over time", "rounds or starts", "kills", "resizes", "gave way (paused)",
            "a start costs", "from its submission to its end", f"promise of {DEADLINE}", "file as alone"]  # fmt: skip
    report.add(table(head, rows))
    chain = ", ".join(f"{job} {views[job].state}" for job in scene.chain)
    owners = [views[job] for job in scene.owners]
    waits = [view_wait(view, scene) for view in owners]
    text = (
        f"Beside them, of the tenant web: {chain}; the array's four jobs one after the other. "
        f"{len(owners)} times it took five devices back: they were there after "
        f"{min(waits):.1f} to {max(waits):.1f} s."
    )
    report.add(text)
    packages = ("transformers", "peft", "accelerate", "keras", "lightning", "xgboost-cpu")
    named = [f"{package} {version(package)}" for package in packages]
    named += sorted({package.replace("==", " ") for kind in KINDS for package in kind.packages})
    report.add(", ".join(dict.fromkeys(named)) + ".")
    figures: dict[str, Any] = {"rows": rows, "waits": waits, "chain": chain}
    report.write(figures)


def starts_of(records: list[dict[str, Any]]) -> list[float]:
    """Seconds from each change that starts a command again to the first report of a step behind it.

    The first start is left out, and so are those that another change cut short.
    """
    costs, change_time, is_first, newest = [], None, True, 0
    for record in records:
        if record["kind"] == "run_ended":
            change_time = None
        elif record["kind"] == "round":
            newest, change_time = record["round"], change_time or record["at"]
        elif record["kind"] == "progress" and record["step"] and record["round"] == newest:
            if change_time is not None and not is_first:
                costs.append(record["at"] - change_time)
            change_time, is_first = None, False
    return costs


def seconds_of(costs: list[float]) -> str:
    if not costs:
        return ""
    return (
        f"{statistics.median(costs):.0f} s (of {len(costs)}, {min(costs):.0f} to {max(costs):.0f})"
    )


def view_wait(view: JobView, scene: Scene) -> float:
    """Seconds from a submission to its first processes."""
    story = scene.client.explain(view.job)
    return next(c.at for c in story if c.event == "running") - view.submitted


if __name__ == "__main__":
    main()
