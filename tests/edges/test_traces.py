from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from brim.domain.cluster import Cluster
from brim.errors import SpecError
from brim.simulator.compare import ceilings, check_fit, find_profiles
from brim.simulator.profiles import read_profiles
from brim.simulator.traces import read_trace

PROFILE = "global_batch_size,1,2,4,8\n64,1.0,1.9,3.5,\n8,1.0,nan,0,2.0\n"
ITP = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\nu-1,10,100,m,90,64,2,60"
GENERATED = (
    "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n"
    "0,10,100,m,90,64,2,60,0\n1,5,100,m,90,64,2,60,1\n"
)
PHILLY = (
    "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,duration,iteration\n"
    "0,0,100,m,90,64,2,60,60,100\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "m.csv").write_text(PROFILE)
    return tmp_path


def test_empty_and_nan_cells_are_not_runnable(folder: Path) -> None:
    curves = read_profiles(folder / "profiles")
    assert [n for n, _ in curves["m", 64].points] == [1, 2, 4]
    assert [n for n, _ in curves["m", 8].points] == [1, 8]


@pytest.mark.parametrize("text", [ITP, GENERATED, PHILLY])
def test_every_format_is_read(folder: Path, text: str) -> None:
    trace = folder / "trace.csv"
    trace.write_text(text)
    jobs = read_trace(trace, read_profiles(folder / "profiles"))
    job = jobs[-1]
    assert (job.work, job.requested, job.duration, job.deadline) == (100.0, 2, 60.0, 90.0)
    assert find_profiles(trace) is not None


def test_best_effort_jobs_have_no_deadline(folder: Path) -> None:
    trace = folder / "trace.csv"
    trace.write_text(GENERATED)
    first, second = read_trace(trace, read_profiles(folder / "profiles"))
    assert (first.id, first.deadline, second.deadline) == ("1", None, 90.0)


def test_without_profiles_jobs_scale_linearly(folder: Path) -> None:
    trace = folder / "trace.csv"
    trace.write_text(ITP)
    (job,) = read_trace(trace)
    assert job.ceiling == 2
    assert job.shortest == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (ITP.replace("deadline,", "when,"), "trace.csv"),
        (ITP.replace(",100,", ",many,"), "line 2"),
        (ITP.replace(",m,", ",n,"), "--profiles"),
        (ITP.replace(",100,", ",-1,"), "line 2"),
        (ITP.replace(",2,60", ",0,60"), "line 2"),
        (ITP.replace(",2,60", ",2"), "line 2"),
        (ITP.replace("duration", "duration,priority").replace(",60", ",60,urgent"), "priority"),
        ("", "--trace"),
    ],
)
def test_a_bad_trace_says_what_is_wrong(folder: Path, text: str, field: str) -> None:
    trace = folder / "trace.csv"
    trace.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_trace(trace, read_profiles(folder / "profiles"))
    assert field in caught.value.field


ROW = dict(
    zip(
        [
            "job_id",
            "submit_time",
            "iteration",
            "model_name",
            "ddl",
            "batch_size",
            "num_gpu",
            "duration",
        ],
        ["0", "10", "100", "m", "90", "64", "2", "60"],
        strict=True,
    )
)


def _table(**cells: str) -> str:
    row = ROW | cells
    return f"{','.join(row)}\n{','.join(row.values())}\n"


@pytest.mark.parametrize("word", ["1", "1.0", "True", "true", "TRUE", "yes", " 1 "])
def test_best_effort_is_read_as_tables_write_it(tmp_path: Path, word: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(_table(best_effort=word, ddl=""))
    assert read_trace(trace)[0].deadline is None


@pytest.mark.parametrize("word", ["", "0", "0.0", "False", "false", "no"])
def test_jobs_not_of_best_effort_keep_their_deadline(tmp_path: Path, word: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(_table(best_effort=word))
    assert read_trace(trace)[0].deadline == 90.0


@pytest.mark.parametrize(
    "content",
    [
        _table().encode("utf-8-sig"),
        gzip.compress(_table().encode()),
        _table(num_gpu="2.0", batch_size="64.0", minimum="1.0", maximum="").encode(),
        _table().replace(",", ", ").encode(),
        _table().replace("\n", "\n\n").encode(),
        _table().replace("submit_time", "Submit Time").encode(),
    ],
    ids=["mark", "gzip", "floats", "spaces", "blank lines", "capitals"],
)
def test_traces_of_spreadsheets_and_dataframes_are_read(tmp_path: Path, content: bytes) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content.replace(b"job_id,", b"").replace(b"\n0,", b"\n"))
    (job,) = read_trace(trace)
    assert (job.submitted, job.requested, job.deadline, job.minimum) == (10.0, 2, 90.0, 1)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *(("ddl", cell) for cell in ("", "nan", "inf", "-inf", "1e400", "soon")),
        *(("best_effort", cell) for cell in ("maybe", "2", "nan")),
        *(("num_gpu", cell) for cell in ("", "2.5", "nan", "0", "10000000")),
        *(("submit_time", cell) for cell in ("", "nan", "inf")),
        *(("batch_size", cell) for cell in ("inf", "64.5")),
        *(("duration", cell) for cell in ("0", "inf")),
        *(("minimum", cell) for cell in ("0", "-1", "nan")),
        *(("maximum", cell) for cell in ("0", "1.5")),
        ("iteration", ""),
    ],
)
def test_a_bad_cell_names_line_and_column(tmp_path: Path, column: str, cell: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(_table(**{column: cell}))
    with pytest.raises(SpecError) as caught:
        read_trace(trace)
    assert caught.value.field == f"--trace {trace}, line 2, column {column}"
    assert caught.value.got == (repr(cell) if cell else "an empty cell")


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (_table().encode("utf-16"), "UTF-8"),
        (gzip.compress(_table().encode())[:-4], "compression is broken"),
        (_table().replace("90,", "90,,").encode(), "9 cells"),
        (_table().replace(",60", "").encode(), "7 cells"),
        (_table().replace("model_name", "ddl").encode(), "two columns ddl"),
        (_table(minimum="3", maximum="2").encode(), "'2'"),
    ],
    ids=["utf-16", "half of a gzip", "long line", "short line", "column twice", "bounds"],
)
def test_a_bad_table_is_refused_in_words(tmp_path: Path, content: bytes, actual: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_trace(trace)
    assert actual in caught.value.got
    assert find_profiles(trace) is None


@pytest.mark.parametrize(
    ("cells", "ceiling"),
    [
        ({"ddl": "11"}, 0.0),
        ({"ddl": "10"}, 0.0),
        ({"ddl": "-5"}, 0.0),
        ({"ddl": "70"}, 1.0),
        ({"submit_time": "0.1", "ddl": "60.1", "iteration": "7"}, 1.0),
    ],
)
def test_the_ceiling_exists_for_any_deadline(
    tmp_path: Path, cells: dict[str, str], ceiling: float
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(_table(**cells))
    found = ceilings(read_trace(trace), Cluster.parse("1x4"))
    assert found == {"per_job": ceiling, "capacity": ceiling}


def test_deadlines_within_rounding_have_a_ceiling(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(_table(submit_time="0", ddl="0", iteration="1e-9", duration="1e-9"))
    assert ceilings(read_trace(trace), Cluster.parse("1x4"))["per_job"] == 1.0


@pytest.mark.parametrize(("minimum", "smallest"), [("5", "1"), ("1", "8")])
def test_jobs_too_large_for_a_cluster_are_refused(
    tmp_path: Path, minimum: str, smallest: str
) -> None:
    trace, profiles = tmp_path / "trace.csv", tmp_path / "profiles"
    trace.write_text(_table(minimum=minimum))
    profiles.mkdir()
    (profiles / "m.csv").write_text(f"batch,{smallest}\n64,2.0\n")
    jobs = read_trace(trace, read_profiles(profiles))
    check_fit(jobs, 8)
    with pytest.raises(SpecError, match=r"job 0.*at most 4") as caught:
        check_fit(jobs, 4)
    assert caught.value.hint == f"--cluster 1x{max(minimum, smallest)}"
    assert ceilings(jobs, Cluster.parse("1x4"))["capacity"] is not None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("batch,1,two\n64,1,2\n", "header"),
        ("batch,1,2\n64,1,fast\n", "line 2, column 2"),
        ("batch,1,2\n64,1,-2\n", "line 2, column 2"),
        ("batch,1,2\n\nx,1,2\n", "line 3, column batch"),
        ("batch,1,2\n64,1\n", "line 2"),
    ],
)
def test_a_bad_profile_names_line_and_column(folder: Path, text: str, place: str) -> None:
    (folder / "profiles" / "m.csv").write_text(text)
    with pytest.raises(SpecError) as caught:
        read_profiles(folder / "profiles")
    assert caught.value.field == f"--profiles {folder / 'profiles' / 'm.csv'}, {place}"


def test_columns_of_a_profile_have_any_order(folder: Path) -> None:
    (folder / "profiles" / "m.csv").write_bytes("batch,4,1\n64,3.0,1.0\n".encode("utf-8-sig"))
    curve = read_profiles(folder / "profiles")["m", 64]
    assert curve.points == ((1, 1.0), (4, 3.0))
