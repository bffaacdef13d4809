"""A job runs the submitted code, after any change of its files, beside others and on other hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brim_lab.chaos.hosts import Host, can_make_hosts, hosts_in
from brim_lab.driver import Driver
from e2e.running import DEADLINE, joining, leftovers, started, train, undisturbed, until
from e2e.test_scheduler import Home
from tiers import long_after

pytestmark = pytest.mark.e2e

FILE = """
import time
from typing import Any

import torch
from torch import Tensor, nn

import brim
from layers import RATE, width

PAUSE = brim.param("pause", 0.0)
HURRY = brim.param("hurry", "")
DATA = brim.param("data", "")


def model() -> nn.Module:
    return nn.Linear(4, width())


def dataset(split: str) -> Any:
    if DATA:
        with open(DATA) as file:
            file.read()
    inputs = torch.randn(512, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def loss(output: Tensor, target: Tensor) -> Tensor:
    from pathlib import Path

    if PAUSE and not Path(HURRY).exists():
        time.sleep(PAUSE)
    return ((output - target) ** 2).mean()


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    from late import METHOD  # nobody has imported it before the first worker begins

    return getattr(torch.optim, METHOD)(model.parameters(), lr=RATE)


def metrics() -> dict[str, Any]:
    return {"accuracy": brim.metrics.accuracy()}
"""
JOB = ("--epochs", "3", "--global-batch-size", "64")
LONG = ("--epochs", "60", "--global-batch-size", "64")


def write(folder: Path, *, rate: float) -> str:
    """A training file with modules of its own; where it is."""
    folder.mkdir()
    (folder / "job.py").write_text(FILE)
    (folder / "layers.py").write_text(f"RATE = {rate}\n\n\ndef width() -> int:\n    return 1\n")
    (folder / "late.py").write_text('METHOD = "SGD"\n')
    return str(folder / "job.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.brim("up", "--cluster", str(home.file))
    yield home
    home.brim("down", "--kill")
    until(lambda: not leftovers(home.state), f"the end of {leftovers(home.state)}")


def test_a_submitted_job_needs_no_local_files(home: Home, tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "slow", rate=0.1), write(tmp_path / "fast", rate=0.2)
    calm = {
        file: train(tmp_path / f"calm-{k}", file, *JOB, "--workers", "1")["weights_sha256"]
        for k, file in enumerate((slow, fast))
    }
    assert calm[slow] != calm[fast]
    hurry = ("--set", "pause=0.3", "--set", f"hurry={tmp_path / 'hurry'}")
    # Two jobs with modules of the same names, at once, from a folder that has others of them.
    (tmp_path / "layers.py").write_text("raise RuntimeError('modules of the working directory')\n")
    words = (*JOB, "--tenant", "ads", "--workers", "1:2", *hurry)
    jobs = {file: home.brim("submit", file, *words).strip() for file in (slow, fast)}
    (tmp_path / "slow" / "layers.py").write_text("RATE = 5.0\n")  # no width
    shutil.rmtree(tmp_path / "fast")
    home.wait_for_step(jobs[slow], 1)
    home.brim("suspend", jobs[slow])
    until(lambda: home.job(jobs[slow]).state == "suspended", "the pause")
    home.brim("resume", jobs[slow])
    home.wait_for_step(jobs[fast], 1)
    (tmp_path / "hurry").touch()
    for file, job in jobs.items():
        summary = home.finished(job)
        assert (summary["exit"], summary["weights_sha256"]) == ("done", calm[file])
    # So does what uses the model.
    found = json.loads(home.brim("evaluate", jobs[fast], "--split", "train", "--json"))
    assert found["exit"] == "done"
    home.brim("evaluate", jobs[slow], "--split", "train")
    assert "has changed" not in home.err
    home.brim("export", jobs[fast], "--output", str(tmp_path / "model"))


LOOP = """
import sys
import torch
import brim
from .layers import RATE

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
for batch in job.batches([(torch.ones(1), torch.zeros(1))] * 64, global_batch_size=16, epochs=1):
    job.step((model(batch.inputs) - batch.target).square().mean())
print("ended as", __name__, sys.argv[1:])
"""
COMMAND = "import sys\nfrom .layers import RATE\nprint('ended as', __name__, sys.argv[1:])\n"


def test_a_submitted_module_needs_no_local_files(home: Home, tmp_path: Path) -> None:
    for name, code, options in (("loop", LOOP, ()), ("once", COMMAND, ("--grace", "5s"))):
        package = tmp_path / "flights"
        package.mkdir()
        (package / "layers.py").write_text("RATE = 0.1\n")
        (package / f"{name}.py").write_text(code)
        words = ("--tenant", "ads", *options, "--", sys.executable, "-u", "-m")
        job = home.brim("submit", *words, f"flights.{name}", "3").strip()
        shutil.rmtree(package)
        assert home.finished(job)["exit"] == "done"
        assert "ended as __main__ ['3']" in home.brim("logs", job)


@pytest.mark.long
def test_a_run_that_names_no_folder_is_evaluated(tmp_path: Path) -> None:
    """One that was begun by an object names none: its code came as a bundle."""
    run = tmp_path / "run"
    train(run, write(tmp_path / "job", rate=0.1), "--epochs", "1", "--workers", "1")
    job_file = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(job_file | {"directory": ""}))
    done = Driver(tmp_path).call("evaluate", str(run), "--split", "train", "--json")
    assert json.loads(done.stdout)["exit"] == "done"


def test_errors_name_lines_and_dry_runs_unsent_files(home: Home, tmp_path: Path) -> None:
    file = write(tmp_path / "job", rate=0.1)
    (tmp_path / "job" / "data").mkdir()
    (tmp_path / "job" / "data" / "x.csv").write_bytes(bytes(2048))
    with (tmp_path / "job" / "layers.py").open("a") as layers:
        layers.write('\n\nPATH = "data/x.csv"\n')
        layers.write("raise RuntimeError('no such layer')\n")
    job = home.brim("submit", file, *JOB, "--tenant", "ads").strip()
    data = tmp_path / "job" / "data" / "x.csv"
    assert f"brim: not sent with the code: {data} (2 KiB): put a copy at the same path" in home.err
    Path(file).unlink()
    home.brim("status", job, "--wait", code=1)
    story = home.brim("explain", job)
    assert "RuntimeError: no such layer" in story
    logs = home.brim("logs", job) + home.err + (home.run_dir(job) / "events.jsonl").read_text()
    assert "layers.py" in logs
    assert "line 9" in logs


needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root, ip and /dev/net/tun")
LISTEN = ("--listen", "10.77.0.1:7077")


def joined(run_dir: Path, host: Host, *, path: str = "") -> subprocess.Popen[str]:
    return joining(
        run_dir,
        address="10.77.0.1:7077",
        prefix=host.prefix,
        folder=host.folder,
        stderr=subprocess.PIPE,
        PYTHONPATH=path,
    )


@pytest.mark.long
@pytest.mark.netns
@needs_hosts
def test_joining_hosts_need_no_copy_of_code(tmp_path: Path) -> None:
    calm = undisturbed(write(tmp_path / "calm-job", rate=0.1), *JOB)
    with hosts_in(tmp_path, 2) as (first, second):
        file, run_dir = write(first.folder / "job", rate=0.1), first.folder / "run"
        assert not (second.root / file.removeprefix("/")).exists()
        options = (*JOB, "--workers", "2", "--agents", "2", *LISTEN)
        with started(run_dir, "train", file, *options, prefix=first.prefix) as run:
            agent = joined(run_dir, second)
            summary = run.finish()
            _, words = agent.communicate(timeout=DEADLINE)
            assert agent.returncode == 0, words
    assert summary["weights_sha256"] == calm["weights_sha256"]
    assert len({event["agent"] for event in run.events("worker") if event["agent"]}) == 2


def torch_of_another_version(folder: Path) -> str:
    """A folder with a torch that says that it is 2.12.9, and is this one otherwise."""
    import torch

    (folder / "torch").mkdir(parents=True)
    torch_folder = Path(torch.__file__).parent
    for path in torch_folder.iterdir():
        (folder / "torch" / path.name).symlink_to(path)
    version = folder / "torch" / "version.py"
    version.unlink()
    version_text = (torch_folder / "version.py").read_text()
    version.write_text(version_text.replace(torch.__version__, "2.12.9"))
    return str(folder)


@pytest.mark.netns
@needs_hosts
@pytest.mark.parametrize("exact", long_after(1, [True, False]))
def test_unsuitable_hosts_are_told_what_to_do(exact: bool, tmp_path: Path) -> None:
    with hosts_in(tmp_path, 3) as (first, bare, guest_host):
        data, run_dir = first.folder / "data.csv", first.folder / "run"
        data.touch()
        file = write(first.folder / "job", rate=0.1)
        hurry = first.folder / "hurry"
        options = ("--set", f"data={data}", "--set", "pause=0.1", "--set", f"hurry={hurry}")
        options += (*LONG, "--workers", "2", *LISTEN, *(() if exact else ("--no-exact",)))
        site = torch_of_another_version(guest_host.folder / "site")
        with started(run_dir, "train", file, *options, prefix=first.prefix) as run:
            run.wait_for_step(1)
            late = joined(run_dir, bare)
            _, words = late.communicate(timeout=DEADLINE)
            assert late.returncode == 1
            message = f"on host host-2, {data} is missing: put it there, or name it by a URL"
            assert message in words
            unlike = joined(run_dir, guest_host, path=site)
            if exact:
                _, words = unlike.communicate(timeout=DEADLINE)
                assert unlike.returncode == 1
                assert "host-3 is not like host-1: torch 2.12.9 (build" in words

            def warned(text: str) -> bool:
                return any(text in event["message"] for event in run.events("warning"))

            until(lambda: warned("host-3 is not like host-1: torch 2.12.9"), "the warning", run)
            if not exact:  # it is let in, and left out for what it lacks as well
                lacks_data = message.replace("host-2", "host-3")
                until(lambda: warned(lacks_data), "the end of its part", run)
            hurry.touch()
            summary = run.finish()
            unlike.kill()
            unlike.communicate()
    assert summary["exit"] == "done"
    assert warned(message)
    messages = [event["message"] for event in run.events("warning")]
    left_out = [
        message.split()[0] for message in messages if "cannot take part, and is left" in message
    ]
    assert left_out == ["host-2", "host-3"]
    assert warned("the result depends on which of them computes") is not exact
    assert warned("have the same on both, or train with --no-exact") is exact
