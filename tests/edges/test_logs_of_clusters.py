"""Logs of real clusters, read to what happened and compared with simulations."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brim.cli.simulate import simulate
from brim.domain.course import Origin
from brim.domain.scaling import MOST_WORKERS
from brim.errors import SpecError
from brim.simulator.courses import course_of
from brim.simulator.happened import Scaling, as_it_happened, cluster_of, jobs_of
from brim.simulator.importers import philly
from brim.simulator.importers.formats import read_history
from brim.simulator.past_jobs import History
from brim.simulator.run import measure

REAL_SACCT = Path(__file__).parent / "logs" / "sacct-22.05.txt"
START = 1_790_000_000  # a moment in September 2026


@dataclass(frozen=True)
class Fact:
    """A job that a log is written of; its runs are (start, end, devices)."""

    name: str
    tenant: str
    submitted: int
    runs: tuple[tuple[int, int, int], ...]


def facts(seed: int, *, one_run: bool = False) -> list[Fact]:
    rng = random.Random(seed)
    found = []
    submitted = 0
    for number in range(1, 41):
        submitted += rng.randrange(0, 900)
        moment = submitted
        runs = []
        for _ in range(1 if one_run else rng.choice((1, 1, 2, 3))):
            start = moment + rng.randrange(0, 600)
            moment = start + rng.randrange(1, 3000)
            runs.append((start, moment, rng.choice((1, 2, 4, 8))))
        found.append(Fact(str(number), rng.choice("ab"), submitted, tuple(runs)))
    return found


def date(seconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(START + seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def as_sacct(jobs: Sequence[Fact]) -> str:
    lines = ["JobID|User|Account|State|Submit|Start|End|AllocTRES|AllocCPUS|NNodes"]
    for job in jobs:
        submitted = job.submitted
        for run, (start, end, devices) in enumerate(job.runs, start=1):
            state = "COMPLETED" if run == len(job.runs) else "REQUEUED"
            times = "|".join(date(time).replace(" ", "T") for time in (submitted, start, end))
            tres = f"billing=9,gres/gpu:a100={devices},gres/gpu={devices},mem=1G"
            lines.append(f"{job.name}|ada|{job.tenant}|{state}|{times}|{tres}|64|1")
            lines.append(f"{job.name}.batch||{job.tenant}|{state}|{times}|{tres}|64|1")
            submitted = end
    return "\n".join(lines) + "\n"


def as_swf(jobs: Sequence[Fact]) -> str:
    lines = ["; Version: 2.2", f";  UnixStartTime:  {START}", "; MaxProcs: 96", ";MaxNodes: 12"]

    def line(job: Fact, submit: int, wait: int, seconds: int, devices: int, status: int) -> None:
        queue = "ab".index(job.tenant)
        cells = (
            job.name,
            submit,
            wait,
            seconds,
            devices,
            -1,
            -1,
            devices,
            -1,
            -1,
            status,
            7,
            1,
            -1,
        )
        lines.append(" ".join(map(str, (*cells, queue, -1, -1, -1))))

    for job in jobs:
        start, end, devices = job.runs[0]
        if len(job.runs) == 1:
            line(job, job.submitted, start - job.submitted, end - start, devices, 1)
            continue
        total = sum(end - start for start, end, _ in job.runs)
        line(job, job.submitted, start - job.submitted, total, devices, 1)  # all of it
        before = job.submitted
        for run, (start, end, devices) in enumerate(job.runs, start=1):
            submit = job.submitted if run == 1 else -1
            line(
                job, submit, start - before, end - start, devices, 3 if run == len(job.runs) else 2
            )
            before = end
    return "\n".join(lines) + "\n"


def as_philly(jobs: Sequence[Fact]) -> str:
    def attempt(start: int, end: int, devices: int) -> dict[str, Any]:
        half = devices // 2
        nodes = [
            {"ip": "m1", "gpus": ["gpu"] * half},
            {"ip": "m2", "gpus": ["gpu"] * (devices - half)},
        ]
        return {"start_time": date(start), "end_time": date(end), "detail": nodes}

    return json.dumps(
        [
            {
                "status": "Pass",
                "vc": job.tenant,
                "jobid": f"application_{job.name}",
                "attempts": [attempt(*run) for run in job.runs],
                "submitted_time": date(job.submitted),
                "user": "ada",
            }
            for job in jobs
        ],
        indent=1,
    )


def as_helios(jobs: Sequence[Fact], *, tenant: str = "vc", zone: str = "") -> str:
    text = io.StringIO()
    names = f"job_id,user,{tenant},gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time"
    writer = csv.writer(text)
    writer.writerow([*names.split(","), "duration", "queue"])
    for job in jobs:
        ((start, end, devices),) = job.runs
        times = [date(time) + zone for time in (job.submitted, start, end)]
        writer.writerow([job.name, "u1", job.tenant, devices, 8, 1, "COMPLETED", *times, 0, 0])
    return text.getvalue()


def as_acme(jobs: Sequence[Fact]) -> str:
    return as_helios(jobs, tenant="type", zone="+00:00")


def write_pai(folder: Path, jobs: Sequence[Fact]) -> Path:
    """Each run as a task of two instances with parts of GPUs."""
    rows = [f"{job.name},i,u,Terminated,{START + job.submitted}.0,1.0" for job in jobs]
    tasks = [
        f"{job.name},worker,2.0,Terminated,{START + start}.0,{START + end}.0,600.0,29.2,{50.0 * devices},T4"
        for job in jobs
        for start, end, devices in job.runs
    ]
    folder.mkdir(exist_ok=True)
    (folder / "pai_job_table.csv").write_text("\n".join(rows))
    (folder / "pai_task_table.csv").write_text("\n".join(tasks))
    return folder


WRITERS: dict[str, Callable[[Sequence[Fact]], str]] = {
    "sacct": as_sacct,
    "swf": as_swf,
    "philly": as_philly,
    "helios": as_helios,
    "acme": as_acme,
}


def written(tmp_path: Path, form: str, jobs: Sequence[Fact]) -> Path:
    if form == "pai":
        return write_pai(tmp_path / "pai", jobs)
    path = tmp_path / f"{form}.log"
    path.write_text(WRITERS[form](jobs))
    return path


def read(tmp_path: Path, form: str, text: str, **options: Any) -> History:
    path = tmp_path / "log"
    path.write_text(text)
    return read_history(form, path, **options)


def run(*words: object) -> Result:
    return CliRunner().invoke(simulate, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("form", ["sacct", "swf", "philly", "helios", "acme", "pai"])
@pytest.mark.parametrize("seed", range(3))
def test_what_happened_adds_up_to_the_log(tmp_path: Path, form: str, seed: int) -> None:
    jobs = facts(seed, one_run=form in ("helios", "acme"))
    history = read_history(form, written(tmp_path, form, jobs))
    simulated = jobs_of(history)
    devices = cluster_of(history).devices
    happened = as_it_happened(history, simulated, devices=devices)
    figures = measure(happened)
    seconds = sum((end - start) * devices for job in jobs for start, end, devices in job.runs)
    first, last = jobs[0].submitted, max(job.runs[-1][1] for job in jobs)
    waits = [job.runs[0][0] - job.submitted for job in jobs]
    assert figures.jobs == len(jobs)
    assert sum(outcome.attained for outcome in happened.outcomes) == pytest.approx(seconds)
    assert sum(job.work for job in simulated) == pytest.approx(seconds)
    assert figures.makespan_seconds == pytest.approx(last - first)
    assert figures.average_wait_seconds == pytest.approx(sum(waits) / len(waits))
    times = {time for job in jobs for run in job.runs for time in run[:2]}
    most = max(
        sum(n for job in jobs for start, end, n in job.runs if start <= time < end)
        for time in times
    )
    assert history.peak == max(used for _, used, _ in happened.usage) == most
    assert devices == (96 if form == "swf" else most)
    course = course_of(happened, subject="", policy="", origin=Origin.RECORDED)
    assert sum(job.attained for job in course.jobs) == pytest.approx(seconds)
    tenants = {job.tenant for job in simulated}
    assert len(tenants) == (1 if form == "pai" else 2)


def test_compressed_logs_are_read_alike(tmp_path: Path) -> None:
    jobs = facts(1)
    for form in ("sacct", "philly"):
        plain = written(tmp_path, form, jobs)
        packed = tmp_path / f"{form}.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        assert read_history(form, packed) == read_history(form, plain)
    folder = write_pai(tmp_path / "pai", jobs)
    plain_history = read_history("pai", folder)
    for table in list(folder.iterdir()):
        (folder / f"{table.name}.gz").write_bytes(gzip.compress(table.read_bytes()))
        table.unlink()
    assert read_history("pai", folder) == plain_history


def test_real_sacct_adds_up_to_what_slurm_says(tmp_path: Path) -> None:
    """Printed by Slurm 22.05.8: requeues, preemptions, arrays, steps, and ids that are used again."""
    rows = list(csv.DictReader(io.StringIO(REAL_SACCT.read_text()), delimiter="|"))
    had_gpus = [row for row in rows if "." not in row["JobID"] and "gres/gpu=" in row["AllocTRES"]]

    def gpus(row: dict[str, str]) -> int:
        return int(row["AllocTRES"].partition("gres/gpu=")[2].partition(",")[0])

    seconds = sum(int(row["ElapsedRaw"]) * gpus(row) for row in had_gpus)
    jobs = {row["JobID"] for row in had_gpus}
    first = min(row["Submit"] for row in had_gpus)
    last = max(row["End"] for row in had_gpus)
    makespan = datetime.datetime.fromisoformat(last) - datetime.datetime.fromisoformat(first)
    out_folder = tmp_path / "out"
    run("--from", "sacct", REAL_SACCT, "--policy", "fifo-gang", "--out", out_folder)
    figures = json.loads((out_folder / "summary.json").read_text())["as_it_happened"]
    assert figures["jobs"] == len(jobs) == 7
    assert figures["makespan_seconds"] == makespan.total_seconds()
    used = figures["utilisation"] * figures["makespan_seconds"] * 8
    assert used == pytest.approx(seconds, abs=0.01)


HEADER = "JobID|User|Account|State|Submit|Start|End|AllocTRES|AllocCPUS|NNodes"
RAN = "2026-10-01T08:00:00|2026-10-01T08:00:00|2026-10-01T08:01:00"
WAITS = "2026-10-01T08:00:00|Unknown|Unknown"
RUNS = "2026-10-01T08:00:00|2026-10-01T08:00:30|Unknown"


@pytest.mark.parametrize(
    ("rows", "device_seconds"),
    [
        (["1|a|x|COMPLETED|{}|cpu=8,gres/gpu=4,gres/gpu:a100=4|8|1"], {"1": 240}),
        (["1|a|x|COMPLETED|{}|gres/gpu:a100=2,gres/gpu:v100=1|8|1"], {"1": 180}),
        (["1|a|x|COMPLETED|{}|cpu=8,gres/gpumem=80G,gres/gpuutil=50|8|1"], {"1": 480}),
        (["1|a|x|COMPLETED|{}||0|2"], {"1": 120}),
        # a GPU anywhere makes GPUs the devices
        (["1|a|x|COMPLETED|{}|cpu=8|8|1", "2|a|x|COMPLETED|{}|gres/gpu=1|8|1"], {"2": 60}),
        (["1_7|a|x|CANCELLED by 1000|{}|gres/gpu=1|8|1", f"1_[8-9%2]|a|x|PENDING|{WAITS}||1|1"], {"1_7": 60}),
        (["1+0|a|x|TIMEOUT|{}|gres/gpu=1|8|1", "1+1|a|x|TIMEOUT|{}|gres/gpu=2|8|1"], {"1+0": 60, "1+1": 120}),
        # an id that is used again is another job; one after a lost node is the same
        (["1|a|x|FAILED|{}|gres/gpu=1|8|1", "1|a|x|COMPLETED|{}|gres/gpu=2|8|1"], {"1": 120}),
        (["1|a|x|NODE_FAIL|{}|gres/gpu=1|8|1", "1|a|x|COMPLETED|{}|gres/gpu=2|8|1"], {"1": 180}),
        # it runs until the last time in the log
        ([f"1|a|x|RUNNING|{RUNS}|gres/gpu=1|8|1", "2|a|x|FAILED|{}|gres/gpu=1|8|1"], {"1": 30, "2": 60}),
        (["1|a|x|COMPLETED|1790000000|1790000000|1790000060|gres/gpu=1|8|1|"], {"1": 60}),
    ],
)  # fmt: skip
def test_sacct_counts_devices_once(
    tmp_path: Path, rows: list[str], device_seconds: dict[str, int]
) -> None:
    history = read(tmp_path, "sacct", "\n".join([HEADER, *(row.format(RAN) for row in rows)]))
    assert {job.job.id: job.device_seconds for job in history.jobs} == device_seconds


@pytest.mark.parametrize(
    ("zone", "times", "seconds", "words"),
    [
        (None, ("2026-10-25T01:00:00", "2026-10-25T04:00:00"), 3 * 3600, "in UTC (--zone"),
        ("Europe/Berlin", ("2026-10-25T01:00:00", "2026-10-25T04:00:00"), 4 * 3600, "in Europe/Berlin"),
        ("Europe/Berlin", ("2026-03-29T01:00:00", "2026-03-29T04:00:00"), 2 * 3600, "in Europe/Berlin"),
        # twice: the first one, but not before the start
        ("Europe/Berlin", ("2026-10-25T01:30:00", "2026-10-25T02:10:00"), 2400, "show twice"),
        ("Europe/Berlin", ("2026-10-25T02:50:00", "2026-10-25T02:10:00"), 1200, "show twice"),
        # never: as if clocks had not been put forward yet
        ("Europe/Berlin", ("2026-03-29T01:30:00", "2026-03-29T02:30:00"), 3600, "clocks skip"),
        ("Europe/Berlin", ("2026-10-25T01:00:00+0000", "2026-10-25T04:00:00Z"), 3 * 3600, ""),
    ],
)  # fmt: skip
def test_times_are_read_in_their_zone(
    tmp_path: Path, zone: str | None, times: tuple[str, str], seconds: float, words: str
) -> None:
    start, end = times
    text = f"{HEADER}\n1|a|x|COMPLETED|{start}|{start}|{end}|gres/gpu=1|8|1\n"
    history = read(tmp_path, "sacct", text, zone=zone)
    assert history.jobs[0].device_seconds == seconds
    assert words in " ".join(history.assumed)
    assert ("zone" in " ".join(history.assumed)) == bool(words)


SWF = "1 0 5 60 4 -1 -1 4 -1 -1 1 1 1 -1 1 -1 -1 -1"
JOB = (
    '{"status": "Pass", "vc": "v", "jobid": "j", "user": "u", "submitted_time": "2017-10-07 01:11:39",'
    ' "attempts": [%s]}'
)
ATTEMPT = '{"start_time": "2017-10-07 01:12:00", "end_time": %s, "detail": [{"ip": "m", "gpus": ["gpu0"]}]}'
HELIOS = "job_id,user,vc,gpu_num,state,submit_time,start_time,end_time"
HELIOS_ROW = "1,u,v,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:42:01"


@pytest.mark.parametrize(
    ("form", "text", "field", "words"),
    [
        ("sacct", "", "--from", "at least one"),
        ("sacct", "JobID       User\n1    a\n", "line 1", "a header with jobid, submit"),
        ("sacct", "1|a|x|COMPLETED\n", "line 1", "sacct -a -X -D -P"),
        ("sacct", f"{HEADER}\n1|a|x|COMPLETED|{RAN}|gres/gpu=1|8\n", "line 2", "got 9 cells, need 10"),
        ("sacct", f"{HEADER}\n1|a|x|COMPLETED|{RAN}|gres/gpu=1|8|1|more\n", "line 2", "got 11 cells"),
        ("sacct", f"{HEADER}\nx|a|x|COMPLETED|{RAN}|gres/gpu=1|8|1\n", "column jobid", "123_4"),
        ("sacct", f"{HEADER}\n1|a|x|FAILED|Ystday 10:20|{RAN[20:]}||8|1\n", "line 2, column submit", "since 1970"),
        ("sacct", f"{HEADER}\n1|a|x|COMPLETED|{RAN}||-1|1\n", "column alloccpus", "a whole number from 0"),
        ("sacct", f"{HEADER}\n1|a|x|COMPLETED|1e12|1e12|1e12|gres/gpu=1|8|1\n", "column submit", "seconds since"),
        ("sacct", f"{HEADER}\n1|a|x|COMPLETED|{RAN}|gres/gpu=99999999|8|1\n", "job 1", "at most 1,048,576"),
        ("sacct", f"{HEADER}\n1|a|x|PENDING|{WAITS}||1|1\n", "--from", "1 that never started"),
        ("sacct", "JobID|State|Submit|Start|End\n1|X|1|2|3\n", "line 1", "AllocTRES, AllocCPUS or NNodes"),
        ("sacct", HEADER + "x" * (1 << 20), "line 1", "1,048,576 characters"),
        ("swf", SWF.rsplit(" ", 1)[0], "line 1", "got 17 numbers, need 18"),
        ("swf", f"; a comment\n{SWF.replace('60', 'sixty')}", "line 2, column run time", "'sixty'"),
        ("swf", SWF.replace("60", "nan"), "column run time", "a number"),
        ("swf", SWF.replace("60", "1e300"), "column run time", "1e+11 or less"),
        ("philly", "{}", "--from", "a JSON list of jobs"),
        ("philly", "[1]", "job 1", "an object with submitted_time"),
        ("philly", "[{}, {", "job 1", "an object with submitted_time"),
        ("philly", f"[{JOB % ''}", "--from", "a list without an end"),
        ("philly", f"[{JOB % ''}, nonsense]", "--from", "'nonsense]'"),
        ("philly", f"[{JOB % (ATTEMPT % 7)}]", "job 1, end_time", "need a text"),
        ("philly", f"[{JOB % (ATTEMPT % '1e400')}]", "job 1, end_time", "need a text"),
        ("philly", f"[{JOB % 3}]", "job 1", "an object with start_time"),
        ("philly", "[" * 100_000, "--from", "lists in lists"),
        ("helios", HELIOS.replace("vc,", "") + "\n", "line 1", "a header with"),
        ("helios", f"{HELIOS}\n{HELIOS_ROW.replace(',2,', ',2.5,')}", "line 2, column gpu_num", "whole number"),
        ("helios", f"{HELIOS}\n{HELIOS_ROW},", "--from", ""),
        ("acme", f"{HELIOS}\n{HELIOS_ROW}", "line 1", "type"),
        ("pai", "", "--from", "a folder"),
    ],
)  # fmt: skip
def test_bad_logs_are_refused_with_their_place(
    tmp_path: Path, form: str, text: str, field: str, words: str
) -> None:
    if not words:
        assert len(read(tmp_path, form, text).jobs) == 1  # separators at the end of a line
        return
    with pytest.raises(SpecError) as caught:
        read(tmp_path, form, text)
    error = caught.value
    assert error.field.startswith("--from")
    assert field in error.field
    assert words in str(error)
    assert error.need


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\x1f\x8b\x08\x00\xff", "compression is broken"), (b"\xff\xfe1", "not text in UTF-8")],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    for form in ("sacct", "swf", "philly", "helios"):
        with pytest.raises(SpecError, match=words):
            read_history(form, path)
    with pytest.raises(SpecError, match="nowhere"):
        read_history("swf", tmp_path / "nowhere")
    with pytest.raises(SpecError, match="pai_task_table"):
        read_history("pai", tmp_path)


def test_oddities_are_counted_aloud(tmp_path: Path) -> None:
    backwards = ATTEMPT % '"2017-10-07 01:10:00"'
    lost, running = ATTEMPT % "null", ATTEMPT % '"None"'
    ended = ATTEMPT % '"2017-10-07 01:13:00"'
    never = JOB % (ATTEMPT % '"2017-10-07 01:13:00"').replace('"2017-10-07 01:12:00"', "null")
    jobs = [JOB % backwards, JOB % f"{lost}, {ended}", JOB % running, JOB % "", never]
    history = read(tmp_path, "philly", f"[{', '.join(jobs)}]")
    assert [job.device_seconds for job in history.jobs] == [60, 60]
    text = "\n".join(history.assumed)
    assert "1 without a run that ends after its start, 2 that never started" in text
    assert "attempts left out that have no start, or no end before the next one (2)" in text
    assert "had not ended have what they had until the log ends (1)" in text
    swf = read(
        tmp_path, "swf", f"{SWF}\n{SWF.replace(' 5 60 4', ' -1 60 -1')}\n{SWF.replace('60', '0')}"
    )
    text = "\n".join(swf.assumed)
    assert "without a known wait: started when submitted (1)" in text
    assert "had as many as requested (1)" in text
    assert "1 that ran for no time" in text


def test_long_lists_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "philly", facts(2))
    whole = read_history("philly", path)
    monkeypatch.setattr(philly, "_CHUNK", 7)
    assert read_history("philly", path) == whole
    monkeypatch.setattr(philly, "_MOST_JOB", 50)
    with pytest.raises(SpecError, match="JSON list"):
        read_history("philly", path)


def test_scaling_says_on_how_many_devices(tmp_path: Path) -> None:
    history = read_history("sacct", written(tmp_path, "sacct", facts(4)))
    for linear, fixed, past in zip(
        jobs_of(history), jobs_of(history, scaling=Scaling.FIXED), history.jobs, strict=True
    ):
        assert (linear.minimum, linear.ceiling) == (1, past.peak)
        assert (fixed.minimum, fixed.ceiling) == (past.peak, past.peak)
        assert linear.shortest == fixed.shortest == pytest.approx(past.device_seconds / past.peak)
        assert linear.submitted >= 0
        assert linear.deadline is None


def test_policies_stand_beside_what_happened(tmp_path: Path) -> None:
    log = written(tmp_path, "sacct", facts(5))
    out_folder = tmp_path / "out"
    found = run("--from", "sacct", log, "--policy", "brim,fifo-gang", "--out", out_folder)
    rows = [line for line in found.stdout.splitlines() if "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["as it happened", "brim", "fifo-gang"]
    assert "mean wait h" in found.stdout
    assert "deadlines met" not in found.stdout
    summary = json.loads((out_folder / "summary.json").read_text())
    assert set(summary["policies"]) == {"brim", "fifo-gang"}
    assert summary["assumed"]
    for sentence in summary["assumed"]:
        assert f"assumed: {sentence}\n" in found.stderr
    jobs = list(csv.DictReader(io.StringIO((out_folder / "jobs.csv").read_text())))
    assert sum(job["policy"] == "as it happened" for job in jobs) == 40
    page = (out_folder / "index.html").read_text()
    assert "line: as it happened" in page
    assert "Deadlines met" not in page
    assert all(sentence.partition("(")[0] in page for sentence in summary["assumed"])
    as_json = run("--from", "sacct", log, "--policy", "brim", "--json")
    assert json.loads(as_json.stdout)["as_it_happened"] == summary["as_it_happened"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trace", "t.csv"), "--from: got --trace as well"),
        (("--profiles", "p"), "--profiles: got p, need jobs with models"),
        (("--zone", "Europe/Berlni"), "did you mean 'Europe/Berlin'"),
        (("--zone", "../etc/passwd"), "need a time zone of this host"),
        (("--cluster", "1x2", "--scaling", "fixed"), "a minimum of 8 workers, need at most 2"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    log = written(tmp_path, "sacct", facts(6))
    with pytest.raises(SpecError) as caught:
        run("--from", "sacct", log, *words)
    assert message in str(caught.value)
    for option, value in (("--zone", "UTC"), ("--scaling", "fixed")):
        with pytest.raises(SpecError, match=f"{option}: got {value}, need --from"):
            run(option, value)


def test_clusters_have_a_bound(tmp_path: Path) -> None:
    history = read(tmp_path, "swf", f"; MaxProcs: 99999999999\n{SWF}")
    with pytest.raises(SpecError, match="99,999,999,999 devices, need at most 1,048,576"):
        cluster_of(history)


def test_a_small_cluster_is_said_to_be_small(tmp_path: Path) -> None:
    log = written(tmp_path, "sacct", facts(6))
    found = run("--from", "sacct", log, "--cluster", "1x4", "--policy", "fifo-gang", "--json")
    assert any("more than the cluster's 4" in text for text in json.loads(found.stdout)["assumed"])


def test_many_tenants_share_an_area(tmp_path: Path) -> None:
    lines = [f"{n}|a|tenant{n}|COMPLETED|{RAN}|gres/gpu={n}|8|1" for n in range(1, 13)]
    log = tmp_path / "log"
    log.write_text("\n".join([HEADER, *lines]))
    out_folder = tmp_path / "out"
    run("--from", "sacct", log, "--policy", "fifo-gang", "--out", out_folder)
    page = (out_folder / "index.html").read_text()
    assert "Devices by tenant, as it happened" in page
    assert "3 others" in page
    assert (out_folder / "tenants_as_it_happened.png").exists()


# The rows that the READMEs of the traces show.
PHILLY_SHOWN = JOB % ", ".join(
    json.dumps(
        {
            "start_time": start,
            "end_time": end,
            "detail": [{"ip": "m47", "gpus": [f"gpu{number}" for number in range(8)]}],
        }
    )
    for start, end in (
        ("2017-10-07 01:12:09", "2017-10-07 01:13:23"),
        ("2017-10-07 01:13:30", "2017-10-09 06:53:12"),
    )
)
HELIOS_SHOWN = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,1,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""
SEREN_SHOWN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778469,u5907,1,8,128,Other,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,2023-03-01 01:09:04+08:00,2693,13,21544.0
"""  # noqa: E501
KALOS_SHOWN = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
dlc1t2ypl09b8qtp,uf794,8,64,960,1000,100.0,Other,CANCELLED,2023-05-17 11:28:42+00:00,2023-05-17 11:28:54+00:00,2023-05-17 11:30:04+00:00,,2023-05-17 11:30:04+00:00,82,12.0,5248.0
"""  # noqa: E501


@pytest.mark.parametrize(
    ("form", "text", "device_seconds"),
    [
        ("philly", f"[{PHILLY_SHOWN}]", [8 * (74 + 2 * 86400 + 5 * 3600 + 39 * 60 + 42)]),
        ("helios", HELIOS_SHOWN, [36848, 4 * 249, 675233]),  # its column duration
        ("acme", SEREN_SHOWN, [936, 21544]),  # its column gpu_time
        # Its gpu_time is from the submission: 18 s and 82 s of 64 devices, for 8 s and 70 s of work.
        ("acme", KALOS_SHOWN, [1152 - 10 * 64, 5248 - 12 * 64]),
    ],
)
def test_published_rows_have_their_device_time(
    tmp_path: Path, form: str, text: str, device_seconds: list[int]
) -> None:
    history = read(tmp_path, form, text)
    assert [job.device_seconds for job in history.jobs] == device_seconds


@pytest.mark.parametrize("form", [*WRITERS, "pai"])
def test_damaged_logs_are_read_or_refused(tmp_path: Path, form: str) -> None:
    rng = random.Random(form)
    path = written(tmp_path, form, facts(7, one_run=form in ("helios", "acme"))[:8])
    file = path / "pai_task_table.csv" if form == "pai" else path
    text = file.read_text()
    signs = (*'-\x00"|,;[é\n\ud7ff', "", "9" * 30, "1e308", "nan")
    refused = 0
    for _ in range(60):
        place = rng.randrange(len(text))
        damaged = text[:place] + rng.choice(signs) + text[place + rng.choice((0, 1, 40)) :]
        file.write_text(damaged)
        try:
            jobs = jobs_of(read_history(form, path))
        except SpecError:
            refused += 1
            continue
        assert all(0 < job.work < 1e18 and 1 <= job.requested <= MOST_WORKERS for job in jobs)
    assert 0 < refused < 60
