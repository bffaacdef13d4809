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
from brim.simulator.sample import SAMPLE, write_sample

PROFILE = "global_batch_size,1,2,4,8,16\n64,1.0,1.9,3.5,6.0,9.0\n"


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments, catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "m.csv").write_text(PROFILE)
    file = tmp_path / "trace.csv"
    generated = _run(
        "generate", "--profiles", str(tmp_path / "profiles"), "--jobs", "12", "--out", str(file)
    )
    assert generated.exit_code == 0
    return file


def test_json_is_one_object_with_every_figure(trace: Path) -> None:
    result = _run(
        "--trace", str(trace), "--cluster", "2x8", "--policy", "brim,edf,edf:as-coded", "--json"
    )
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


def test_an_output_folder_explains_its_decisions(trace: Path, tmp_path: Path) -> None:
    out_folder = tmp_path / "out"
    _run("--trace", str(trace), "--cluster", "2x8", "--policy", "brim", "--out", str(out_folder))
    names = {path.name for path in out_folder.iterdir()}
    assert {"jobs.csv", "decisions.jsonl", "summary.json", "index.html", "deadline_ratio.png"} | {
        f"{name}.png" for name in ("devices", "jct", "queue", "tenants")
    } <= names
    story = (
        CliRunner().invoke(explain, ["3", "--sim", str(out_folder)], catch_exceptions=False).stdout
    )
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
        (("--trace", "{trace}", "--tenant", "a:weight=nan"), "tenant a", ""),
        (("--trace", "{trace}", "--usage-half-life", "7d"), "--usage-half-life", "describe"),
        (("generate", "--profiles", "{profiles}", "--deadline", "nan:2"), "--deadline", "0.5"),
    ],
)
def test_bad_input_names_flag_value_and_need(
    trace: Path, tmp_path: Path, arguments: tuple[str, ...], field: str, hint: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\x1f\x8b\x08\x00\xff")
    places = {
        "trace": trace, "binary": tmp_path / "binary", "profile": tmp_path / "profiles" / "m.csv",
        "profiles": tmp_path / "profiles",
    }  # fmt: skip
    with pytest.raises(SpecError) as caught:
        _run(*(argument.format(**places) for argument in arguments))
    error = caught.value
    assert error.field.startswith(field)
    assert error.got
    assert error.need
    assert hint in error.hint


@pytest.mark.parametrize(
    "words",
    [
        ("--profile-error", "nan"),
        ("--failures", "inf"),
        ("--stragglers", "nan"),
        ("generate", "--profiles", ".", "--interarrival", "0"),
        ("generate", "--profiles", ".", "--interarrival", "nan"),
        ("generate", "--profiles", ".", "--jobs", "0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(simulate, words).exit_code == 2


def test_bad_input_exits_2_without_output(trace: Path) -> None:
    for words in (("--slot", "-1"), ("--failures", "-3"), ("--policy", "brin"), ("--cluster", "8")):
        command = [sys.executable, "-m", "brim.cli", "simulate", "--trace", str(trace), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.lstrip().startswith(words[0])
        assert "hint:" in done.stderr


def test_tenants_are_read_and_misspelt_rights_refused(trace: Path) -> None:
    rights = (
        "--tenant",
        "default:guaranteed=8,exclusive=2,limit=12",
        "--tenant",
        "other:guaranteed=8",
    )
    result = _run(
        "--trace",
        str(trace),
        "--cluster",
        "2x8",
        "--policy",
        "brim",
        "--placement",
        "--json",
        *rights,
    )
    assert json.loads(result.stdout)["policies"]["brim"]["admitted_missed"] == 0
    with pytest.raises(SpecError, match="did you mean 'guaranteed'"):
        _run("--trace", str(trace), "--tenant", "a:garanteed=8")
    with pytest.raises(SpecError, match="200 devices guaranteed"):
        _run("--trace", str(trace), "--tenant", "a:guaranteed=200")


def test_without_a_trace_a_sample_is_run(tmp_path: Path) -> None:
    """The command as the page on many jobs has it, from another directory."""
    page = (Path(__file__).parents[2] / "docs" / "many-jobs.md").read_text()
    assert "`brim simulate`" in page
    command = [sys.executable, "-m", "brim.cli", "simulate"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert {"brim", "elasticflow", "edf"} <= set(done.stdout.replace("│", " ").split())
    assert "made up" in done.stderr


def test_the_sample_is_what_its_generator_makes(tmp_path: Path) -> None:
    write_sample(tmp_path)
    generated = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.csv")}
    stored = {path.relative_to(SAMPLE): path.read_bytes() for path in SAMPLE.rglob("*.csv")}
    assert generated == stored
    assert sum(map(len, stored.values())) < 20_000


def guides_policy(folder: Path) -> Path:
    """The policy that the guide shows, in a file."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "write-a-policy.md").read_text()
    file = folder / "shortest.py"
    file.write_text(guide.partition("```python\n")[2].partition("```")[0])
    return file


def test_the_guides_policy_runs_from_a_file(tmp_path: Path) -> None:
    own_policy = f"{guides_policy(tmp_path)}:shortest_first"
    out_folder = tmp_path / "out"
    found = json.loads(
        _run("--policy", f"{own_policy},edf", "--json", "--out", str(out_folder)).stdout
    )
    assert set(found["policies"]) == {own_policy, "edf"}
    assert found["policies"][own_policy]["jobs"] == 200
    assert "shortest.py:shortest_first" in (out_folder / "index.html").read_text()


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (None, "nowhere.py:mine", "nowhere.py, which is no file"),
        ("def mine(s): ...", "{file}", "need FILE.py:NAME"),
        ("def mine(s): ...", "{file}:mien", "did you mean 'mine'?"),
        ("mine = 3", "{file}:mine", "of type int"),
        ("def mine(s): ...", "{file}:mine", "a NoneType as its answer"),
        (
            "def mine(s): return D(workers={'x': 1})",
            "{file}:mine",
            "workers for 'x', which is not a job",
        ),
        (
            "def mine(s): return D(workers={s.jobs[0].job.id: 999}, verdicts=yes(s))",
            "{file}:mine",
            "999 workers",
        ),
        (
            "def mine(s): return D(workers={s.jobs[0].job.id: 0.5})",
            "{file}:mine",
            "0.5 workers for job",
        ),
        ("def mine(s): return D(workers={})", "{file}:mine", "no verdict on"),
        (
            "def mine(s): return D(workers={}, verdicts=yes(s), wake=0.0)",
            "{file}:mine",
            "wake=0 at",
        ),
        ("def mine(s): return D(workers={}, verdicts=yes(s))", "{file}:mine", "waiting for ever"),
    ],
)
def test_own_policy_errors_have_four_parts(
    trace: Path, tmp_path: Path, code: str | None, name: str, words: str
) -> None:
    file = tmp_path / "own.py"
    head = (
        "from brim.domain.schedule import Decision as D\nfrom brim.policies.baselines.edf import "
        "admit_all as yes\n"
    )
    file.write_text(head + (code or ""))
    with pytest.raises(SpecError) as caught:
        _run("--trace", str(trace), "--cluster", "2x8", "--policy", name.format(file=file))
    error = caught.value
    assert words in str(error)
    assert error.field.startswith("--policy")
    assert error.got
    assert error.need
    assert error.hint


@pytest.mark.parametrize("code", ["def mine(s):\n    return 1 / 0", "1 / 0"])
def test_a_policy_that_raises_shows_its_own_traceback(
    trace: Path, tmp_path: Path, code: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text(code)
    command = [
        sys.executable,
        "-m",
        "brim.cli",
        "simulate",
        "--trace",
        str(trace),
        "--policy",
        f"{file}:mine",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "brim/backends" not in done.stderr
    assert str(file) in done.stderr


def test_half_life_lets_the_idle_tenant_come_first(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "submit_time,iteration,ddl,model_name,batch_size,num_gpu,duration,best_effort,tenant\n"
        "0,1382400,0,m,64,8,172800,1,ads\n86400,691200,0,m,64,8,86400,1,web\n"
    )
    words = ("--trace", str(file), "--cluster", "1x8", "--policy", "brim", "--overheads", "none")
    tenants = ("--tenant", "ads", "--tenant", "web", "--json")
    times = [
        json.loads(_run(*words, *tenants, *options).stdout)["policies"]["brim"][
            "average_jct_seconds"
        ]
        for options in ((), ("--usage-half-life", "1d"))
    ]
    assert times == [pytest.approx(60.0 * 3600.0), pytest.approx(53.1 * 3600.0, rel=0.01)]
