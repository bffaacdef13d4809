"""brim from Python: runs, jobs and notebooks, with real processes and a real kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import brim
from brim.errors import SpecError, UserCodeError
from brim_lab.driver import Driver
from e2e.running import DEADLINE, DIGITS, FILES, leftovers, lines, until
from tiers import long_after

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not leftovers(tmp_path)


@pytest.mark.long
def test_a_trained_run_offers_metrics_logs_and_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = brim.train(
        DIGITS, workers="1:2", epochs=2, global_batch_size=256, set={"pause": 0, "scheduler": 1}
    )
    assert run.status == "done"
    assert [step["lr"] for step in run.steps] == [
        0.05 if step["epoch"] == 1 else 0.025 for step in run.steps
    ]
    assert set(run.metrics) == {"accuracy"}
    assert [step["step"] for step in run.steps] == list(range(1, run.summary["steps"] + 1))
    assert {"epoch", "loss", "samples", "workers", "compute"} <= run.steps[-1].keys()
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2]
    assert run.epochs[-1]["accuracy"] == run.metrics["accuracy"]
    assert isinstance(run.logs(), str)
    assert "epoch 2 done" in capsys.readouterr().err
    assert run.report().is_file()
    assert "<svg" in run._repr_svg_()
    assert brim.Run("latest").path == run.path
    assert repr(run).startswith(f"<brim.Run {run.path}: done, step ")
    chance, variables = torch.random.get_rng_state(), dict(os.environ)
    model = run.model()
    assert brim.weights_sha256(model) == run.summary["weights_sha256"]
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), chance)
    assert dict(os.environ) == variables


@pytest.mark.long
def test_a_logger_receives_and_continues_a_run(tmp_path: Path) -> None:
    lines_of = f"{FILES / 'loggers.py'}:Lines"
    run = brim.train(DIGITS, workers=1, global_batch_size=256, logger=lines_of)
    entries = [
        values for _, values in map(json.loads, (run.path / "lines.jsonl").read_text().splitlines())
    ]
    assert [values["train/loss"] for values in entries if "train/loss" in values] == [
        s["loss"] for s in run.steps
    ]
    assert [values["train/lr"] for values in entries if "train/lr" in values] == [0.05] * len(
        run.steps
    )
    assert (run.path / "lines.end").read_text() == "done"
    own_run = brim.run([sys.executable, str(FILES / "own_loop.py")], logger=[lines_of, lines_of])
    assert len((own_run.path / "lines.jsonl").read_text().splitlines()) >= own_run.summary["steps"]


def test_user_errors_are_raised_with_their_traceback() -> None:
    with pytest.raises(UserCodeError) as raised:
        # The mistake is the spare's, which comes while the first worker trains.
        brim.train(
            str(FILES / "mistakes.py"), global_batch_size=128, epochs=500, set={"where": "loss"}
        )
    assert "ZeroDivisionError" in raised.value.trace
    assert brim.Run("latest").status == "failed"


def test_late_errors_are_raised_in_four_parts(
    tmp_path: Path,
) -> None:
    job = tmp_path / "job.py"
    job.write_text(Path(DIGITS).read_text() + "\ndef model():\n    return 3\n")
    with pytest.raises(SpecError) as raised:
        brim.train(job)
    assert raised.value.field == "model()"
    assert "torch.nn.Module" in raised.value.need
    assert list(Path("runs").iterdir()) == []


@pytest.mark.long
def test_own_loops_show_what_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run = brim.run([sys.executable, str(FILES / "own_loop.py")], workers=2)
    assert run.status == "done"
    output = capsys.readouterr().err
    assert output.count(f"weights {run.summary['weights_sha256']}") == 1


SCRIPT = """
import signal
import brim
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell starts with & ignore it
try:
    brim.train({file!r}, epochs=200, global_batch_size=128, set={{"pause": 0.01}})
except KeyboardInterrupt as stopped:
    print(stopped)
"""


def test_an_interrupt_checkpoints_and_allows_resuming(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(file=DIGITS)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        until(lambda: bool(lines(tmp_path / "runs" / "latest" / "steps.jsonl")), "a step")
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=DEADLINE)[0]
    finally:
        process.kill()
    run = brim.Run()
    assert run.status == "suspended"
    assert f"brim.Run({str(run.path)!r}).resume() goes on" in output
    assert (
        run.summary["checkpoint"]
        if "checkpoint" in run.summary
        else list((run.path / "checkpoints").iterdir())
    )


def test_a_scheduler_takes_jobs_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_HOME", str(tmp_path / "state"))
    driver = Driver(BRIM_HOME=str(tmp_path / "state"))
    driver.call("up")
    try:
        run = brim.submit(DIGITS, workers="1:2", epochs=2, deadline="2h")
        assert run.job.deadline > time.time()
        run.wait(timeout=DEADLINE)
        assert run.status == "done"
        assert "accuracy" in run.metrics
        assert run.path == tmp_path / "state" / "jobs" / run.job.job
        assert brim.Run(run.job.job).steps == run.steps
        assert brim.weights_sha256(run.model()) == run.summary["weights_sha256"]
    finally:
        driver.call("down", "--kill")
        until(lambda: not leftovers(tmp_path), "the end of all")


class Kernel:
    """A Jupyter kernel, and its displays."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        # Sockets of a folder: it would choose ports long before the kernel listens there.
        self.sockets = tempfile.TemporaryDirectory()  # of a path that is short enough for them
        self.manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=f"{self.sockets.name}/kernel"
        )
        self.manager.start_kernel(
            cwd=str(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)

    def begin(self, code: str) -> None:
        self.cell: str = self.client.execute(code)

    def outputs(self) -> list[dict[str, Any]]:
        """The messages of the cell that runs, to its end."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=DEADLINE)
            if message["parent_header"].get("msg_id") != self.cell:
                continue  # of a question before it
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
            found.append({"type": message["msg_type"], **message["content"]})

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.sockets.cleanup()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()


@pytest.mark.filterwarnings("default")  # the client of the kernel has its own
def test_a_notebook_shows_progress_and_a_picture(kernel: Kernel) -> None:
    kernel.begin(f"import brim\nbrim.train({DIGITS!r}, epochs=2, global_batch_size=256)")
    outputs = kernel.outputs()
    assert not [output for output in outputs if output["type"] == "error"]
    progress = [
        output["data"]["text/html"] for output in outputs if output["type"] == "update_display_data"
    ]
    assert "digits.py" in progress[-1]
    assert "epoch" in progress[-1]
    result = next(output for output in outputs if output["type"] == "execute_result")
    assert "<svg" in result["data"]["text/html"]
    assert ": done, step " in result["data"]["text/plain"]


@pytest.mark.filterwarnings("default")
def test_a_notebooks_stop_button_suspends_the_run(kernel: Kernel, tmp_path: Path) -> None:
    kernel.begin(
        f"import brim\nbrim.train({DIGITS!r}, epochs=200, set={{'pause': 0.01}}, "
        "global_batch_size=128)"
    )
    until(lambda: bool(lines(tmp_path / "runs" / "latest" / "steps.jsonl")), "a step")
    kernel.manager.interrupt_kernel()
    errors = [output["ename"] for output in kernel.outputs() if output["type"] == "error"]
    assert errors == ["KeyboardInterrupt"]
    kernel.begin("print(brim.Run('latest').status)")
    printed = [output["text"] for output in kernel.outputs() if output["type"] == "stream"]
    assert "".join(printed) == "suspended\n"


TELLS = """
import os
import torch
import brim

print("at import", os.environ["FLAVOUR"], os.environ["PASSED"])
model = torch.nn.Linear(2, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in job.batches([(torch.zeros(2), torch.zeros(1))] * 64, global_batch_size=16, epochs=1):
    job.step((model(batch.inputs) - batch.target).square().mean())
"""


@pytest.mark.parametrize("start", long_after(1, ["fork", "spawn"]))
@pytest.mark.parametrize(
    ("silence", "times"), long_after(2, [((), 1), (("--json",), 0), (("--no-prints",), 0)])
)
def test_scripts_get_variables_and_their_prints_are_shown(
    start: str, silence: tuple[str, ...], times: int, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(TELLS)
    command = [
        sys.executable,
        "-m",
        "brim.cli",
        "run",
        "--workers",
        "2",
        "--start-method",
        start,
        *silence,
    ]
    command += ["--env", "FLAVOUR=sour", "--env", "PASSED", "--", sys.executable, "loop.py"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "PASSED": "on"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("at import sour on") == times
    assert "at import" not in done.stdout
    assert "at import sour on" in brim.Run().logs()
    assert (brim.Run().path / "report.html").exists() is ("--json" not in silence)
