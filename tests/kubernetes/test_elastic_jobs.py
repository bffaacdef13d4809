"""ElasticJobs and Tenants, as people write them, and as the scheduler reads them."""

from __future__ import annotations

import base64
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.coordination.cluster.scheduled_jobs import Decided, RangeChanged, Submitted, Wished
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.job import OPTIONS, JobSpec, WorkerRange
from brim.domain.lifecycle import Happening, Life, Phase, Wish
from brim.domain.measuring import Measured
from brim.domain.submission import Submission
from brim.domain.tenancy import Tenant
from brim.domain.workload import Priority
from brim.errors import SpecError
from brim.kubernetes.client.reading import LONGEST_TEXT
from brim.kubernetes.client.times import read_time
from brim.kubernetes.objects.elastic_jobs import (
    FIELDS,
    code_in,
    idle_gpus,
    new_job,
    read_job,
    wishes_of,
)
from brim.kubernetes.objects.fields import PLAIN_FIELDS
from brim.kubernetes.objects.record_text import unpack_record
from brim.kubernetes.objects.schemas import job_crd, tenant_crd
from brim.kubernetes.objects.status import status_of
from brim.kubernetes.objects.tenants import KnownTenants, read_tenants, with_tenants
from brim.scheduler.loop import decide
from brim.storage.bundles import digest_of, pack
from coordination.scheduled import Transcript
from edges.test_nonsense import ODD, places, twisted, with_other
from elastic_jobs import MADE, elastic_job, everything, submitted

CODE = pack({"flights.py": b"import parts", "parts.py": b""})
BUNDLE = {"configMap": "flights-code", "sha256": digest_of(CODE)}
BEGUN = read_time(MADE, field="")


def problems(thing: object, **keywords: Any) -> list[str]:
    found = read_job(thing, **keywords)
    assert not isinstance(found, Submission), found
    return [str(problem) for problem in found]


def submission_of(thing: object, **keywords: Any) -> Submission:
    found = read_job(thing, **keywords)
    assert isinstance(found, Submission), found
    return found


# Jobs ---------------------------------------------------------------------------------------------


def test_a_job_that_says_everything() -> None:
    thing = everything()
    assert thing["spec"].keys() == FIELDS - {"command", "bundle", "deadlineIn"}
    request = submission_of(thing)
    spec = request.spec
    assert (spec.file, str(spec.workers), spec.epochs, spec.global_batch_size) == (
        "flights.py",
        "1:4",
        3,
        1024,
    )
    assert (spec.parameters["rate"], spec.env) == ("0.01", {"OMP_NUM_THREADS": "2"})
    assert (spec.checkpoint_every.seconds, spec.checkpoints, spec.memory) == (
        30.0,
        "s3://bucket/run",
        4 << 30,
    )
    assert (spec.hang_timeout, spec.heartbeat_timeout, spec.clip_norm) == (None, 5.0, 1.5)
    assert (str(spec.keep_best), len(spec.faults), spec.spares) == ("auc:max", 1, 0)
    assert (request.deadline, request.tenant) == (BEGUN + 7200.0, "ads")
    assert request.priority is Priority.PRESERVED


def test_a_job_says_whether_others_place_its_workers() -> None:
    assert not submission_of(elastic_job()).anywhere
    assert not submission_of(elastic_job(mode="planned")).anywhere
    assert submission_of(elastic_job(mode="opportunistic")).anywhere


def test_each_process_needs_at_least_one_micro_batch() -> None:
    assert submission_of(elastic_job()).processes == 1
    of_four = submission_of(elastic_job(processesPerWorker=4))
    assert (of_four.processes, of_four.spec.workers) == (4, WorkerRange(minimum=1, maximum=4))
    assert of_four.spec.micro_batches == 16
    assert (
        submission_of(elastic_job(processesPerWorker=4, microBatches="auto")).spec.micro_batches
        == 16
    )
    assert of_four.fingerprint != submission_of(elastic_job()).fingerprint
    five = WorkerRange(minimum=1, maximum=5)
    with pytest.raises(SpecError, match="got 16 for up to 20 workers"):
        of_four.with_workers(five)
    assert submission_of(elastic_job()).with_workers(five).spec.workers == five


def test_a_job_that_says_little_has_the_defaults() -> None:
    spec = submission_of(elastic_job()).spec
    assert spec == JobSpec(file="flights.py", workers=WorkerRange(minimum=1, maximum=4), spares=0)


def test_defaults_of_the_schema_equal_those_of_brim() -> None:
    schema = job_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    defaults = {
        name: property["default"]
        for name, property in schema["properties"].items()
        if "default" in property
    }
    assert len(defaults) > 15
    assert submission_of(elastic_job(**defaults)) == submission_of(elastic_job())


def test_each_scheduled_option_is_a_field() -> None:
    scheduled = {name for name, option in OPTIONS.items() if option.scheduled}
    assert scheduled == {*PLAIN_FIELDS.values(), "parameters", "env", "workers"}


def test_automatic_micro_batches_are_a_number() -> None:
    assert (
        submission_of(elastic_job(microBatches="auto", workers={"max": 3})).spec.micro_batches == 4
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"workers": {"min": 5, "max": 2}}, "spec.workers.min: got 5, need at most spec.workers.max"),
        ({"workers": {"min": 0, "max": 2}}, "spec.workers.min: got 0, need a whole number from 1"),
        ({"workers": {"min": 1}}, "spec.workers: got an object of 1 fields, need the most workers"),
        ({"workers": None}, "spec.workers: got nothing"),
        ({"workers": {}}, "spec.workers: got an empty object"),
        ({"workers": 4}, "spec.workers: got 4, need NAME: VALUE pairs"),
        ({"workers": {"max": 10**40}}, "spec.workers.max: got a number of 133 bits"),
        ({"file": None}, "spec.file: got neither"),
        ({"command": ["python", "x.py"]}, "spec.file: got both"),
        ({"file": None, "command": []}, "spec.command: got an empty list"),
        ({"file": None, "command": "python x.py"}, "spec.command: got 'python x.py'"),
        ({"file": None, "command": ["python", 3]}, "spec.command[1]: got 3"),
        ({"file": ""}, "spec.file: got '', need a text of 1 to"),
        ({"epochs": 0}, "spec.epochs: got '0', need a whole number from 1"),
        ({"epochs": "3"}, "spec.epochs: got '3', need a whole number from 1"),
        ({"epochs": 10**12}, "spec.epochs: got 1000000000000, need at most 1,000,000,000"),
        ({"epochs": 2.5}, "spec.epochs: got 2.5"),
        ({"epochs": True}, "spec.epochs: got True"),
        ({"exact": "no"}, "spec.exact: got 'no', need true or false"),
        ({"clipNorm": -1}, "spec.clipNorm: got -1, need a number above 0"),
        ({"clipNorm": float("nan")}, "spec.clipNorm: got nan"),
        ({"onNan": "wran"}, "did you mean 'warn'?"),
        ({"memory": "4Gi"}, "spec.memory: got '4Gi', need a text such as 4GiB, or none"),
        ({"hangTimeout": "30"}, "spec.hangTimeout: got '30', need a text such as 30m"),
        ({"checkpointEvery": "soon"}, "spec.checkpointEvery: got 'soon', need a whole number from 0, or"),
        ({"checkpointEvery": "9" * 20}, "need at most 1,000,000,000"),
        ({"microBatches": "many"}, "spec.microBatches: got 'many'"),
        ({"microBatches": 2}, "spec.microBatches: got 2 for up to 4 workers, need at least one"),
        ({"microBatches": 2}, "hint: microBatches: 8, or leave it out"),
        ({"servers": 1, "exact": False}, "spec.servers: got 1 beside exact: false"),
        ({"checkpoints": "runs/1"}, "spec.checkpoints: got 'runs/1', need a path from the root"),
        ({"faults": "kil rank 1"}, "spec.faults: got 'kil rank 1'"),
        ({"faults": f"kill rank 1 at step {'9' * 30}"}, "spec.faults: got 'kill rank 1 at step 9"),
        ({"faults": "kill master at step 3"}, "spec.faults: got 'kill master at step 3'"),
        ({"env": {"BRIM_X": "1"}}, "spec.env.BRIM_X: got a name that begins with BRIM_"),
        ({"env": {"A": 1}}, "spec.env.A: got 1, need a text"),
        ({"parameters": {"a-b": "1"}}, "spec.parameters.a-b: got 'a-b'"),
        ({"parameters": {f"p{n}": "x" * 4000 for n in range(60)}}, "got 235 KiB, need at most 128 KiB"),
        ({"parameters": {f"p{n}": "" for n in range(999)}}, "spec.parameters: got an object of 999"),
        ({"tenant": "a/b"}, "spec.tenant: got 'a/b', need a name of letters"),
        ({"priority": "high"}, "spec.priority: got 'high', need one of preemptible, preserved, online"),
        ({"suspend": "yes"}, "spec.suspend: got 'yes', need true or false"),
        ({"mode": "opportune"}, "spec.mode: got 'opportune', need one of planned, opportunistic"),
        ({"gang": 1}, "spec.gang: got 1, need true or false"),
        ({"processesPerWorker": 0}, "spec.processesPerWorker: got 0, need a whole number from 1 to 32"),
        ({"processesPerWorker": "2"}, "spec.processesPerWorker: got '2'"),
        ({"processesPerWorker": 3, "microBatches": 11}, "got 11 for up to 12 workers"),
        ({"processesPerWorker": 32, "workers": {"max": 10**9}}, "spec.workers: got '32:32000000000'"),
        ({"deadline": "2026-12-01"}, "spec.deadline: got '2026-12-01', need a date, a time and a zone"),
        ({"deadline": "2026-02-30T08:00:00Z"}, "spec.deadline: got '2026-02-30T08:00:00Z'"),
        ({"deadline": "2026-12-01T08:00:00Z", "deadlineIn": "2h"}, "spec.deadline: got both"),
        ({"deadline": MADE}, "which has passed"),
        ({"deadline": "2126-12-01T08:00:00Z"}, "need a time within 10 years"),
        ({"deadlineIn": "soon"}, "spec.deadlineIn: got 'soon', need a duration above 0"),
        ({"deadlineIn": "1e300"}, "spec.deadlineIn: got '1e300', need a time within 10 years"),
        ({"template": {}}, "spec.template.spec.containers: got nothing"),
        ({"template": {"spec": {"containers": [{"name": "main"}]}}}, "got 'main', need a container 'worker'"),
        ({"template": []}, "spec.template: got an empty list"),
        ({"volumeClaim": {"size": "much"}}, "spec.volumeClaim.size: got 'much'"),
        ({"bundle": {"configMap": "c", "sha256": "x"}}, "spec.bundle.sha256: got 'x'"),
        ({"bundle": BUNDLE}, "spec.bundle.configMap: got 'flights-code', which is not there"),
        ({"globalBatchsize": 3}, "spec.globalBatchsize: got a field that this operator does not know"),
        ({"globalBatchsize": 3}, "did you mean 'globalBatchSize'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_field(spec: dict[str, Any], message: str) -> None:
    assert message in "\n".join(problems(elastic_job(**spec)))


def test_all_mistakes_are_told_at_once() -> None:
    fields = [
        problem.partition(":")[0]
        for problem in problems(elastic_job(epochs=0, seed=-1, exact=1, foo=2))
    ]
    assert fields == ["spec.foo", "spec.epochs", "spec.seed", "spec.exact"]


@pytest.mark.parametrize("name", ["", "Flights", "1flights", "a" * 51, "a.b", "a-", "a/b", None, 3])
def test_a_name_that_pods_cannot_have(name: Any) -> None:
    thing = elastic_job()
    thing["metadata"]["name"] = name
    assert "metadata.name" in problems(thing)[0]


@pytest.mark.parametrize("thing", [None, 3, "x", [], {}, {"metadata": 3}, {"spec": []}])
def test_no_object_at_all(thing: object) -> None:
    assert problems(thing)


def test_times_with_zones_and_fractions() -> None:
    for text in ("2026-11-24T19:00:00.000Z", "2026-11-24t20:00:00+01:00", "2026-11-24T19:00:00z"):
        assert submission_of(elastic_job(deadline=text)).deadline == BEGUN + 7200.0
    assert submission_of(elastic_job(deadlineIn="2h")).deadline == BEGUN + 7200.0


def test_code_that_comes_along() -> None:
    request = submission_of(elastic_job(bundle=BUNDLE), code=CODE)
    assert request.spec.bundle == digest_of(CODE)
    data = base64.b64encode(CODE).decode()
    assert code_in({"binaryData": {"code.tar": data}}) == CODE
    assert code_in({"data": {"code.tar": "x"}}) is None
    assert code_in({"binaryData": {"code.tar": "no base64"}}) is None


def test_code_that_is_another() -> None:
    (problem,) = problems(elastic_job(bundle=BUNDLE), code=CODE + b"x")
    assert problem.startswith("spec.bundle.configMap: got the bundle of code is not")
    (problem,) = problems(elastic_job(bundle=BUNDLE, file="flight.py"), code=CODE)
    assert "spec.file: got 'flight.py', need a file of the bundle" in problem
    assert "did you mean 'flights.py'?" in problem
    foreign_code = pack({"flights.py": b"", "../up.py": b""})
    bundle = {"configMap": "c", "sha256": digest_of(foreign_code)}
    (problem,) = problems(elastic_job(bundle=bundle), code=foreign_code)
    assert "'../up.py'" in problem


def test_jobs_with_the_same_steps_have_one_fingerprint() -> None:
    def image(tag: str) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "worker", "image": tag}]}}

    first, two = (
        submission_of(elastic_job(template=image(tag))).fingerprint for tag in ("a:1", "a:2")
    )
    assert first != two
    changed = elastic_job(template=image("a:1"), seed=3, workers={"max": 2})
    assert submission_of(changed).fingerprint == first
    assert submission_of(elastic_job(template=image("a:1"), file="other.py")).fingerprint != first


def test_no_tenant_teaches_another_one_speeds() -> None:
    tenants = read_tenants([tenant("ads", "*"), tenant("web", "*")])
    ads, web = (
        submission_of(elastic_job(tenant=name), tenants=tenants).fingerprint
        for name in ("ads", "web")
    )
    assert ads != web


# Wishes -------------------------------------------------------------------------------------------


def test_an_object_that_asks_for_nothing_new() -> None:
    assert wishes_of(elastic_job(), submitted()) == ([], ())


def test_hold_and_release() -> None:
    job = submitted()
    (event,), _ = wishes_of(elastic_job(suspend=True), job)
    assert event == Wished(job.id, Happening.HOLD, "spec.suspend: true")
    job.life = Life(Phase.SUBMITTED, Wish.HOLD)
    assert wishes_of(elastic_job(suspend=True), job) == ([], ())
    (event,), _ = wishes_of(elastic_job(), job)
    assert event == Wished(job.id, Happening.RELEASE, "spec.suspend: false")


def test_another_range() -> None:
    job = submitted()
    workers = WorkerRange(minimum=2, maximum=8)
    (event,), _ = wishes_of(elastic_job(workers={"min": 2, "max": 8}), job)
    assert event == RangeChanged(job.id, workers, "spec.workers: 2 to 8")
    job.submission = job.submission.with_workers(workers)
    assert wishes_of(elastic_job(workers={"min": 2, "max": 8}), job) == ([], ())


def test_impossible_range_of_workers_is_a_problem() -> None:
    events, (problem,) = wishes_of(
        elastic_job(workers={"min": 1, "max": 9}, suspend=True), submitted()
    )
    assert [type(event) for event in events] == [Wished]
    assert str(problem).startswith("spec.workers.max: got 8 for up to 9 workers")
    assert problem.hint == "workers: {max: 8}"


def test_a_deleted_object_cancels_its_job_once() -> None:
    thing, job = elastic_job(), submitted()
    thing["metadata"]["deletionTimestamp"] = MADE
    assert wishes_of(thing, job)[0] == [Wished(job.id, Happening.CANCEL, "its object is deleted")]
    job.life = Life(Phase.RUNNING, Wish.CANCEL)
    assert wishes_of(thing, job) == ([], ())
    job.life = Life(Phase.DONE)
    assert wishes_of(elastic_job(workers={"max": 2}), job) == ([], ())


# Tenants ------------------------------------------------------------------------------------------


def tenant(name: str, *namespaces: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"namespaces": list(namespaces), **spec}}


def test_tenants_become_those_of_a_cluster() -> None:
    directory = read_tenants(
        [
            tenant("b", "web"),
            tenant("a", "ads", cohort="main", guaranteed=8, exclusive=2, limit=12, weight=2),
        ]
    )
    base = ClusterSpec(cluster=Cluster(nodes=(Node(id="masters", devices=0),)), headroom=1)
    assert with_tenants(base, directory) == replace(
        base,
        tenants=(
            Tenant(id="a", cohort="main", guaranteed=8, exclusive=2, limit=12, weight=2.0),
            Tenant(id="b"),
        ),
    )
    assert with_tenants(base, directory, usage_half_life=3600.0).usage_half_life == 3600.0
    assert with_tenants(base, read_tenants([]), usage_half_life=3600.0).usage_half_life is None


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (tenant("a", guaranteed=-1), "spec.guaranteed: got -1"),
        (tenant("a", exclusive=2), "spec: got exclusive 2, guaranteed 0"),
        (tenant("a", guaranteed=4, limit=2), "limit 2"),
        (tenant("a", weight=0), "spec.weight: got 0"),
        (tenant("a", weight="1"), "spec.weight: got '1'"),
        (tenant("a", cohort=""), "spec.cohort: got ''"),
        ({"metadata": {"name": "a"}, "spec": {}}, "spec.namespaces: got nothing"),
        ({"metadata": {"name": "a"}, "spec": {"namespaces": "web"}}, "spec.namespaces: got 'web'"),
        ({"metadata": {"name": "a"}, "spec": {"namespaces": [3]}}, "spec.namespaces[0]: got 3"),
        ({"metadata": {"name": "a"}}, "spec.namespaces: got nothing"),
    ],
)
def test_a_tenant_that_is_none(thing: dict[str, Any], message: str) -> None:
    directory = read_tenants([thing, tenant("b", "web")])
    assert [tenant.id for tenant in directory.tenants] == ["b"]
    assert message in "\n".join(map(str, directory.problems["a"]))


@pytest.mark.parametrize(
    ("requested", "namespace", "expected"),
    [
        (None, "ads", "ads"),
        ("ads", "ads", "ads"),
        ("anybody", "ads", "anybody"),
        (None, "web", "anybody"),
        ("ads", "web", None),
        ("adz", "ads", None),
    ],
)
def test_a_job_uses_a_tenant_of_its_namespace(
    requested: str | None, namespace: str, expected: str | None
) -> None:
    tenants = read_tenants([tenant("ads", "ads"), tenant("anybody", "*")])
    if requested is None and namespace == "ads":  # two would do
        with pytest.raises(SpecError, match=r"spec\.tenant: got none, need a tenant"):
            tenants.chosen(requested, namespace)
        tenants = read_tenants([tenant("ads", "ads"), tenant("others", "web")])
    thing = elastic_job(namespace=namespace, tenant=requested)
    if expected is None:
        assert problems(thing, tenants=tenants)[0].startswith(f"spec.tenant: got '{requested}'")
    else:
        assert submission_of(thing, tenants=tenants).tenant == expected


def test_without_tenants_any_will_do() -> None:
    assert KnownTenants().chosen(None, "team") == "default"
    assert KnownTenants().chosen("x", "team") == "x"


# Whatever comes -----------------------------------------------------------------------------------


def with_spec(spec: dict[str, Any]) -> dict[str, Any]:
    return elastic_job(**spec)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**50), max_value=10**50)
    | st.floats()
    | st.text()
    | st.sampled_from(
        ["x" * (LONGEST_TEXT + 1), "9" * 5000, "1e999", "\x1b[2J", "{{", "ﷺ" * 300, "a\0b"]
    )
    | st.sampled_from([value for value in ODD if not isinstance(value, dict | list)])
)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
HOSTILE = (
    ANYTHING
    | twisted(everything())
    | twisted(elastic_job(file=None, command=["python", "x.py"], deadlineIn="2h", bundle=BUNDLE))
    | st.dictionaries(st.sampled_from(sorted(FIELDS)), ANYTHING).map(with_spec)
    | st.builds(
        with_other,
        st.just(everything()),
        st.sampled_from(list(places(everything()))),
        ANYTHING,
    )
)


@settings(max_examples=400, deadline=5000)
@given(thing=HOSTILE, code=st.none() | st.binary() | st.just(CODE))
@example(thing=elastic_job(deadlineIn="9" * 4000), code=None)
@example(thing=elastic_job(faults="stop rank 1 for 1e308d at step 3"), code=None)
@example(thing=elastic_job(clipNorm=10**400), code=None)
@example(thing=elastic_job(keepBest=":" * 99), code=None)
def test_any_object_is_a_job_or_names_fields(thing: Any, code: bytes | None) -> None:
    found = read_job(thing, code=code, tenants=read_tenants([tenant("ads", "team")]))
    if isinstance(found, Submission):
        assert submitted(thing, code=code).submission.spec == found.spec
    else:
        assert found
        for problem in found:
            assert problem.field.startswith(("spec", "metadata")), problem
            assert len(str(problem)) < 4 * LONGEST_TEXT
    events, wrong = wishes_of(thing, submitted())
    assert all(isinstance(problem, SpecError) for problem in wrong)
    assert all(isinstance(event, Wished | RangeChanged) for event in events)
    code_in(thing)


COUNT = st.integers(1, 10**9) | st.sampled_from([1, 2, 7, 8, 9, 64, 1000, 10**6, 10**7, 10**9])
LARGE = st.fixed_dictionaries(
    {"workers": st.builds(lambda a, b: {"min": min(a, b), "max": max(a, b)}, COUNT, COUNT)},
    optional={
        "microBatches": COUNT,
        "globalBatchSize": COUNT,
        "epochs": COUNT,
        "exact": st.booleans(),
        "priority": st.sampled_from(["preemptible", "preserved"]),
        "deadlineIn": st.sampled_from(["1ms", "90s", "2h", "87599h"]),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    specs=st.lists(LARGE, min_size=1, max_size=3),
    devices=st.integers(1, 40),
    measured=st.dictionaries(COUNT, st.floats(1e-9, 1e9), max_size=3),
    steps=st.none() | st.integers(1, 10**12),
)
@example(specs=[{"workers": {"min": 10**7, "max": 10**7}}], devices=8, measured={}, steps=None)
@example(
    specs=[{"workers": {"min": 1, "max": 8}}], devices=8, measured={2: 10.0, 4: 5.0}, steps=None
)
def test_no_job_that_is_taken_stops_a_scheduler(
    specs: list[dict[str, Any]], devices: int, measured: dict[int, float], steps: int | None
) -> None:
    transcript = Transcript(f"1x{devices}")
    for number, spec in enumerate(specs, 1):
        thing = elastic_job(f"job-{number}", **spec)
        request = read_job(thing)
        if isinstance(request, Submission):
            totals = {count: (10.0, 10.0 / rate) for count, rate in measured.items()}
            transcript.lessons.speeds[request.fingerprint] = Measured(totals)
            transcript.lessons.steps |= {request.fingerprint: steps} if steps else {}
            job = new_job(thing, request, id=f"team.job-{number}", number=number)
            transcript.known[job.id] = job
            transcript.hear(Submitted(job), job.submitted)
    now = read_time(MADE, field="") + 1.0
    for _ in range(2):
        snapshot = transcript.jobs.snapshot(now, memory=None)
        decision = decide(snapshot, "brim", left_by="brim")
        assert sum(decision.workers.values()) <= devices
        transcript.hear(Decided(decision), now)
        now += 10.0
    for job in transcript.known.values():
        transcript.jobs.speed(job)
        status = status_of(job, generation=1, before=None, now=now)
        assert unpack_record(status["record"], uid=job.key).id == job.id


@settings(max_examples=200, deadline=5000)
@given(thing=ANYTHING | twisted(tenant("a", "x", guaranteed=8, exclusive=2, limit=12, weight=2)))
@example(thing=tenant("", "x"))
@example(thing=tenant("..", "x"))
def test_whatever_comes_for_a_tenant_spoils_no_other(thing: Any) -> None:
    directory = read_tenants([thing, tenant("b", "web")])
    assert "b" in {tenant.id for tenant in directory.tenants}
    assert not {tenant.id for tenant in directory.tenants} & directory.problems.keys()
    base = ClusterSpec(cluster=Cluster(nodes=(Node(id="masters", devices=0),)))
    assert with_tenants(base, directory).tenants == directory.tenants


LISTED = st.lists(st.sampled_from(["team", "web", "*", "Not One"]), max_size=2, unique=True)


@settings(max_examples=200, deadline=5000)
@given(
    listed=st.dictionaries(st.sampled_from("abc"), LISTED, max_size=3),
    requested=st.none() | st.sampled_from("abcd"),
)
def test_namespace_gets_only_tenants_that_list_it(
    listed: dict[str, list[str]], requested: str | None
) -> None:
    tenants = read_tenants(tenant(name, *namespaces) for name, namespaces in listed.items())
    try:
        chosen = tenants.chosen(requested, "team")
    except SpecError as wrong:
        assert wrong.field == "spec.tenant"  # noqa: PT017
    else:
        assert {"team", "*"} & set(listed.get(chosen, ())) or not listed


def test_schema_of_tenants_has_exactly_the_fields_read() -> None:
    schema = tenant_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert schema["properties"].keys() == {
        "cohort", "guaranteed", "exclusive", "limit", "weight", "namespaces",
    }  # fmt: skip


def test_change_to_an_invalid_template_is_a_problem() -> None:
    job = submitted()
    wrong = {"spec": {"nodeName": "n1", "containers": [{"name": "worker"}]}}
    events, problems = wishes_of(elastic_job(template=wrong), job)
    assert events == []
    assert [problem.field for problem in problems] == ["spec.template.spec.nodeName"]


@pytest.mark.parametrize(
    ("fields", "slot", "message"),
    [
        ({"processes": 2}, {"cpu": 64, "amd.com/gpu": 8}, "8 amd.com/gpu and uses 2"),
        ({"processes": 8}, {"nvidia.com/gpu": 8}, ""),
        ({}, {"nvidia.com/gpu": 1}, ""),
        ({}, {"cpu": 8, "rdma/hca": 4}, ""),
        ({"opaque": True}, {"nvidia.com/gpu": 8}, ""),
        ({"spec": {"device": "cpu"}}, {"nvidia.com/gpu": 8}, ""),
        ({"spec": {"file": "", "command": ("python", "a.py")}}, {"nvidia.com/gpu": 8}, ""),
    ],
)
def test_gpus_that_no_process_uses_are_named(
    fields: dict[str, Any], slot: dict[str, int], message: str
) -> None:
    request = submission_of(elastic_job(workers={"max": 2}))
    spec = replace(request.spec, **fields.pop("spec", {}))
    amounts = {name: Fraction(amount) for name, amount in slot.items()}
    assert message in (found := idle_gpus(replace(request, spec=spec, **fields), amounts))
    assert bool(found) == bool(message)
