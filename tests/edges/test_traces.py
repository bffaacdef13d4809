from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import SpecError
from brim.simulator.compare import find_profiles
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


def test_cells_that_are_empty_nan_or_zero_are_not_runnable(folder: Path) -> None:
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


def test_best_effort_jobs_have_no_deadline_and_order_is_by_submission(folder: Path) -> None:
    trace = folder / "trace.csv"
    trace.write_text(GENERATED)
    first, second = read_trace(trace, read_profiles(folder / "profiles"))
    assert (first.id, first.deadline, second.deadline) == ("1", None, 90.0)


def test_without_profiles_jobs_scale_linearly_up_to_their_request(folder: Path) -> None:
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
