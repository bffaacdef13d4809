from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brim.cli.explain import explain
from brim.cli.simulate import simulate
from brim.errors import SpecError

PROFILE = "global_batch_size,1,2,4,8,16\n64,1.0,1.9,3.5,6.0,9.0\n"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments, catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "m.csv").write_text(PROFILE)
    file = tmp_path / "trace.csv"
    made = _run("generate", "--profiles", str(tmp_path / "profiles"), "--jobs", "12", "--out", str(file))
    assert made.exit_code == 0
    return file


def test_json_is_one_object_with_every_figure(trace: Path) -> None:
    result = _run("--trace", str(trace), "--cluster", "2x8", "--policy", "brim,edf,edf:as-coded", "--json")
    found = json.loads(result.stdout)
    assert set(found["policies"]) == {"brim", "edf", "edf:as-coded"}
    assert {
        "jobs",
        "deadline_jobs",
        "deadline_satisfactory_ratio",
        "admitted",
        "admitted_missed",
        "average_jct_seconds",
        "makespan_seconds",
        "cpu_seconds",
    } <= set(found["policies"]["brim"])
    assert set(found["ceiling"]) == {"per_job", "capacity"}


def test_the_table_reads_every_ratio_against_the_ceiling(trace: Path) -> None:
    result = _run("--trace", str(trace), "--cluster", "2x8", "--policy", "brim,fifo-gang")
    assert "of ceiling" in result.stdout
    assert "No policy can meet more than" in result.stdout


def test_a_folder_gets_jobs_decisions_and_figures_and_explain_reads_it(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra `simulate` is not installed")
    out = tmp_path / "out"
    _run("--trace", str(trace), "--cluster", "2x8", "--policy", "brim", "--out", str(out))
    names = {path.name for path in out.iterdir()}
    assert {"jobs.csv", "decisions.jsonl", "summary.json", "index.html", "deadline_ratio.png"} | {
        f"{name}.png" for name in ("devices", "jct", "queue", "tenants")
    } <= names
    story = CliRunner().invoke(explain, ["3", "--sim", str(out)], catch_exceptions=False).stdout
    assert "under brim" in story
    assert "finished on" in story


def test_unknown_names_fail_before_anything_runs(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="did you mean 'brim'"):
        _run("--trace", str(trace), "--policy", "brin")
    with pytest.raises(SpecError, match="60 or 240"):
        _run("--trace", str(trace), "--policy", "edf:as-coded", "--slot", "0")
    with pytest.raises(SpecError, match="a folder that"):
        CliRunner().invoke(explain, ["3", "--sim", str(tmp_path)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "field", "hint"),
    [
        (("--trace", "nowhere.csv"), "--trace", "generate"),
        (("--trace", "."), "--trace", "generate"),
        (("--trace", "{binary}"), "--trace", "generate"),
        (("--trace", "{profile}"), "--trace", "simulate.md"),
        (("--trace", "{trace}", "--policy", "brim,"), "--policy", "known"),
        (("--trace", "{trace}", "--policy", "elasticflwo"), "--policy", "'elasticflow'"),
        (("--trace", "{trace}", "--policy", "edf,edf"), "--policy", ""),
        (("--trace", "{trace}", "--cluster", "16by8"), "--cluster", "16x8"),
        (("--trace", "{trace}", "--cluster", "0x8"), "--cluster", "16x8"),
        (("--trace", "{trace}", "--profiles", "nowhere"), "--profiles", "simulate.md"),
        (("--trace", "{trace}", "--slot", "nan"), "--slot", "240"),
        (("--trace", "{trace}", "--tenant", "a:guaranteed=some"), "--tenant", "guaranteed=8"),
    ],
)
def test_bad_input_names_the_flag_what_it_got_and_what_it_needs(
    trace: Path, tmp_path: Path, arguments: tuple[str, ...], field: str, hint: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\x1f\x8b\x08\x00\xff")
    places = {
        "trace": trace, "binary": tmp_path / "binary", "profile": tmp_path / "profiles" / "m.csv"
    }  # fmt: skip
    with pytest.raises(SpecError) as caught:
        _run(*(argument.format(**places) for argument in arguments))
    error = caught.value
    assert error.field.startswith(field)
    assert error.got
    assert error.need
    assert hint in error.hint


def test_bad_input_exits_with_2_and_prints_nothing_on_stdout(trace: Path) -> None:
    for words in (("--slot", "-1"), ("--failures", "-3"), ("--policy", "brin"), ("--cluster", "8")):
        command = [sys.executable, "-m", "brim.cli", "simulate", "--trace", str(trace), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.lstrip().startswith(words[0])
        assert "hint:" in done.stderr


def test_tenants_are_read_and_misspelt_rights_refused(trace: Path) -> None:
    rights = ("--tenant", "default:guaranteed=8,exclusive=2,limit=12", "--tenant", "other:guaranteed=8")
    result = _run(
        "--trace", str(trace), "--cluster", "2x8", "--policy", "brim", "--placement", "--json", *rights
    )
    assert json.loads(result.stdout)["policies"]["brim"]["admitted_missed"] == 0
    with pytest.raises(SpecError, match="did you mean 'guaranteed'"):
        _run("--trace", str(trace), "--tenant", "a:garanteed=8")
    with pytest.raises(SpecError, match="200 devices guaranteed"):
        _run("--trace", str(trace), "--tenant", "a:guaranteed=200")
