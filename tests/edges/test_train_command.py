"""`brim train` from its first check to its last line, with a runtime that only writes records."""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import brim
from brim.cli.__main__ import cli
from brim.domain.job import JobSpec
from brim.errors import EnvironmentFault, SpecError
from brim.runs.invite import invitation
from recorded_run import RecordedRun

GOOD = """
def model(): ...
def dataset(split): ...
def loss(output, target): ...
def optimizer(model): ...
"""
Script = Callable[[RecordedRun], Iterator[int | None]]


class FakeRuntime:
    """Stands in for `brim.backends.local`: each poll performs the script's next part."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[str] = []

    def start(
        self, spec: JobSpec, run_dir: Path, *, resume: bool, listen: str | None
    ) -> FakeRuntime:
        self.spec, self.run_dir, self.resume, self.listen = spec, run_dir, resume, listen
        resolved = replace(
            spec, epochs=spec.epochs or 1, global_batch_size=spec.global_batch_size or 512
        )
        self._parts = self.script(RecordedRun(run_dir, resolved, samples=2048))
        return self

    def poll(self) -> int | None:
        return next(self._parts)

    def interrupt(self) -> None:
        self.calls.append("interrupt")

    def kill(self) -> None:
        self.calls.append("kill")


def to_the_end(run: RecordedRun) -> Iterator[int | None]:
    run.begin()
    yield None
    run.train(2)
    run.lose(1)
    yield None
    run.train_to_end()
    run.end()
    yield 0


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flights.py").write_text(GOOD)
    (tmp_path / "loop.py").write_text("import brim\nbrim.join\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("brim.runs.following.INTERVAL", 0.0)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, FakeRuntime]]:
    def run(script: Script, *words: str, **environment: str) -> tuple[Result, FakeRuntime]:
        runtime = FakeRuntime(script)
        monkeypatch.setattr("brim.backends.local.start", runtime.start)
        arguments = (
            words if words[:1] in (("run",), ("resume",)) else ("train", "flights.py", *words)
        )
        return CliRunner().invoke(cli, arguments, env=environment), runtime

    return run


def test_the_options_become_the_spec(train: Any) -> None:
    result, runtime = train(
        to_the_end, "--workers", "1:4", "--epochs", "2", "--set", "lr=0.1", "--faults", "add 1 at step 3",
        "--clip-norm", "1.5", "--no-exact", "--heartbeat-timeout", "500ms", "--loaders", "3",
        "--log-limit", "1.5GiB",
        BRIM_SEED="9", BRIM_EPOCHS="7",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    spec = runtime.spec
    assert (str(spec.workers), spec.epochs, spec.seed, spec.parameters) == (
        "1:4",
        2,
        9,
        {"lr": "0.1"},
    )
    assert (spec.clip_norm, spec.exact, spec.heartbeat_timeout, spec.micro_batches) == (
        1.5,
        False,
        0.5,
        8,
    )
    assert [fault.count for fault in spec.faults] == [1]
    assert (spec.loaders, spec.log_limit) == (3, 3 << 29)


def test_json_prints_one_summary_object(train: Any) -> None:
    result, runtime = train(to_the_end, "--json")
    summary = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {
        "run", "metrics", "steps", "samples_per_epoch", "steps_redone", "out_of_memory", "world_sizes",
        "weights_sha256", "samples_per_second", "seconds", "exit",
    } <= set(summary)  # fmt: skip
    assert {"total", "to_first_step", "re_forming"} <= set(summary["seconds"])
    assert summary["exit"] == "done"
    assert summary["run"] == str(runtime.run_dir)


def test_plain_lines_tell_what_happened(train: Any) -> None:
    result, runtime = train(to_the_end)
    for words in (
        "training flights.py: 4 steps", "data: 2,048 samples to "
                                        "train", "step 1/4", "w1 lost (signal 9)",
        "round 2: 3 workers from step 2", "re-formed in 24 ms, 1 step redone",
        "epoch 1 done at step 4: auc 0.75",
    ):  # fmt: skip
        assert words in result.stderr, result.stderr
    assert "done " in result.stdout
    assert "auc 0.7712" in result.stdout
    assert "sha256 abab" in result.stdout
    assert str(runtime.run_dir / "report.html") in result.stdout


def test_a_run_leaves_report_and_latest_link(train: Any) -> None:
    _, runtime = train(to_the_end)
    assert runtime.run_dir.parent == Path("runs")
    assert runtime.run_dir.name.startswith("flights-")
    assert (runtime.run_dir / "report.html").is_file()
    assert Path("runs/latest").resolve() == runtime.run_dir.resolve()
    assert CliRunner().invoke(cli, ["ledger"]).exit_code == 0
    assert "done" in CliRunner().invoke(cli, ["status"]).stdout


def test_two_runs_in_one_second_have_two_directories(train: Any) -> None:
    assert train(to_the_end)[1].run_dir != train(to_the_end)[1].run_dir


def test_user_failures_show_their_trace_first(train: Any) -> None:
    def fails(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        run.events.append(
            "failed",
            who="user",
            message="the model raised",
            trace="Traceback …\nZeroDivisionError: division by zero",
        )
        run.end("failed")
        yield 1

    result, runtime = train(fails)
    assert result.exit_code == 1
    assert result.stderr.index("ZeroDivisionError") < result.stderr.index("the model raised")
    assert runtime.run_dir.is_dir()


def test_late_spec_errors_exit_2_without_leftovers(train: Any) -> None:
    def fails(run: RecordedRun) -> Iterator[int | None]:
        run.begin(workers=0)
        run.events.append(
            "failed", who="spec", message="column 'distence': got no such column, need …", trace="t"
        )
        yield 1

    result, runtime = train(fails)
    assert result.exit_code == 2
    assert "column 'distence'" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not runtime.run_dir.exists()
    assert not os.path.lexists("runs/latest")


def test_a_spec_that_the_runtime_refuses_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SpecError("--device", got="'cuda'", need="a GPU", hint="--device cpu")

    monkeypatch.setattr("brim.backends.local.start", refuse)
    result = CliRunner().invoke(cli, ["train", "flights.py", "--device", "cuda"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--device: got 'cuda'")
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize(("most", "hint"), [(0, "ulimit -Hn"), (2, "--workers 2")])
def test_hints_stay_within_the_hosts_limits(
    most: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.runs.starting.most_workers", lambda: most)
    result = CliRunner().invoke(cli, ["train", "flights.py", "--workers", "3"])
    assert result.exit_code == 2
    assert f"need at most {most}" in result.stderr
    assert f"hint: {hint}" in result.stderr


def test_a_silent_death_is_a_failure(train: Any) -> None:
    def dies(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        run.train(3)
        yield 137

    result, _ = train(dies, "--json")
    summary = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (summary["exit"], summary["steps"], summary["world_sizes"]) == ("failed", 3, [4])
    assert "the agent of this run is gone" in result.stderr
    assert "died" in CliRunner().invoke(cli, ["status"]).stdout


def test_the_second_ctrl_c_kills_the_run(train: Any) -> None:
    def stopped(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        run.train(1)
        signal.raise_signal(signal.SIGINT)
        yield None
        run.checkpoint()
        signal.raise_signal(signal.SIGINT)
        yield None
        run.end("suspended")
        yield 0

    handler_before = signal.getsignal(signal.SIGINT)
    result, runtime = train(stopped)
    assert runtime.calls == ["interrupt", "kill"]
    assert "Ctrl-C again" in result.stderr
    assert "suspended" in result.stdout
    assert f"resume     brim resume {runtime.run_dir}" in result.stdout
    assert result.exit_code == 0
    assert signal.getsignal(signal.SIGINT) is handler_before


@pytest.mark.parametrize("moment", ["before the run starts", "while it starts", "before it begins"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_before_the_beginning_leaves_nothing(
    train: Any, monkeypatch: pytest.MonkeyPatch, moment: str, number: signal.Signals
) -> None:
    def says_nothing(run: RecordedRun) -> Iterator[int | None]:
        if moment == "before it begins":
            signal.raise_signal(number)
        yield None
        (run.run_dir / "job.json").touch()
        for path in run.run_dir.glob("*.jsonl"):  # its agent was ended before there were any
            path.unlink()
        yield 1

    handler_before = signal.getsignal(signal.SIGTERM)
    _, previous = train(to_the_end)
    if moment == "before the run starts":
        monkeypatch.setattr("brim.runs.following.Followers", lambda *_: signal.raise_signal(number))
    elif moment == "while it starts":
        monkeypatch.setattr(
            "brim.runs.following._start", with_signal(number, "brim.runs.following._start")
        )
    result, _ = train(says_nothing)
    assert result.exit_code == 1
    assert "brim: stopped before it began: nothing is left of it" in result.stderr
    assert "gone" not in result.stderr
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(
        ["latest", previous.run_dir.name]
    )
    assert Path("runs/latest").resolve() == previous.run_dir.resolve()
    assert signal.getsignal(signal.SIGTERM) is handler_before


def with_signal(number: signal.Signals, name: str) -> Callable[..., Any]:
    """Return a function that is called with a signal on its way."""
    function = pkgutil.resolve_name(name)

    def call(*arguments: Any) -> Any:
        found = function(*arguments)
        signal.raise_signal(number)
        return found

    return call


def test_silent_endless_runs_are_killed(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(run: RecordedRun) -> Iterator[int | None]:
        for path in run.run_dir.glob("*.jsonl"):
            path.unlink()
        signal.raise_signal(signal.SIGTERM)
        while "kill" not in runtimes[0].calls:
            yield None
        yield 1

    runtimes: list[FakeRuntime] = []
    monkeypatch.setattr("brim.runs.following._TO_STOP_UNHEARD", 0.1)
    begin = FakeRuntime.__init__

    def note(self: FakeRuntime, script: Script) -> None:
        runtimes.append(self)
        begin(self, script)

    monkeypatch.setattr(FakeRuntime, "__init__", note)
    result, runtime = train(hangs)
    assert runtime.calls == ["interrupt", "kill"]
    assert "killing the run, which has not begun and does not end" in result.stderr
    assert result.exit_code == 1


def test_resume_goes_on_with_the_recorded_spec(train: Any) -> None:
    def half(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        run.train(4)
        run.end("suspended")
        yield 0

    def rest(run: RecordedRun) -> Iterator[int | None]:
        run.step, run.round = 4, 1
        run.clock.advance(3600)
        run.begin()
        run.restore(4)
        run.train_to_end()
        run.end()
        yield 0

    _, first = train(half, "--epochs", "2", "--seed", "5", "--faults", "kill rank 0 at step 1")
    result, second = train(rest, "--resume", "--workers", "2")
    assert result.exit_code == 0, result.output
    assert second.resume
    assert second.run_dir == first.run_dir
    assert (second.spec.seed, second.spec.epochs, str(second.spec.workers)) == (5, 2, "2")
    assert second.spec.faults == ()
    assert "step 1/8" not in result.stderr
    assert "restored step 4" in result.stderr
    assert CliRunner().invoke(cli, ["ledger"]).exit_code == 0


def test_a_run_that_is_done_is_not_resumed(train: Any) -> None:
    train(to_the_end)
    result, _ = train(to_the_end, "--resume")
    assert result.exit_code == 2
    assert "--resume: got runs/flights-" in result.stderr
    assert "which is done" in result.stderr


def test_a_run_that_is_alive_is_not_resumed(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        yield 1

    train(dies)
    monkeypatch.setattr("brim.client.status", lambda run_dir: {})
    result, _ = train(to_the_end, "--resume")
    assert result.exit_code == 2
    assert "which is running" in result.stderr
    assert "brim suspend" in result.stderr


def test_a_run_with_broken_view_is_ended(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.runs.plain.describe_event", lambda *_: 1 / 0)
    result, runtime = train(to_the_end)
    assert isinstance(result.exception, ZeroDivisionError)
    assert runtime.calls == ["kill"]


def test_a_listening_run_says_how_to_join(train: Any) -> None:
    def listens(run: RecordedRun) -> Iterator[int | None]:
        yield None
        (run.run_dir / "master.json").write_text(
            '{"address": "10.0.0.7:4000", "token": "t0", "pid": 1}'
        )
        yield None
        yield None
        yield from to_the_end(run)

    result, runtime = train(listens, "--listen", "10.0.0.7:0")
    assert runtime.listen == "10.0.0.7:0"
    assert result.stderr.count("BRIM_TOKEN=t0 brim agent 10.0.0.7:4000") == 1


def test_runs_are_insecure_only_on_request(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_INSECURE", "1")  # of clients of a scheduler
    for is_insecure, options in ((True, ("--insecure",)), (False, ())):
        result, runtime = train(to_the_end, "--listen", "10.0.0.7:0", *options)
        assert result.exit_code == 0, result.output
        assert runtime.spec.insecure is is_insecure


@pytest.mark.parametrize(
    ("address", "typed"),
    [("[fd00::7]:4000", "[fd00::7]:4000"), ("[::]:4000", f"{socket.gethostname()}:4000")],
)
def test_the_address_to_type_may_be_of_ipv6(address: str, typed: str) -> None:
    assert invitation(address, token="t0") == (
        f"join from another host: BRIM_TOKEN=t0 brim agent {typed}"
    )


def test_run_takes_a_command_with_its_own_options(train: Any) -> None:
    result, runtime = train(
        to_the_end, "run", "--workers", "2", "--", "python", "loop.py", "--workers", "9"
    )
    assert result.exit_code == 0, result.output
    assert runtime.spec.command == ("python", "loop.py", "--workers", "9")
    assert str(runtime.spec.workers) == "2"
    assert runtime.run_dir.name.startswith("loop-")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom brim.cli.__main__ import cli\n"
        "try: cli(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'grpc', 'matplotlib', 'numpy', 'rich', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "brim train flights.py --workers 4" in done.stdout


@pytest.mark.parametrize(
    "verb",
    [
        "train",
        "run",
        "status",
        "resize",
        "logs",
        "suspend",
        "resume",
        "evaluate",
        "predict",
        "export",
        "report",
        "ledger",
        "checkpoints",
        "agent",
    ],
)
def test_every_verb_teaches_with_an_example(verb: str) -> None:
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0
    assert result.stdout.count(f"brim {verb}") >= 2


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout.startswith("brim 0.")


def test_python_runs_show_joining_and_leave_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listens(run: RecordedRun) -> Iterator[int | None]:
        yield None
        (run.run_dir / "master.json").write_text(
            '{"address": "10.0.0.7:4000", "token": "t0", "pid": 1}'
        )
        yield None
        yield from to_the_end(run)

    monkeypatch.setattr("brim.backends.local.start", FakeRuntime(listens).start)
    run = brim.train("flights.py", listen="10.0.0.7:0")
    output = capsys.readouterr().err
    assert output.count("BRIM_TOKEN=t0 brim agent 10.0.0.7:4000") == 1
    assert f"starting 1 worker for {run.path}" in output
    assert (run.path / "report.html").is_file()


def test_own_loops_are_shown_on_resume(train: Any) -> None:
    def prints(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        (run.run_dir / "logs").mkdir()
        with open(run.run_dir / "logs" / "w0.log", "a") as log:
            log.write("first life\n")
        run.train(2)
        run.end("suspended")
        yield 0

    def rest(run: RecordedRun) -> Iterator[int | None]:
        run.step, run.round = 2, 1
        run.begin()
        run.restore(2)
        with open(run.run_dir / "logs" / "w0.log", "a") as log:
            log.write("second life\n")
        run.train_to_end()
        run.end()
        yield 0

    _, first = train(prints, "run", "--", "python", "loop.py")
    result, _ = train(rest, "resume", str(first.run_dir))
    assert result.exit_code == 0, result.output
    assert "second life" in result.stderr
    assert "first life" not in result.stderr


def test_waiters_hear_how_a_run_ended(train: Any) -> None:
    _, runtime = train(to_the_end)
    waited = CliRunner().invoke(cli, ["status", "--wait", "--json"])
    assert waited.exit_code == 0, waited.output
    assert json.loads(waited.stdout)["run"] == str(runtime.run_dir)

    def fails(run: RecordedRun) -> Iterator[int | None]:
        run.begin()
        run.events.append("failed", who="environment", message="the disk is full", trace="")
        run.end("failed")
        yield 1

    _, runtime = train(fails)
    waited = CliRunner().invoke(cli, ["status", "--wait"])
    assert waited.exit_code == 1
    assert waited.stderr == f"{runtime.run_dir}: failed: the disk is full\n"
    with pytest.raises(EnvironmentFault, match="the disk is full"):
        brim.Run().wait()
