"""Jobs of Kubernetes by brim's own verbs: written as ElasticJobs, and read as a scheduler's."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from brim.cli.__main__ import cli
from brim.cli.submit import _choose_pods
from brim.domain.course import Change, sentence_of
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.submission import Submission, fingerprint
from brim.domain.workload import Priority
from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.cluster_client import KubeJobs, read_line
from brim.kubernetes.namespace_news import NamespaceNews
from brim.kubernetes.objects.elastic_jobs import code_in, read_job
from brim.kubernetes.objects.schemas import crds, in_yaml
from brim.kubernetes.objects.status import status_of
from brim.kubernetes.objects.templates import read_templates
from brim.kubernetes.objects.written_jobs import LARGEST_CODE, PodChoices, code_map, elastic_job
from brim.wire.cluster import JobView
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane
from elastic_jobs import MADE, everything, submitted

FILE = """
import brim

def model(): ...
def dataset(split): ...
def loss(outputs, batch): ...
def optimizer(model): ...
"""


def as_made(thing: dict[str, Any]) -> dict[str, Any]:
    """An object as a server gives it."""
    meta = {**thing["metadata"], "uid": "u", "generation": 1, "creationTimestamp": MADE}
    return json.loads(json.dumps(thing | {"metadata": meta}))  # type: ignore[no-any-return]


# What is written ----------------------------------------------------------------------------------


def test_commands_that_start_again_round_trip() -> None:
    spec = JobSpec(command=("python", "train.py"), restart=True, grace=9.0)
    request = Submission(spec=spec, fingerprint="")
    written = as_made(elastic_job("flights", "team", request))
    fields = written["spec"]
    assert (fields["command"], fields["restart"], fields["grace"]) == (
        list(spec.command),
        True,
        "9s",
    )
    understood = submitted(written).submission
    names = ("command", "restart", "grace", "exact", "epochs", "workers")
    assert [getattr(understood.spec, name) for name in names] == [
        getattr(spec, name) for name in names
    ]


@pytest.mark.parametrize("mode", ["planned", "opportunistic"])
def test_submissions_round_trip(mode: str) -> None:
    thing = everything()
    thing["spec"]["mode"] = mode
    request = submitted(thing).submission
    written = as_made(elastic_job("flights", "team", request))
    spec = written["spec"]
    fields = everything()["spec"].keys()
    pods = {"template", "masterTemplate", "volumeClaim", "priorityClassName", "suspend", "gang"}
    usual = {
        "exact",
        "transport",
        "embeddings",
        "delay",
        "servers",
        "mode",
        "restart",
    }  # said, and so by default
    assert fields - spec.keys() <= pods | usual
    found = read_job(written)
    assert isinstance(found, Submission), found
    assert found.spec == request.spec
    assert found.anywhere == request.anywhere == (mode == "opportunistic")
    assert found.processes == request.processes == 2
    assert (found.deadline, found.tenant, found.priority) == (
        request.deadline, request.tenant, request.priority,
    )  # fmt: skip


def test_a_default_job_has_an_empty_object() -> None:
    spec = JobSpec(file="a.py", workers=WorkerRange(minimum=1, maximum=2), parameters={}, spares=0)
    submission = Submission(spec=spec, fingerprint=fingerprint(spec, b""))
    written = elastic_job("a", "team", submission)
    assert written["spec"] == {
        "file": "a.py", "workers": {"min": 1, "max": 2}, "priority": Priority.PREEMPTIBLE.name.lower(),
    }  # fmt: skip


def test_choices_about_pods_are_those_of_the_object() -> None:
    request = submitted(everything()).submission
    choices = PodChoices(image="images/flights:3", mode="opportunistic", gang=True)
    written = as_made(elastic_job("flights", "team", request, choices))
    chosen = read_templates(written["spec"])
    assert (chosen.image, chosen.anywhere, chosen.gang) == ("images/flights:3", True, True)


@pytest.mark.parametrize(("micro_batches", "expected"), [(0, 32), (64, 64)])
def test_processes_of_a_pod_have_micro_batches_each(micro_batches: int, expected: int) -> None:
    spec = JobSpec(
        file="a.py",
        workers=WorkerRange(minimum=1, maximum=4),
        parameters={},
        micro_batches=micro_batches,
        spares=0,
    )
    submission = Submission(spec=spec, fingerprint=fingerprint(spec, b""))
    choices = PodChoices(processes_per_worker=8)
    written = as_made(elastic_job("flights", "team", submission, choices))
    found = read_job(written)
    assert isinstance(found, Submission), found
    assert (found.processes, found.spec.micro_batches) == (8, expected)
    assert found.spec.workers == WorkerRange(minimum=1, maximum=4)
    assert ("microBatches" in written["spec"]) == bool(micro_batches)


def test_too_few_micro_batches_for_processes_are_refused() -> None:
    workers = WorkerRange(minimum=1, maximum=4)
    spec = JobSpec(file="a.py", workers=workers, parameters={}, micro_batches=16, spares=0)
    submission = Submission(spec=spec, fingerprint=fingerprint(spec, b""))
    with pytest.raises(SpecError, match="--micro-batches: got 16 for up to 32 workers"):
        elastic_job("flights", "team", submission, PodChoices(processes_per_worker=8))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"image": "a:1", "mode": None, "gang": None},
            "--image: got 'a:1', need no such option: jobs of this",
        ),
        (
            {"image": None, "mode": "planned", "gang": True},
            "--mode: got 'planned', need no such option",
        ),
        (
            {"image": None, "mode": None, "gang": True},
            "--gang: got the option, need no such option",
        ),
        ({"processes_per_worker": 8}, "--processes-per-worker: got 8, need no such option"),
    ],
)
def test_pod_choices_need_pods(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as wrong:
        _choose_pods(None, options)
    assert expected in str(wrong.value)
    _choose_pods(None, dict.fromkeys(options))


def test_local_paths_are_refused_by_option() -> None:
    spec = JobSpec(file="a.py", workers=WorkerRange(minimum=1, maximum=2), parameters={})
    submission = Submission(spec=dataclasses.replace(spec, checkpoints="here"), fingerprint="f")
    with pytest.raises(SpecError, match="--checkpoints: got 'here', need a path from the root, or"):
        elastic_job("a", "team", submission)


def test_code_that_no_object_can_have_is_refused() -> None:
    assert code_in(code_map("a", "team", b"x" * 99)) == b"x" * 99
    with pytest.raises(SpecError, match="FILE: got 1,025 KiB of code"):
        code_map("a", "team", b"x" * (LARGEST_CODE + 1024))


@pytest.mark.parametrize(
    "sentence",
    [
        "submitted", "workers 0 -> 2 (first-share: 2 of 4 are free)", "failed (exit code 1: (in f))",
        "done", "workers 2 -> 1 (reclaim)",
    ],
)  # fmt: skip
def test_story_lines_are_read_as_written(sentence: str) -> None:
    assert sentence_of(read_line(f"2026-11-24T17:00:00Z {sentence}")) == sentence


# By the verbs, on a server ------------------------------------------------------------------------


def wait_until_served(api_server: ControlPlane) -> None:
    """Wait for the kind of jobs: a server takes a definition some time before it serves it."""
    end = time.monotonic() + 60.0
    while True:
        try:
            api_server.api.ask("/apis/brim.dev/v1alpha1/elasticjobs")
            return
        except EnvironmentFault:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


@pytest.fixture
def home(
    api_server: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The URL of a namespace without jobs yet; the directory has a training file."""
    text = "---\n".join(map(in_yaml, crds().values()))
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    wait_until_served(api_server)
    api_server.api.ask("/api/v1/namespaces", method="POST", body={"metadata": {"name": namespace}})
    for name in [name for name in os.environ if name.startswith("BRIM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("flights.py").write_text(FILE)
    return f"kubernetes://{namespace}"


def invoked(url: str, *words: str) -> Result:
    previous = {name: os.environ.get(name) for name in ("BRIM_SERVER", "BRIM_HOME")}
    try:
        return CliRunner().invoke(cli, ["--server", url, *words])
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def object_of(plane: ControlPlane, url: str, name: str) -> dict[str, Any]:
    namespace = url.rpartition("/")[2]
    path = f"/apis/brim.dev/v1alpha1/namespaces/{namespace}/elasticjobs/{name}"
    return plane.api.ask(path)  # type: ignore[no-any-return]


def test_a_job_is_handed_in_with_its_code(api_server: ControlPlane, home: str) -> None:
    done = invoked(home, "submit", "flights.py", "--workers", "1:4", "--set", "rate=0.1", "--epochs", "2",
                "--checkpoint-every", "30s", "--env", "A=b")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "flights-1\n"
    assert f"brim --server {home} status flights-1" in done.stderr
    thing = object_of(api_server, home, "flights-1")
    code = api_server.api.ask(
        f"/api/v1/namespaces/{home.rpartition('/')[2]}/configmaps/flights-1-code"
    )
    assert code["metadata"]["ownerReferences"][0]["uid"] == thing["metadata"]["uid"]
    found = read_job(thing, code=code_in(code))
    assert isinstance(found, Submission), found
    assert found.spec.parameters == {"rate": "0.1"}
    assert found.spec.env == {"A": "b"}
    assert (found.spec.epochs, found.spec.checkpoint_every.seconds) == (2, 30.0)
    assert found.spec.workers == WorkerRange(minimum=1, maximum=4)
    assert invoked(home, "submit", "flights.py").stdout == "flights-2\n"


def test_a_key_typed_twice_is_one_job(home: str) -> None:
    first = invoked(home, "submit", "flights.py", "--key", "nightly")
    repeat = invoked(home, "submit", "flights.py", "--key", "nightly")
    assert first.exit_code == repeat.exit_code == 0, repeat.stderr
    assert first.stdout == repeat.stdout
    assert len(json.loads(invoked(home, "jobs", "--json").stdout)["jobs"]) == 1


def test_a_dry_run_prints_objects_only(api_server: ControlPlane, home: str) -> None:
    words = ["submit", "flights.py", "--to", home, "--image", "images/flights:3", "--dry-run"]
    words += ["--mode", "opportunistic", "--gang", "--processes-per-worker", "2"]
    done = CliRunner().invoke(cli, words)
    os.environ.pop("BRIM_SERVER", None)
    assert done.exit_code == 0, done.stderr
    assert [manifest["kind"] for manifest in yaml.safe_load_all(done.stdout)] == [
        "ConfigMap",
        "ElasticJob",
    ]
    assert "no active jobs" in invoked(home, "jobs").stderr
    api_server.kubectl("apply", "-f", "-", stdin=done.stdout)
    spec = object_of(api_server, home, "flights")["spec"]
    assert (spec["file"], spec["processesPerWorker"]) == ("flights.py", 2)
    chosen = read_templates(spec)
    assert (chosen.image, chosen.anywhere, chosen.gang) == ("images/flights:3", True, True)


def record(plane: ControlPlane, url: str, name: str, **changes: Any) -> None:
    """Have an object the status that an operator gives it."""
    thing = object_of(plane, url, name)
    namespace = thing["metadata"]["namespace"]
    code = plane.api.ask(f"/api/v1/namespaces/{namespace}/configmaps/{name}-code")
    job = dataclasses.replace(
        submitted(thing, code=code_in(code)), id=f"{namespace}.{name}", **changes
    )
    story = [read_change("workers", 0, 2, "first-share", "2 of 4 are free")]
    status = status_of(job, generation=1, before=None, now=job.submitted + 5, story=story)
    path = f"/apis/brim.dev/v1alpha1/namespaces/{namespace}/elasticjobs/{name}/status"
    plane.api.ask(path, method="PATCH", body={"status": status}, kind=PATCH)


def read_change(event: str, first_count: int, last_count: int, reason: str, detail: str) -> Any:
    return Change(1_764_003_605.0, "flights-1", event, first_count, last_count, reason, detail)


def test_the_verbs_that_look(api_server: ControlPlane, home: str) -> None:
    invoked(home, "submit", "flights.py", "--workers", "1:4")
    assert "flights-1: submitted, 0 workers, step 0" in invoked(home, "status", "flights-1").stdout
    record(api_server, home, "flights-1")
    listed = invoked(home, "jobs").stdout.splitlines()
    assert listed[0].split() == ["job", "state", "tenant", "workers", "steps", "deadline", "finish"]
    assert listed[1].split()[:3] == ["flights-1", "submitted", "default"]
    looked = invoked(home, "status", "flights-1")
    assert looked.exit_code == 0, looked.stderr
    assert f"records in {home}/flights-1" in looked.stdout
    facts = json.loads(invoked(home, "status", "flights-1", "--json").stdout)
    assert (facts["job"], facts["minimum"], facts["maximum"]) == ("flights-1", 1, 4)
    explanation = invoked(home, "explain", "flights-1")
    assert explanation.stdout.rstrip().endswith("workers 0 -> 2 (first-share: 2 of 4 are free)")
    assert invoked(home, "logs", "flights-1").exit_code == 0
    wrong = invoked(home, "status", "flight-1", "--wait")
    assert wrong.exit_code == 2
    assert "flights-1" in invoked(home, "explain", "flight-1").stderr


def test_damaged_record_hides_no_other_job(api_server: ControlPlane, home: str) -> None:
    for _ in range(2):
        invoked(home, "submit", "flights.py")
    namespace = home.rpartition("/")[2]
    path = f"/apis/brim.dev/v1alpha1/namespaces/{namespace}/elasticjobs/flights-1/status"
    damage = {"status": {"record": "none", "phase": "Running"}}
    api_server.api.ask(path, method="PATCH", body=damage, kind=PATCH)
    listed = invoked(home, "jobs")
    assert listed.exit_code == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [
        "flights-1",
        "flights-2",
    ]
    assert "the record of this job is damaged" in invoked(home, "status", "flights-1").stdout
    assert invoked(home, "cancel", "flights-1").exit_code == 0


def test_news_of_a_namespace_are_what_has_changed(api_server: ControlPlane, home: str) -> None:
    invoked(home, "submit", "flights.py")
    jobs = KubeJobs(home.rpartition("/")[2], notice=print)
    first = jobs.news()
    assert not first.complete
    assert [view.job for view in first.jobs] == ["flights-1"]
    invoked(home, "submit", "flights.py")
    record(api_server, home, "flights-1")
    second = jobs.news(first.place, wait=30.0)
    assert second.complete
    assert [view.job for view in second.jobs] == ["flights-1", "flights-2"]
    assert [(line.job, line.after) for line in second.changes] == [("flights-1", 2)]
    invoked(home, "cancel", "flights-2")
    third = jobs.news(second.place, wait=30.0)
    assert (third.forgotten, third.jobs, third.changes) == (["flights-2"], [], [])
    assert not jobs.news(second.place).complete
    assert (jobs.plan(), jobs.log_lines("flights-1").lines) == ([], [])


def test_short_stories_repeat_no_line() -> None:
    lines = [Change(float(number), "a") for number in range(6)]
    news, views = NamespaceNews(), dict[str, JobView]()
    place = news.since("", views, {"a": tuple(lines[:3])}, timestamp=0.0).place
    for story, changes in ((lines[:3], []), (lines[2:5], lines[3:5]), (lines[5:], lines[5:])):
        answer = news.since(place, views, {"a": tuple(story)}, timestamp=0.0)
        place = answer.place
        assert answer.changes == changes


def test_the_verbs_that_change(api_server: ControlPlane, home: str) -> None:
    invoked(home, "submit", "flights.py", "--workers", "1:4")
    record(api_server, home, "flights-1")
    resized = invoked(home, "resize", "flights-1", "2:8").stderr
    assert "asked for 2:8 workers, has none now; its scheduler has not decided yet" in resized
    assert object_of(api_server, home, "flights-1")["spec"]["workers"] == {"min": 2, "max": 8}
    assert invoked(home, "suspend", "flights-1").exit_code == 0
    assert object_of(api_server, home, "flights-1")["spec"]["suspend"] is True
    assert "(held)" in invoked(home, "status", "flights-1").stdout
    assert invoked(home, "resume", "flights-1").exit_code == 0
    assert object_of(api_server, home, "flights-1")["spec"]["suspend"] is False
    refused = invoked(home, "resize", "flights-1", "0")
    assert refused.exit_code == 2
    assert invoked(home, "forget", "flights-1").exit_code != 0
    assert invoked(home, "cancel", "flights-1").exit_code == 0
    assert "need the id of a job" in invoked(home, "cancel", "flights-1").stderr


@pytest.mark.parametrize("words", [["tenants"], ["nodes"], ["drain", "n1"]])
def test_a_verb_that_is_for_kubectl_says_so(words: list[str], home: str) -> None:
    done = invoked(home, *words)
    assert done.exit_code == 2
    assert "kubectl" in done.stderr or "for kubectl" in done.stderr


def test_a_namespace_that_there_is_not(home: str) -> None:
    done = invoked("kubernetes://nowhere", "submit", "flights.py")
    assert done.exit_code == 1
    assert "nowhere" in done.stderr
    assert "hint:" in done.stderr
    assert invoked("kubernetes://No_Name", "jobs").exit_code == 2
