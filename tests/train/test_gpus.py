"""GPUs are counted without CUDA, and each worker of a host sees one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from brim.errors import SpecError
from brim.host import gpus as host_gpus
from brim.train.exchange.distributed import check_gpus
from brim.worker import gpus

# A host with GPUs, as far as torch asks: whatever reaches CUDA fails, as it would in a fork.
FAKE = """
import os, torch
def available(): return os.environ.get("CUDA_VISIBLE_DEVICES") != ""
def reached(*_): raise SystemExit("CUDA was asked")
torch.backends.cuda.is_built = lambda: True
torch.cuda.is_available = available
torch.cuda.is_current_stream_capturing = torch.accelerator.current_stream = reached
"""


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("from brim.worker import warm; warm.import_torch()", 0),
        ("p = torch.zeros(2); p.grad = p.clone(); torch.optim.Adam([p]).step()", 1),
    ],
)
def test_the_template_warms_up_without_cuda(action: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", FAKE + action], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("CUDA was asked" in done.stderr) == bool(status)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variable as it is where it was never set."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    return monkeypatch


@pytest.mark.parametrize(
    ("count", "visible", "place", "expected_gpu"),
    [
        (4, None, 2, "2"),
        (4, None, 6, "2"),
        (2, "3,5", 1, "5"),
        (1, "7", 1, "7"),
        (1, None, 1, None),
        (0, None, 1, None),
    ],
)
def test_a_worker_sees_its_own_gpu(
    seen: pytest.MonkeyPatch,
    count: int,
    visible: str | None,
    place: int,
    expected_gpu: str | None,
) -> None:
    seen.setattr(torch.cuda, "device_count", lambda: count)
    if visible is not None:
        seen.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen.setattr(host_gpus, "_take", lambda _: True)
    gpus.take_own_gpu(place)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected_gpu


@pytest.mark.parametrize(
    ("taken_gpu", "expected_gpu"), [("", "1"), ("1", "2"), ("12", "0"), ("012", "1")]
)
def test_gpus_of_other_jobs_are_skipped(
    seen: pytest.MonkeyPatch, taken_gpu: str, expected_gpu: str
) -> None:
    seen.setattr(torch.cuda, "device_count", lambda: 3)
    seen.setattr(host_gpus, "_take", lambda gpu: gpu not in taken_gpu)
    seen.setattr(host_gpus, "_TO_BE_FREED", 0.05)
    gpus.take_own_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == expected_gpu


def test_gpu_of_a_dead_worker_is_waited_for(seen: pytest.MonkeyPatch) -> None:
    """The kernel still clears its worker away."""
    answers = iter([False, False, False, True])
    seen.setattr(host_gpus, "_TO_BE_FREED", 60.0)
    seen.setattr(torch.cuda, "device_count", lambda: 2)
    seen.setattr(host_gpus, "_take", lambda _: next(answers))
    gpus.take_own_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_gpus_are_taken_until_process_end() -> None:
    holds = "from brim.host import gpus; print(gpus._take('of-a-test'), flush=True); input()"
    command = [sys.executable, "-c", holds]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == "True\n"
        assert not host_gpus._take("of-a-test")
        holder.kill()
    assert host_gpus._take("of-a-test")
    host_gpus._names_taken.pop().close()


def test_what_was_hidden_is_seen_again(seen: pytest.MonkeyPatch) -> None:
    seen.setenv("CUDA_VISIBLE_DEVICES", "1")
    with gpus.gpus_hidden():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("fault", [RuntimeError, AssertionError])
def test_failing_forks_on_gpus_are_found(
    monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    assert gpus.forks_can_use_gpus()  # also where there are none
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def spoiled(*_: object, **__: object) -> None:
        raise fault("CUDA error: initialization error")

    monkeypatch.setattr(torch, "ones", spoiled)
    assert not gpus.forks_can_use_gpus()


def test_nccl_is_refused_where_workers_share_a_gpu() -> None:
    check_gpus(["", "", ""])
    check_gpus(["GPU-1", "GPU-2"])
    with pytest.raises(SpecError, match="2 workers on one GPU"):
        check_gpus(["GPU-1", "GPU-2", "GPU-1"])


FOUR = """
import torch
torch.cuda.device_count, torch.cuda.is_available = lambda: 4, lambda: False
"""
SCRIPT = """
import os, sys, time
import four_gpus
from pathlib import Path
import torch, brim
model = torch.nn.Linear(2, 1)
job = brim.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for batch in job.batches([(torch.ones(2), torch.zeros(1))] * 640, global_batch_size=16, epochs=1):
    job.step((model(batch.inputs) - batch.target).square().mean())
    time.sleep(0.1)  # 4 s together, within which a worker is replaced
mine = Path(os.environ["SEEN"], sys.argv[1] + os.environ["BRIM_WORKER"])
mine.write_text(os.environ["CUDA_VISIBLE_DEVICES"])
while len(list(mine.parent.iterdir())) < 4:  # so that all are there at the same time
    time.sleep(0.01)
"""


@pytest.mark.e2e
def test_jobs_on_one_host_get_different_gpus(tmp_path: Path) -> None:
    installed, seen = tmp_path / "installed", tmp_path / "seen"
    installed.mkdir()
    seen.mkdir()
    (installed / "four_gpus.py").write_text(FOUR)
    (tmp_path / "loop.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(installed), "SEEN": str(seen)}
    options = ["--workers", "2", "--spares", "0", "--faults", "kill rank 1 at step 5"]
    script = ["--", sys.executable, "loop.py"]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "brim.cli", "run", "--run-dir", run, *options, *script, run],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for run in ("one", "two")
    ]
    with jobs[0], jobs[1]:
        try:
            for job in jobs:
                _, errors = job.communicate(timeout=300)
                assert job.returncode == 0, errors
        finally:
            for job in jobs:
                job.terminate()
    words = sorted(note.read_text() for note in seen.iterdir())
    assert words == ["0", "1", "2", "3"]
