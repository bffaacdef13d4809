"""ElasticJobs and Tenants on a real API server: accepted and refused ones, and kubectl's view."""

from __future__ import annotations

import json
import re
import runpy
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.domain.course import Change
from brim.domain.estimates import Estimate, Estimates
from brim.domain.lifecycle import Life, Phase
from brim.domain.schedule import Judgement, Standing
from brim.domain.scheduled_job import Allocation, JobProgress, ScheduledJob
from brim.domain.submission import Submission
from brim.errors import EnvironmentFault
from brim.kubernetes.objects.elastic_jobs import new_job, read_job
from brim.kubernetes.objects.identities import GROUP, KIND, VERSION
from brim.kubernetes.objects.schemas import MAY_CHANGE
from brim.kubernetes.objects.status import INVALID_SPEC, Stall, stalled_status, status_of
from brim.kubernetes.objects.tenants import read_tenants
from brim_lab.kubernetes.control_plane import ControlPlane
from edges.test_nonsense import ODD, twisted
from elastic_jobs import elastic_job, everything
from kubernetes.test_elastic_jobs import BUNDLE, HOSTILE, tenant

ROOT = Path(__file__).parents[2]
JOBS = f"/apis/{GROUP}/{VERSION}/namespaces/default/elasticjobs"
TENANTS = f"/apis/{GROUP}/{VERSION}/tenants"
MERGE = "application/merge-patch+json"
NOW = 1_796_000_000.0
ON_SERVER = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="session")
def server(api_server: ControlPlane) -> ControlPlane:
    """An API server that knows our kinds."""
    folder = runpy.run_path(str(ROOT / "docs" / "reference" / "make_crds.py"))["FOLDER"]
    api_server.kubectl("apply", "--server-side", "-f", str(folder))
    api_server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    return api_server


@pytest.fixture
def name() -> str:
    return f"job-{secrets.token_hex(4)}"


def answer(server: ControlPlane, thing: Any, path: str = JOBS) -> dict[str, Any] | str:
    """The object as the server has it, or why it refuses that; nothing is kept."""
    try:
        answered: dict[str, Any] = server.api.ask(f"{path}?dryRun=All", method="POST", body=thing)
    except EnvironmentFault as refused:
        found = re.search(r": (400|422): (\{.*\})", str(refused), re.DOTALL)
        if found is None:
            raise
        return str(json.loads(found[2])["message"])
    return answered


def as_written(thing: dict[str, Any]) -> dict[str, Any]:
    """Without the fields that servers add."""
    meta = {"name": thing["metadata"]["name"], "namespace": "default"}
    return {**thing, "metadata": meta}


def applied(server: ControlPlane, name: str, **spec: Any) -> dict[str, Any]:
    thing: dict[str, Any] = server.api.ask(
        JOBS, method="POST", body=as_written(elastic_job(name, **spec))
    )
    return thing


def job_of(thing: dict[str, Any]) -> ScheduledJob:
    submission = read_job(thing)
    assert isinstance(submission, Submission), submission
    return new_job(thing, submission, id=f"default.{thing['metadata']['name']}", number=1)


def write_status(server: ControlPlane, name: str, status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = server.api.ask(
        f"{JOBS}/{name}/status", method="PATCH", body={"status": status}, kind=MERGE
    )
    return found


# What is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thing",
    [
        elastic_job(),
        everything(),
        elastic_job(file=None, command=["python", "loop.py"], bundle=BUNDLE, deadlineIn="1h30m"),
        elastic_job(microBatches="auto", checkpointEvery=50),
        elastic_job("a" * 50, suspend=True),
    ],
)
def test_what_is_right_is_taken_and_understood(server: ControlPlane, thing: dict[str, Any]) -> None:
    thing["spec"].pop("tenant", None)
    if thing["spec"].get("deadline"):
        thing["spec"]["deadline"] = "2031-01-01T08:00:00Z"
    reply = answer(server, as_written(thing))
    assert isinstance(reply, dict), reply
    previous, current = read_job(thing, code=None), read_job(reply, code=None)
    if isinstance(previous, Submission):
        assert isinstance(current, Submission)
        assert (current.spec, current.fingerprint) == (previous.spec, previous.fingerprint)
    else:  # its bundle is not there
        assert list(map(str, current if isinstance(current, tuple) else ())) == list(
            map(str, previous)
        )


@ON_SERVER
@given(
    thing=HOSTILE.filter(lambda thing: isinstance(thing, dict))
    | st.builds(
        lambda name, value: elastic_job(**{name: value}),
        st.sampled_from(sorted(everything()["spec"])),
        st.sampled_from(ODD) | st.integers() | st.text() | st.floats(),
    )
)
def test_accepted_object_is_a_job_or_names_fields(
    server: ControlPlane, thing: dict[str, Any]
) -> None:
    try:
        body = json.loads(json.dumps(thing, allow_nan=False))
    except (ValueError, OverflowError):
        return  # no client can send it
    body_sent = {**body, "apiVersion": f"{GROUP}/{VERSION}", "kind": KIND}
    body_sent["metadata"] = {"name": "flights", "namespace": "default"}
    reply = answer(server, body_sent)
    if isinstance(reply, str):
        # What is refused there is no job to us either.
        full = {**body_sent, "metadata": elastic_job(namespace="default")["metadata"]}
        assert not isinstance(read_job(full), Submission), reply
    else:
        found = read_job(reply)
        for problem in found if isinstance(found, tuple) else ():
            assert problem.field.startswith("spec"), problem


@ON_SERVER
@given(
    thing=twisted(tenant("ads", "team", cohort="c", guaranteed=8, exclusive=2, limit=12, weight=2))
)
def test_a_tenant_that_the_server_takes_is_one(server: ControlPlane, thing: Any) -> None:
    try:
        spec = json.loads(json.dumps(thing["spec"], allow_nan=False))
    except (ValueError, TypeError, KeyError):
        return
    body_sent = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Tenant", "metadata": {"name": "ads"}}
    body_sent |= {"spec": spec}
    reply = answer(server, body_sent, TENANTS)
    if isinstance(reply, str):
        assert not read_tenants([body_sent]).tenants, reply
    else:
        directory = read_tenants([reply])
        assert directory.tenants, directory.problems


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"file": None}, "spec.file: Invalid value: need either file or command"),
        ({"command": ["python"]}, "need either file or command"),
        ({"workers": {"min": 3, "max": 2}}, "spec.workers.min: Invalid value: need min <= max"),
        ({"workers": {"min": 0, "max": 2}}, "spec.workers.min"),
        ({"workers": {}}, "spec.workers.max: Required value"),
        ({"workers": None}, "spec.workers: Required value"),
        ({"deadline": "2031-01-01T00:00:00Z", "deadlineIn": "2h"}, "need either deadline or deadlineIn"),
        ({"deadline": "tomorrow"}, "spec.deadline"),
        ({"deadlineIn": "2 hours"}, "need a duration above 0, such as 10m or 1h30m"),
        ({"memory": "4Gi"}, 'spec.memory: Invalid value: "4Gi": need a text such as 4GiB, or none'),
        ({"checkpointEvery": "soon"}, "need a whole number from 0, or a text such as 50 or 30s"),
        ({"checkpointEvery": -1}, "spec.checkpointEvery"),
        ({"microBatches": 0}, "need a whole number from 1, or a text such as auto"),
        ({"onNan": "wran"}, 'supported values: "warn", "skip", "stop"'),
        ({"clipNorm": 0}, "spec.clipNorm"),
        ({"priority": "high"}, "spec.priority"),
        ({"mode": "anywhere"}, 'supported values: "planned", "opportunistic"'),
        ({"processesPerWorker": 33}, "spec.processesPerWorker"),
        ({"seed": -1}, "spec.seed"),
        ({"bundle": {"configMap": "c", "sha256": "x"}}, "spec.bundle.sha256"),
        ({"template": {"spec": {"containers": [{"name": "main"}]}}}, "need a container 'worker'"),
        ({"template": {"spec": {"containers": [{"name": "worker"}] * 2}}}, "Duplicate value"),
        ({"volumeClaim": {"size": "much"}}, "spec.volumeClaim.size"),
    ],
)  # fmt: skip
def test_the_server_says_what_is_wrong(
    server: ControlPlane, spec: dict[str, Any], message: str
) -> None:
    refusal = answer(server, as_written(elastic_job(**spec)))
    assert isinstance(refusal, str)
    assert message in refusal


@pytest.mark.parametrize("name", ["a" * 51, "1flights", "a.b"])
def test_server_refuses_names_unfit_for_pods(server: ControlPlane, name: str) -> None:
    assert "pods are named after it" in str(answer(server, as_written(elastic_job(name))))


def test_unknown_field_is_reported_to_its_writer(server: ControlPlane, name: str) -> None:
    text = json.dumps(as_written(elastic_job(name, globalBatchsize=3)))
    with pytest.raises(EnvironmentFault, match=r'unknown field "spec\.globalBatchsize"'):
        server.kubectl("apply", "-f", "-", stdin=text)


# What can change ----------------------------------------------------------------------------------


def test_what_a_run_was_begun_with_cannot_change(server: ControlPlane, name: str) -> None:
    whole = everything()["spec"] | {"deadline": "2031-01-01T00:00:00Z", "runs": ""}
    applied(server, name, **whole)
    changes = {
        "parameters": {"rate": "0.02"}, "env": {"B": "1"}, "faults": "kill rank 2 at step 40", "exact": False,
        "audit": True, "capture": False, "restart": True, "per": "worker", "grace": "20s", "progress": "",
        "onNan": "warn", "checkpointEvery": 60, "checkpoints": "/x", "runs": "/x", "keepBest": "loss",
        "heartbeatTimeout": "6s", "hangTimeout": "1h", "memory": "5GiB", "logLimit": "65MiB",
        "startMethod": "fork", "transport": "distributed", "device": "cuda", "embeddings": "auto",
        "deadline": "2032-01-01T00:00:00Z", "tenant": "web", "priority": "online",
        "file": "other.py", "volumeClaim": {"size": "2Gi"}, "clipNorm": 2, "gang": True,
        "mode": "opportunistic",
    }  # fmt: skip
    numbers = {key for key in whole if isinstance(whole[key], int) and key not in changes}
    changes |= {key: whole[key] + 1 for key in numbers - MAY_CHANGE}
    assert changes.keys() == whole.keys() - MAY_CHANGE
    for field, value in changes.items():
        with pytest.raises(EnvironmentFault, match=rf"spec\.{field}: Forbidden: cannot be changed"):
            patch(server, name, {field: value})
    for field in ("epochs", "clipNorm", "keepBest", "tenant"):
        with pytest.raises(EnvironmentFault, match=rf"spec\.{field}: Forbidden: cannot be changed"):
            patch(server, name, {field: None})
    with pytest.raises(EnvironmentFault, match=r"spec\.bundle: Forbidden: cannot be changed"):
        patch(server, name, {"bundle": BUNDLE})


def patch(server: ControlPlane, name: str, spec: dict[str, Any]) -> Any:
    return server.api.ask(f"{JOBS}/{name}", method="PATCH", body={"spec": spec}, kind=MERGE)


def test_workers_suspend_and_templates_can_change(server: ControlPlane, name: str) -> None:
    applied(server, name)
    reply = patch(
        server,
        name,
        {
            "workers": {"min": 2, "max": 8},
            "suspend": True,
            "priorityClassName": "low",
            "template": {"spec": {"containers": [{"name": "worker", "image": "i"}]}},
        },
    )
    assert reply["metadata"]["generation"] == 2
    assert reply["spec"]["workers"] == {"min": 2, "max": 8}


# What is shown ------------------------------------------------------------------------------------


def running(thing: dict[str, Any]) -> ScheduledJob:
    job = job_of(thing)
    job.life = Life(Phase.RUNNING)
    job.judgement = Judgement(standing=Standing.ADMITTED, promised=True, reason="fits", detail="ok")
    job.allocation = Allocation(plan={"n1": 3}, told={"n1": 3}, home="masters")
    job.progress = JobProgress(step=120, steps=400, started=NOW)
    job.estimates = Estimates(last=Estimate(at=NOW, finish=NOW + 90, step=120))
    return job


STORY = [Change(NOW, "j", "workers", 1, 3, "surplus-by-marginal-return", "two devices idle")]


def test_a_status_is_kept_as_it_was_written(server: ControlPlane, name: str) -> None:
    thing = applied(server, name, deadlineIn="2h")
    job = running(thing)
    job.summary = {"exit": "done", "metrics": {"auc": 0.75}, "steps": 400}
    status = status_of(
        job, generation=1, before=None, now=NOW, story=STORY, ready=2, selector="a=b"
    )
    reply = write_status(server, name, status)
    assert reply["status"] == status
    assert reply["metadata"]["generation"] == 1  # it is no change of what is wanted
    wrong = stalled_status(status, Stall(INVALID_SPEC, "spec.x: got 1"), generation=2, now=NOW)
    assert write_status(server, name, wrong)["status"] == wrong


MESSAGES = st.text(max_size=30) | st.sampled_from(["1x", "é", "\x1b[2J", "x" * 9_999])
WORDS = MESSAGES | st.just("\ud800")  # of processes


@ON_SERVER
@given(
    life=st.sampled_from([Life(phase) for phase in Phase]),
    words=st.tuples(WORDS, MESSAGES, MESSAGES, MESSAGES, WORDS),
    times=st.tuples(*[st.floats(allow_nan=False) for _ in range(4)]),
    summary=st.dictionaries(WORDS, st.integers() | st.floats() | WORDS | st.booleans()),
)
def test_no_status_is_refused_or_cut(
    shared_job: dict[str, Any],
    server: ControlPlane,
    life: Life,
    words: tuple[str, ...],
    times: tuple[float, ...],
    summary: dict[str, Any],
) -> None:
    job = running(shared_job)
    job.life, job.problem, job.summary = life, words[0], summary
    job.ended, job.estimates = times[0], Estimates(last=Estimate(at=0.0, finish=times[1], step=0))
    job.judgement = Judgement(
        standing=Standing.REFUSED, reason=words[1], detail=words[2], earliest=times[2]
    )
    story = [Change(times[3], "j", "workers", 1, 2, words[3], words[4])]
    name = shared_job["metadata"]["name"]
    status = status_of(job, generation=1, before=None, now=NOW, story=story)
    server.api.ask(f"{JOBS}/{name}/status", method="PATCH", body={"status": None}, kind=MERGE)
    assert write_status(server, name, status)["status"] == status


@pytest.fixture(scope="session")
def shared_job(server: ControlPlane) -> dict[str, Any]:
    return applied(server, f"shared-{secrets.token_hex(4)}", deadlineIn="2h")


def test_large_jobs_are_within_what_a_server_checks(server: ControlPlane, name: str) -> None:
    whole = everything()["spec"] | {"deadline": "2031-01-01T00:00:00Z"}
    parameters = {f"p{number}": "x" * 1_500 for number in range(80)}
    containers = [{"name": f"c{number}"} for number in range(63)] + [{"name": "worker"}]
    whole |= {"parameters": parameters, "template": {"spec": {"containers": containers}}}
    applied(server, name, **whole)
    patch(server, name, {"suspend": True, "workers": {"max": 9}})


def test_people_cannot_write_a_status_with_the_object(server: ControlPlane, name: str) -> None:
    thing = as_written(elastic_job(name)) | {"status": {"record": "1.x"}}
    reply = server.api.ask(JOBS, method="POST", body=thing)
    assert reply["status"].keys() == {"conditions"}
    (unseen,) = reply["status"]["conditions"]
    assert unseen["message"] == "no operator of brim has seen this job yet"


def test_get_scale_wait_and_describe(server: ControlPlane, name: str) -> None:
    thing = applied(server, name, deadlineIn="2h")
    job = running(thing)
    body: dict[str, Any] = {
        "now": NOW,
        "story": STORY,
        "ready": 2,
        "selector": f"{GROUP}/job={name}",
    }
    status = status_of(job, before=None, generation=1, **body)
    write_status(server, name, status)

    head, row = server.kubectl("get", "ej", name).splitlines()
    assert head.split() == ["NAME", "STATE", "WORKERS", "PROGRESS", "DEADLINE", "PROMISED", "AGE"]
    assert row.split()[:-1] == [name, "Running", "2/1-4", "120/400", status["deadline"], "Yes"]
    wide = server.kubectl("get", "ej", name, "-o", "wide")
    assert "SurplusByMarginalReturn" in wide
    assert name in server.kubectl("get", "all")

    described = server.kubectl("describe", "ej", name)
    assert "workers 1 -> 3 (surplus-by-marginal-return: two devices idle)" in described

    server.kubectl("scale", f"elasticjob/{name}", "--replicas=7", "--current-replicas=4")
    scale = server.api.ask(f"{JOBS}/{name}/scale")
    assert scale["spec"] == {"replicas": 7}
    assert scale["status"] == {"replicas": 2, "selector": f"{GROUP}/job={name}"}
    with pytest.raises(EnvironmentFault, match=r"spec\.workers\.max"):
        server.kubectl("scale", f"elasticjob/{name}", "--replicas=0")

    status = status_of(job, before=status, generation=2, **body)
    write_status(server, name, status)
    server.kubectl("wait", "--for=condition=Running", f"ej/{name}", "--timeout=60s")
    with pytest.raises(EnvironmentFault, match="timed out"):
        server.kubectl("wait", "--for=condition=Succeeded", f"ej/{name}", "--timeout=1s")
    job.life, job.ended = Life(Phase.DONE), NOW + 99
    write_status(server, name, status_of(job, before=status, generation=2, **body))
    server.kubectl("wait", "--for=condition=Succeeded", f"ej/{name}", "--timeout=60s")
    server.kubectl("wait", "--for=jsonpath={.status.phase}=Done", f"ej/{name}", "--timeout=60s")


def test_every_field_is_explained(server: ControlPlane) -> None:
    text = server.kubectl("explain", "elasticjob.spec")
    for field in everything()["spec"]:
        assert re.search(rf"^  {field}\t<", text, re.MULTILINE), field
    assert "<no description>" not in server.kubectl("explain", "elasticjob", "--recursive=false")


def test_tenants_are_shown(server: ControlPlane) -> None:
    thing = tenant("ads", "team", guaranteed=8, limit=12)
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Tenant", **thing}
    server.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    row = server.kubectl("get", "tenant", "ads").splitlines()[1].split()
    assert row[:4] == ["ads", "default", "8", "12"]
