"""Each test is run by the gate or by a piece of the night, and each result is kept whole or not at
all.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nightly
from benchmarks.harness import ratios
from conftest import collect_ignore_glob
from nightly import PIECES, ROOT, TEST_PATHS, Piece, Result
from zoo.exhibits import CAPTURED

TESTS = ROOT / "tests"
ON_NODES = re.compile(r"\b(?:node_cluster|real_kubeconfig)\b")


def recipe(target: str, *variables: str) -> str:
    """The commands that make would run."""
    command = ["make", "--dry-run", "--silent", "-C", str(ROOT), target, *variables]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300, env=environment
    )
    return done.stdout.replace("\\\n", "")


def test_the_gate_and_the_night_select_all_tests() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    for target in ("check", "tests", "test-nodes"):
        assert re.search(rf"^[^#]*\bmake {target}\b", gate, re.MULTILINE), target
    assert '-m "not long"' in recipe("test")
    assert "-m long" in recipe("test-long")
    assert '-m "not long"' in recipe("test-nodes")
    assert PIECES["nodes"].command[-1] == f"{nightly.BUILD_OPERATORS} && make test-nodes CASES=long"
    assert '-m "long"' in recipe("test-nodes", "CASES=long")


def test_tests_on_nodes_are_all_in_their_target() -> None:
    on_nodes = {
        str(path.relative_to(ROOT))
        for path in TESTS.rglob("test_*.py")
        if ON_NODES.search(path.read_text()) and path != Path(__file__)
    }
    assert on_nodes == set(nightly.node_tests())


def test_files_with_tests_are_all_collected() -> None:
    tests = ["-e", r"^(async )?def test_", "-e", "^class Test"]
    command = ["git", "-C", str(ROOT), "grep", "--untracked", "-lE", *tests, "--", "*.py"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    files = [ROOT / name for name in found.stdout.splitlines()]
    ignored = {path for glob in collect_ignore_glob for path in TESTS.glob(glob)}
    assert len(files) > 100
    for path in files:
        assert path.name.startswith("test_"), path
        assert path not in ignored, path
        assert any(path.is_relative_to(ROOT / base) for base in TEST_PATHS), path


def test_long_tests_are_each_in_one_piece() -> None:
    *other_pieces, rest = (piece for piece in PIECES.values() if "long" in " ".join(piece.command))
    assert (rest.name, other_pieces[-1].name) == ("long-rest", "nodes")
    named = [path for piece in other_pieces for path in piece.tests]
    assert len(named) == len(set(named))
    for path in named:
        assert (ROOT / path).exists(), path
        assert not any(
            other_path != path and f"{path}/".startswith(f"{other_path}/") for other_path in named
        )
    for piece in other_pieces[:-1]:
        assert piece.command == ("make", "test-long", f"TESTS={' '.join(piece.tests)}")
    words = rest.command[-1].removeprefix("TESTS=").split()
    assert words == [*TEST_PATHS, *(f"--ignore={path}" for path in named)]
    settings = (ROOT / "pyproject.toml").read_text()
    assert f"testpaths = {list(TEST_PATHS)}".replace("'", '"') in settings
    assert recipe("test-long", rest.command[-1]).endswith(f"-m long {' '.join(words)}\n")


def test_paths_of_a_piece_exist() -> None:
    for piece in PIECES.values():
        assert not [path for path in piece.parts if not (ROOT / path).exists()], piece.name


def test_a_change_leads_to_its_pieces() -> None:
    def concerned(path: str) -> set[str]:
        return {name for name, piece in PIECES.items() if piece.concerns(path)}

    assert concerned("deploy/make_deploy.py") == {"nodes"}
    assert concerned("tests/e2e/test_two_hosts.py") == {"long-hosts", "long-rest"}
    assert {"chaos-hosts-1", "ratios-hosts", "long-hosts"} <= concerned("src/brim/wire/frames.py")
    assert "chaos-hosts-1" in concerned("src/brim/")
    assert concerned("README.md") == {"long-site"}
    assert concerned("LICENSE") == set()


def test_pieces_with_captured_steps_ask_for_them() -> None:
    assert f"{CAPTURED}=1" in PIECES["captured-zoo"].command
    assert "--capture" in PIECES["chaos-captured-1"].command


def test_ratios_that_are_compared_have_their_pieces() -> None:
    pieces = {name for name in PIECES if name.startswith("ratios-")}
    assert pieces == {f"ratios-{name}" for name in ratios.COMPARED}


@pytest.mark.parametrize("name", ratios.COMPARED)
def test_a_report_holds_its_own_thresholds(name: str) -> None:
    report = ratios.reported(name)
    for ratio in ratios.COMPARED[name].ratios:
        assert 0 < ratio.bound(report) < ratio.value(report)
        line = ratios.verdict(ratio, report, report)
        assert nightly.outcome(line, 0) == (1, 0, [])


def test_the_page_is_made_of_the_results() -> None:
    assert nightly.PAGE.read_text() == nightly.render(nightly.results())


PYTEST = """
........s.F  [ 10/2000]
________ test_a ________
seed 4: kill rank 1 at step 3: BROKEN (3.0 s)
ERROR    asyncio:base_events.py:1 what is logged
=========================== short test summary info ============================
SKIPPED [2] tests/clusters.py:50: no cluster is up
FAILED tests/e2e/test_a.py::test_a[kill rank 1; add 2] - AssertionError: no
ERROR tests/e2e/test_b.py::test_b
=== 1 failed, 1996 passed, 2 skipped, 9 deselected, 1 error in 83.10s (0:01:23) ===
make: *** [Makefile:27: test-long] Error 1
"""


@pytest.mark.parametrize(
    ("log", "status", "found"),
    [
        (
            PYTEST,
            2,
            (
                1996,
                2,
                ["tests/e2e/test_a.py::test_a[kill rank 1; add 2]", "tests/e2e/test_b.py::test_b"],
            ),
        ),
        ("===== 3 passed, 1 deselected in 3.05s =====\n", 0, (3, 0, [])),
        ("===== 9 deselected in 0.05s =====\n", 5, (0, 0, ["it ended with status 5"])),
        ("seed 1: kill: held (4.2 s)\nseed 2: cut: held (9 s)\n", 0, (2, 0, [])),
        (
            "seed 1: kill: BROKEN (4.2 s)\n  left: x\nTraceback\n",
            1,
            (0, 0, ["seed 1"]),
        ),
        ("seed 1: kill: held (4.2 s)\nTraceback\n", 1, (1, 0, ["it ended with status 1"])),
        ("seed 1: kill: held (4.2 s)\n", None, (1, 0, ["no end within 2 hours"])),
        ("", 0, (0, 0, ["it ran nothing"])),
    ],
)
def test_a_log_tells_what_passed(
    log: str, status: int | None, found: tuple[int, int, list[str]]
) -> None:
    assert nightly.outcome(log, status) == found


def printing(name: str, text: str, status: int = 0) -> Piece:
    program = f"print({text!r}, flush=True); raise SystemExit({status})"
    return Piece(name=name, about="prints", command=(sys.executable, "-c", program), parts=())


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pieces of a moment, and their results in a folder of their own."""
    pieces = (
        printing("first", "seed 1: kill: held (1 s)"),
        printing("second", "seed 2: kill: BROKEN (1 s)", 1),
        printing("third", "seed 3: kill: held (1 s)"),
    )
    monkeypatch.setattr(nightly, "PIECES", {piece.name: piece for piece in pieces})
    monkeypatch.setattr(nightly, "RESULTS", tmp_path / "nightly.json")
    monkeypatch.setattr(nightly, "PAGE", tmp_path / "nightly.md")
    monkeypatch.setattr(nightly, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(nightly, "POLL", 0.01)
    monkeypatch.setattr(nightly, "version", lambda: "abc")
    return tmp_path


def ran(night: Path) -> set[str]:
    """The pieces that have run since the last question."""
    logs = list((night / "logs").iterdir())
    for log in logs:
        log.unlink()
    return {log.stem for log in logs}


def test_an_interrupted_piece_alone_runs_again(
    night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(text: str) -> None:
        if "seed 2" in text:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(nightly, "show", interrupt)
        assert nightly.main([]) == 130
    assert nightly.results().keys() == {"first"}
    assert ran(night) == {"first", "second"}
    assert nightly.main([]) == 1
    assert ran(night) == {"second", "third"}
    assert {name: result.failed for name, result in nightly.results().items()} == {
        "first": [],
        "second": ["seed 2"],
        "third": [],
    }
    assert "| second | prints | 0 | 0 | `seed 2` | 0 | `abc` |" in nightly.PAGE.read_text()
    assert nightly.main([]) == 0  # all have a result
    assert not ran(night)


def test_another_commit_runs_all_pieces(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly.main(["first", "third"])
    assert ran(night) == {"first", "third"}
    monkeypatch.setattr(nightly, "version", lambda: "abd+")
    nightly.main(["third"])
    ran(night)
    assert {result.commit for result in nightly.results().values()} == {"abc", "abd+"}
    nightly.main([])  # files differ from the commit: no result is known to be of these
    assert ran(night) == {"first", "second", "third"}


def test_a_piece_without_end_is_ended(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Piece(
        name="first",
        about="waits",
        command=(sys.executable, "-c", "import signal; signal.pause()"),
        parts=(),
    )
    monkeypatch.setattr(nightly, "LONGEST", 0.2)
    result = nightly.run(endless, lambda text: None)
    assert result.failed == ["no end within 0 hours"]


def test_a_piece_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nightly.main(["long-zo"])
    assert "no such piece: long-zo; known: long-training" in capsys.readouterr().err


def test_a_result_is_read_as_it_was_kept(night: Path) -> None:
    result = Result(
        commit="abc", date="2026-11-28 05:00", seconds=61.5, passed=3, skipped=1, failed=["a|b"]
    )
    nightly.keep("first", result)
    assert nightly.results() == {"first": result}
    assert "`a\\|b`" in nightly.PAGE.read_text()
