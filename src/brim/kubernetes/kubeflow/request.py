"""Requests of Kubeflow's objects, as the scheduler knows them. Pure.

What cannot be understood is a value: errors that name the field. The rest of a template is for the
API server to check, when pods are made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.job import JobSpec, WorkerRange
from brim.domain.lifecycle import Happening, Wish
from brim.domain.options import LARGEST_COUNT
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission, by_tenant, fingerprint, parse_priority
from brim.errors import SpecError
from brim.kubernetes.client.amounts import PODS, Totals, parse_amount, write_amount
from brim.kubernetes.client.declared import keywords, read_struct
from brim.kubernetes.client.reading import (
    Problems,
    Reading,
    choice_of,
    name_of,
    object_of,
    quoted,
    switch_of,
    text_of,
    whole_of,
)
from brim.kubernetes.kubeflow.commands import command_of, option_of
from brim.kubernetes.nodes.neighbours import is_queued
from brim.kubernetes.objects.elastic_jobs import read_metadata
from brim.kubernetes.objects.identities import GROUP, KubeJob
from brim.kubernetes.objects.job_spec import PRIORITIES
from brim.kubernetes.objects.tenants import KnownTenants

KUBEFLOW, VERSION = "kubeflow.org", "v1"
MPI_VERSION = "v2beta1"  # of the MPI operator
PYTORCH = "pytorchjob"  # the word of the kind that can be scaled
MPI = "mpijob"  # the word of the kind that has a launcher
WORKER, MASTER, CHIEF, LAUNCHER = "Worker", "Master", "Chief", "Launcher"
EVALUATOR = "Evaluator"  # which takes no part in the training
EXIT_CODE, NEVER = "ExitCode", "Never"
RESTART_POLICIES = ("OnFailure", "Always", NEVER, EXIT_CODE)
CLEAN_NOTHING, CLEAN_RUNNING, CLEAN_ALL = "None", "Running", "All"
MANAGER = f"{GROUP}/operator"  # as `managedBy` names it
TENANT, PRIORITY = f"{GROUP}/tenant", f"{GROUP}/priority"  # annotations
OPEN_MPI, INTEL, MPICH = "OpenMPI", "Intel", "MPICH"
AT_STARTUP, ONCE_READY = "AtStartup", "WaitForWorkersReady"
ROOT_KEYS = "/root/.ssh"  # where keys are, unless `sshAuthMountPath` says otherwise
KEYS_FIELD = "sshAuthMountPath"  # which servers fill in for objects of this version alone
_USUAL_RETRIES = 6  # of a launcher, which the MPI operator runs as a Job
_PATH = r"/[^\0]*"
REPLICAS = "replicas"  # the parameter that keeps how many workers were asked for at first
_DISCOVERS = "--host-discovery-script"  # has horovodrun be elastic
_CLEANINGS = (CLEAN_NOTHING, CLEAN_RUNNING, CLEAN_ALL)
_Count = Annotated[int, Meta(ge=0, le=10 * 366 * 86_400)]  # of failures, or seconds
_Name = Annotated[str, Meta(max_length=253)]
_MOST_CONTAINERS = 64
_LISTS_OF_PODS = ("initContainers", "tolerations", "volumes")
_LISTS_OF_CONTAINERS = ("args", "command", "env", "ports", "volumeMounts")
_LISTS_OF_OBJECTS = ("initContainers", "tolerations", "volumes", "env", "ports", "volumeMounts")
_MOST_PORTS = 65_535
_NODES = ("--nnodes", "--num_machines", "--num-machines")  # of torchrun; of accelerate
_POLICY_NODES = re.compile(r"\$[({]?PET_NNODES[)}]?")  # which the operator sets
_CONTAINER = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowKind:
    """A kind of objects.

    Args:
        name: as objects have it.
        specs: the field of its replicas.
        types: of replicas, in the order in which they get their pods; workers come last.
        container: that does the work; empty: the first.
        port: of that container, by which replicas meet, where its owner names none; 0: they meet
            otherwise.
        restart_policy: of replicas without one.
        version: of the API.
        reached_by_ssh: the pods of a job reach each other by ssh, each by a name of its own.
        launcher_policy: as `restart_policy`, of a launcher; empty: that.
        others: versions of the kind that brim does not run.
    """

    name: str
    specs: str
    types: tuple[str, ...]
    container: str
    port: int
    restart_policy: str
    version: str = VERSION
    reached_by_ssh: bool = False
    launcher_policy: str = ""
    others: tuple[str, ...] = ()

    @property
    def operator(self) -> str:
        """The name of the operator whose labels the objects have."""
        return "mpi-operator" if self.reached_by_ssh else f"{self.word}-controller"

    @property
    def word(self) -> str:
        """The word that names and labels have: `pytorchjob`."""
        return self.name.lower()

    @property
    def port_name(self) -> str:
        """The name of the port by which replicas meet."""
        return f"{self.word}-port"

    @property
    def plural(self) -> str:
        return f"{self.word}s"


KINDS = {
    kind.word: kind
    for kind in (
        KubeflowKind(
            name="PyTorchJob",
            specs="pytorchReplicaSpecs",
            types=(MASTER, WORKER),
            container="pytorch",
            port=23456,
            restart_policy="OnFailure",
        ),
        KubeflowKind(
            name="TFJob",
            specs="tfReplicaSpecs",
            types=(CHIEF, MASTER, "PS", EVALUATOR, WORKER),
            container="tensorflow",
            port=2222,
            restart_policy=NEVER,
        ),
        KubeflowKind(
            name="MPIJob",
            specs="mpiReplicaSpecs",
            types=(LAUNCHER, WORKER),
            container="",
            port=0,
            restart_policy=NEVER,
            others=("v1alpha2",),  # of the MPI operator's past
        ),
    )
}
# The same kind of objects in the version that the MPI operator has: a cluster may have either.
NEWER_MPI = replace(
    KINDS[MPI], version=MPI_VERSION, reached_by_ssh=True, launcher_policy="OnFailure"
)


def kind_of(thing: Mapping[str, Any]) -> KubeflowKind:
    """Return the kind of an object, in its version.

    Where a server has both versions, it gives objects of either as the one that it is asked for.
    """
    kind = KINDS[str(thing.get("kind", "")).lower()]
    if kind.word != MPI:
        return kind
    spec = thing.get("spec")
    has_keys = isinstance(spec, Mapping) and spec.get(KEYS_FIELD) is not None
    is_newer = str(thing.get("apiVersion", "")).endswith(f"/{MPI_VERSION}")
    return NEWER_MPI if has_keys or is_newer else kind


class Rank(NamedTuple):
    """A place among the replicas of a job, after which its pod is named.

    Attributes:
        type: of the replica, in small letters, as names and labels have it.
    """

    type: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas of one type."""

    type: str
    count: int
    restart_policy: str
    template: Mapping[str, Any]


class RunPolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "clean": "cleanPodPolicy",
        "to_live": "ttlSecondsAfterFinished",
        "deadline": "activeDeadlineSeconds",
        "most_failures": "backoffLimit",
    },
):
    """The owner's wishes for the life of a job; None: there is none. Times are seconds."""

    clean: Annotated[str, keywords(enum=_CLEANINGS)] = CLEAN_NOTHING
    to_live: _Count | None = None
    deadline: _Count | None = None
    most_failures: _Count | None = None
    suspend: bool = False


class SchedulingPolicy(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"fewest": "minAvailable", "priority_class": "priorityClass"},
):
    """The owner's wishes for the binding of a job's pods.

    Args:
        fewest: pods that are to be bound together; None: as many as the job needs to run.
        queue: of Volcano; empty: its usual.
        priority_class: of its pods, where their template names none.
    """

    fewest: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | None = None
    queue: _Name = ""
    priority_class: _Name = ""


class MpiLaunch(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "slots": "slotsPerWorker",
        "launcher_works": "runLauncherAsWorker",
        "keys": KEYS_FIELD,
        "creation": "launcherCreationPolicy",
        "implementation": "mpiImplementation",
    },
):
    """The way in which a launcher of `v2beta1` starts processes on its hosts.

    Args:
        slots: processes of a host.
        launcher_works: the launcher is a host, too.
        keys: the folder of ssh's keys in the pods.
        creation: the launcher's pod is made with the workers', or once these are ready.
        implementation: the make of MPI, which says what hosts and variables look like.
    """

    slots: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] = 1
    launcher_works: bool = False
    keys: Annotated[str, Meta(pattern=_PATH, extra={"need": "a path from the root"})] = ROOT_KEYS
    creation: Annotated[str, keywords(enum=(AT_STARTUP, ONCE_READY))] = AT_STARTUP
    implementation: Annotated[str, keywords(enum=(OPEN_MPI, INTEL, MPICH))] = OPEN_MPI


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeflowSpec:
    """The request of one object.

    Args:
        replicas: by type, workers last.
        pods: of all types together; each holds a slot.
        spec: of the object, as it is.
        bounds: the fewest and the most workers of an elastic job, whose number may change while it
            runs, for any `replicas`; None: it is not elastic.
        scheduling: None: it says nothing of that, and its pods are bound one by one.
        mpi: of an MPIJob of `v2beta1`; None: it is none.
    """

    kind: KubeflowKind
    job: KubeJob
    replicas: tuple[Replicas, ...]
    pods: WorkerRange
    spec: Mapping[str, Any]
    bounds: WorkerRange | None
    run: RunPolicy
    scheduling: SchedulingPolicy | None
    mpi: MpiLaunch | None = None

    @property
    def elastic(self) -> bool:
        """True where its number of workers may change while it runs."""
        return self.bounds is not None

    @property
    def others(self) -> int:
        """The replicas that are no workers."""
        return sum(replicas.count for replicas in self.replicas if replicas.type != WORKER)

    def of(self, type: str) -> Replicas | None:
        """Return the replicas of a type, in any case of letters."""
        return next(
            (replicas for replicas in self.replicas if replicas.type.lower() == type.lower()), None
        )

    def port(self, type: str) -> int:
        """Return the port at which replicas of a type are met: their owner's, or the usual one."""
        replicas = self.of(type)
        assert replicas is not None
        for container in replicas.template["spec"]["containers"]:
            for port in container.get("ports") or []:
                if (container["name"], port.get("name")) == (
                    self.kind.container,
                    self.kind.port_name,
                ):
                    return int(port["containerPort"])
        return self.kind.port

    @property
    def firsts(self) -> tuple[Rank, ...]:
        """The ranks that have to be there with any number of pods, in order.

        Workers of PyTorch and TensorFlow find each other by the first of them.
        """
        ranks = [
            Rank(replicas.type.lower(), index)
            for replicas in self.replicas
            if replicas.type != WORKER
            for index in range(replicas.count)
        ]
        workers = self.pods.minimum - len(ranks) if not self.elastic else 1
        return (*ranks, *(Rank(WORKER.lower(), index) for index in range(workers)))


def is_ours(thing: Mapping[str, Any]) -> bool:
    """Return whether an object is for this operator, as `managedBy` says."""
    spec = thing.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    manager = policy.get("managedBy") if isinstance(policy, Mapping) else None
    return manager in (None, MANAGER)


def read_asked(
    thing: Mapping[str, Any], *, slot: Totals, first: int | None = None
) -> KubeflowSpec | Problems:
    """Return the request of an object, or all that is wrong with it.

    Args:
        slot: the most that a pod may ask for.
        first: the workers that were asked for at first; None: it is read for the first time.
    """
    reading = Reading()
    kind = kind_of(thing)
    meta = reading.read_or_none(read_metadata, thing) or {}
    spec = reading.read_or_none(object_of, thing.get("spec"), path="spec") or {}
    replicas = reading.read_or_none(_replicas, kind, spec)
    run = reading.read_or_none(_run_policy, spec)
    scheduling = reading.read_or_none(_scheduling_policy, spec)
    mpi = reading.read_or_none(_mpi_launch, spec) if kind.reached_by_ssh else None
    if reading.problems or replicas is None or run is None:
        return tuple(reading.problems)
    if mpi is not None and run.most_failures is None:
        run = msgspec.structs.replace(run, most_failures=_USUAL_RETRIES)
    for part in replicas:
        reading.read_or_none(_check_size, part, slot, path=f"spec.{kind.specs}.{part.type}")
    found = reading.read_or_none(_range, kind, spec, replicas, first, is_queued(thing))
    if reading.problems or found is None:
        return tuple(reading.problems)
    pods, bounds = found
    if mpi is not None:
        reading.read_or_none(_check_elastic, mpi, bounds)
    if reading.problems:
        return tuple(reading.problems)
    return KubeflowSpec(
        kind=kind,
        job=KubeJob(meta["namespace"], meta["name"], kind.word),
        replicas=replicas,
        pods=pods,
        spec=spec,
        bounds=bounds,
        run=run,
        scheduling=scheduling,
        mpi=mpi,
    )


def submission_of(
    thing: Mapping[str, Any], request: KubeflowSpec, tenants: KnownTenants
) -> Submission | Problems:
    """Return the submission of a job, or the faults of its annotations."""
    reading = Reading()
    notes = thing["metadata"].get("annotations") or {}
    tenant = reading.read_or_none(tenants.chosen, notes.get(TENANT), request.job.namespace)
    path = f"metadata.annotations.{PRIORITY}"
    priority = reading.read_or_none(choice_of, notes.get(PRIORITY), PRIORITIES, path=path)
    if tenant is None or priority is None:
        return tuple(reading.problems)
    workers = request.of(WORKER)
    spec = JobSpec(
        command=(request.kind.name,),
        parameters={REPLICAS: str(workers.count if workers else 0)},
        workers=request.pods,
        exact=False,
        spares=0,
    )
    source = json.dumps(
        [replicas.template for replicas in request.replicas], sort_keys=True
    ).encode()
    submission = Submission(
        spec=spec,
        fingerprint=fingerprint(spec, source),
        tenant=tenant,
        priority=parse_priority(priority),
        opaque=True,
    )
    return by_tenant(submission)


def first_replicas(job: ScheduledJob) -> int:
    """Return the workers that a job was submitted with."""
    return int(job.submission.spec.parameters[REPLICAS])


def wishes_of(
    thing: Mapping[str, Any], job: ScheduledJob, *, slot: Totals
) -> tuple[list[Wished | RangeChanged], Problems]:
    """Return the wishes that the record lacks, as events; see `elastic_jobs.wishes_of`."""
    if job.life.ended:
        return [], ()
    if thing["metadata"].get("deletionTimestamp") is not None:
        if job.life.wish is Wish.CANCEL:
            return [], ()
        return [Wished(job.id, Happening.CANCEL, "its object is deleted")], ()
    request = read_asked(thing, slot=slot, first=first_replicas(job))
    if not isinstance(request, KubeflowSpec):
        return [], request
    events: list[Wished | RangeChanged] = []
    if job.life.wish is (Wish.RUN if request.run.suspend else Wish.HOLD):
        happening = Happening.HOLD if request.run.suspend else Happening.RELEASE
        detail = f"spec.runPolicy.suspend: {str(request.run.suspend).lower()}"
        events.append(Wished(job.id, happening, detail))
    if request.pods != job.submission.spec.workers:
        detail = f"{request.pods.minimum} to {request.pods.maximum} pods"
        events.append(RangeChanged(job.id, request.pods, detail))
    return events, ()


# Replicas -----------------------------------------------------------------------------------------


def _replicas(kind: KubeflowKind, spec: Mapping[str, Any]) -> tuple[Replicas, ...]:
    path = f"spec.{kind.specs}"
    parts = object_of(spec.get(kind.specs), path=path)
    types = {kind_type.lower(): kind_type for kind_type in kind.types}
    found: dict[str, Replicas] = {}
    for name, value in parts.items():
        type = types.get(name.lower())
        if type is None or type in found:
            need = "one each of " + ", ".join(kind.types)
            raise SpecError(f"{path}.{name[:60]}", got=quoted(name), need=need)
        found[type] = _one_type(kind, type, value, path=f"{path}.{name}")
    if not found:
        raise SpecError(path, got=quoted(parts or None), need="at least one type of replicas")
    if kind.word == MPI and LAUNCHER not in found:
        raise SpecError(f"{path}.{LAUNCHER}", got="nothing", need="a launcher")
    return tuple(found[type] for type in kind.types if type in found)


def _one_type(kind: KubeflowKind, type: str, value: object, *, path: str) -> Replicas:
    fields = object_of(value, path=path)
    maximum = LARGEST_COUNT if type in (WORKER, "PS") else 1
    minimum = 1 if type == LAUNCHER else 0
    usual = 0 if kind.word == MPI and type == WORKER else 1
    count = fields.get("replicas")
    return Replicas(
        type=type,
        count=usual
        if count is None
        else whole_of(count, path=f"{path}.replicas", minimum=minimum, maximum=maximum),
        restart_policy=(kind.launcher_policy if type == LAUNCHER else "") or kind.restart_policy
        if fields.get("restartPolicy") in (None, "")
        else choice_of(
            fields["restartPolicy"],
            ("OnFailure", NEVER) if kind.reached_by_ssh else RESTART_POLICIES,
            path=f"{path}.restartPolicy",
        ),
        template=_template(kind, fields.get("template"), path=f"{path}.template"),
    )


def _template(kind: KubeflowKind, value: object, *, path: str) -> Mapping[str, Any]:
    template = object_of(value, path=path)
    object_of(template.get("metadata"), path=f"{path}.metadata")
    pod = object_of(template.get("spec"), path=f"{path}.spec")
    _check_lists(pod, _LISTS_OF_PODS, path=f"{path}.spec")
    if pod.get("nodeName"):
        need = "none: the scheduler says where a pod runs"
        raise SpecError(f"{path}.spec.nodeName", got=quoted(pod["nodeName"]), need=need)
    containers = pod.get("containers")
    place = f"{path}.spec.containers"
    if not isinstance(containers, list) or not 1 <= len(containers) <= _MOST_CONTAINERS:
        raise SpecError(place, got=quoted(containers), need=f"a list of 1 to {_MOST_CONTAINERS}")
    names = set()
    for index, entry in enumerate(containers):
        container = object_of(entry, path=f"{place}[{index}]")
        names.add(text_of(container.get("name"), path=f"{place}[{index}].name", limit=63))
        text_of(container.get("image"), path=f"{place}[{index}].image")
        _check_lists(container, _LISTS_OF_CONTAINERS, path=f"{place}[{index}]")
        if container["name"] == kind.container:
            _check_port(kind, container, path=f"{place}[{index}]")
    if kind.container and kind.container not in names:
        need = f"a container {kind.container!r}"
        raise SpecError(place, got=", ".join(map(quoted, sorted(names))), need=need)
    return template


def _check_lists(thing: Mapping[str, Any], names: Sequence[str], *, path: str) -> None:
    """Raises SpecError where a field to which brim adds is no list, or has something else in it."""
    for name in names:
        values = thing.get(name) or []
        if not isinstance(values, list):
            raise SpecError(f"{path}.{name}", got=quoted(values), need="a list")
        for index, value in enumerate(values if name in _LISTS_OF_OBJECTS else []):
            if not isinstance(value, Mapping):
                place = f"{path}.{name}[{index}]"
                raise SpecError(place, got=quoted(value), need="NAME: VALUE pairs")


def _check_port(kind: KubeflowKind, container: Mapping[str, Any], *, path: str) -> None:
    """Raises SpecError where the port by which replicas meet is none."""
    for index, port in enumerate(container.get("ports") or []):
        if port.get("name") == kind.port_name:
            place = f"{path}.ports[{index}].containerPort"
            whole_of(port.get("containerPort"), path=place, minimum=1, maximum=_MOST_PORTS)


def requests_of(template: Mapping[str, Any], *, path: str = "template") -> dict[str, Any]:
    """Return the requests of a template's containers together, as exact amounts.

    Raises:
        SpecError: an amount cannot be read.
    """
    found: dict[str, Any] = {}
    for index, container in enumerate(template["spec"]["containers"]):
        place = f"{path}.spec.containers[{index}]"
        for name, amount in _amounts_of(container, path=place).items():
            found[name] = found.get(name, 0) + amount
    return found


def _amounts_of(container: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    """Return the amounts of a container: its requests, and its limits where it has no request."""
    resources = object_of(container.get("resources"), path=f"{path}.resources")
    return {
        name: parse_amount(amount, field=f"{path}.resources.{word}.{name}")
        for word in ("limits", "requests")
        for name, amount in object_of(resources.get(word), path=f"{path}.resources.{word}").items()
    }


def _check_size(replicas: Replicas, slot: Totals, *, path: str) -> None:
    """Raises SpecError where a pod asks for more than one slot has, or an amount cannot be read."""
    place = f"{path}.template"
    requested = requests_of(replicas.template, path=place)
    for index, container in enumerate(replicas.template["spec"].get("initContainers") or []):
        _amounts_of(container, path=f"{place}.spec.initContainers[{index}]")
    for name, amount in requested.items():
        if name in slot and name != PODS and amount > slot[name]:
            pod_amount = write_amount(amount)
            raise SpecError(
                f"{place}.spec.containers: {name}",
                got=pod_amount,
                need=f"at most what a slot of this operator has, {write_amount(slot[name])}",
                hint=f"have the operator's slots as large: brim install --slot {name}={pod_amount}",
            )


# How many -----------------------------------------------------------------------------------------


def _range(
    kind: KubeflowKind,
    spec: Mapping[str, Any],
    replicas: Sequence[Replicas],
    first: int | None,
    queued: bool,
) -> tuple[WorkerRange, WorkerRange | None]:
    """Return the pods that a job may have, and the bounds of its workers where it is elastic.

    `replicas` is what it is submitted with. Somebody who changes it afterwards says how many it is
    to have at most; so does an autoscaler, from the beginning, and a queue, which has counted them.
    """
    workers = next((part for part in replicas if part.type == WORKER), None)
    rest = sum(part.count for part in replicas if part.type != WORKER)
    launcher = next((part for part in replicas if part.type == LAUNCHER), None)
    bounds = _elastic(kind, spec, workers, rest, launcher)
    if bounds is None:
        count = workers.count if workers else 0
        works_alone = kind.reached_by_ssh and bool(spec.get("runLauncherAsWorker"))
        if count + rest < 1 or (kind.word == MPI and not (count or works_alone)):
            place = f"spec.{kind.specs}.{WORKER}.replicas"
            raise SpecError(place, got=str(count), need="at least 1")
        return WorkerRange(minimum=count + rest, maximum=count + rest), None
    assert workers is not None
    minimum, maximum = bounds.minimum, bounds.maximum
    is_driven = bool(object_of(spec.get("elasticPolicy"), path="spec.elasticPolicy").get("metrics"))
    if is_driven or queued or (first is not None and workers.count != first):
        maximum = min(max(minimum, workers.count), maximum)
    return WorkerRange(minimum=minimum + rest, maximum=maximum + rest), bounds


def _elastic(
    kind: KubeflowKind,
    spec: Mapping[str, Any],
    workers: Replicas | None,
    rest: int,
    launcher: Replicas | None,
) -> WorkerRange | None:
    """Return the fewest and the most workers of an elastic job; None: it is not elastic."""
    if kind.word == PYTORCH:
        bounds = _elastic_policy(spec, workers)
        if bounds is None or workers is None:
            return None
        return _bounds_in_command(kind, workers, bounds, rest)
    if kind.word == MPI:
        return _horovod_bounds(spec, workers, launcher)
    path = "spec.enableDynamicWorker"
    if not switch_of(spec.get("enableDynamicWorker"), path=path) or workers is None:
        return None
    policy = _scheduling_policy(spec)
    minimum = max(1, (policy.fewest or 0) - rest) if policy is not None else 1
    maximum = max(1, workers.count)
    return WorkerRange(minimum=min(minimum, maximum), maximum=maximum)


def _elastic_policy(spec: Mapping[str, Any], workers: Replicas | None) -> WorkerRange | None:
    path = "spec.elasticPolicy"
    if spec.get("elasticPolicy") is None:
        return None
    policy = object_of(spec["elasticPolicy"], path=path)
    if workers is None:
        raise SpecError(path, got="no Worker", need="replicas of type Worker")
    if spec.get("nprocPerNode") is not None and policy.get("nProcPerNode") is not None:
        raise SpecError(f"{path}.nProcPerNode", got="both", need="spec.nprocPerNode alone")
    fields = {
        name: whole_of(policy[name], path=f"{path}.{name}", minimum=1, maximum=LARGEST_COUNT)
        for name in ("minReplicas", "maxReplicas")
        if policy.get(name) is not None
    }
    usual = max(1, workers.count)
    minimum = fields.get("minReplicas", min(usual, fields.get("maxReplicas", usual)))
    maximum = fields.get("maxReplicas", max(usual, minimum))
    if minimum > maximum:
        raise SpecError(f"{path}.minReplicas", got=str(minimum), need=f"at most {maximum}")
    return WorkerRange(minimum=minimum, maximum=maximum)


def _bounds_in_command(
    kind: KubeflowKind, workers: Replicas, policy: WorkerRange, rest: int
) -> WorkerRange | None:
    """Return a policy's bounds as far as the workers' own command has them, too.

    Words of a command count more than the variables that the operator sets. With a fixed number
    of nodes it waits for them all, and uses no other: such a job is not elastic.
    """
    containers = workers.template["spec"]["containers"]
    index = next(i for i, container in enumerate(containers) if container["name"] == kind.container)
    nodes = option_of(command_of(_without_variable(containers[index], "PET_NNODES")), *_NODES)
    if nodes is None or _POLICY_NODES.fullmatch(nodes):
        return policy
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", nodes)
    path = f"spec.{kind.specs}.{WORKER}"
    place = f"{path}.template.spec.containers[{index}]"
    if found is None:
        raise SpecError(
            place,
            got=f"{_NODES[0]} {quoted(nodes)}",
            need="numbers, or a variable to which `env` of the container gives them",
            hint=f"leave {_NODES[0]} out: torchrun gets the policy's as PET_NNODES",
        )
    minimum, maximum = int(found[1]) - rest, int(found[2] or found[1]) - rest
    if minimum == maximum:
        if workers.count != maximum:
            need = f"{maximum}, since {_NODES[0]} in the command says {nodes}"
            raise SpecError(f"{path}.replicas", got=str(workers.count), need=need)
        return None
    minimum, maximum = max(minimum, policy.minimum), min(maximum, policy.maximum)
    if minimum > maximum:
        need = f"from {policy.minimum} to {policy.maximum} workers, as spec.elasticPolicy has it"
        raise SpecError(place, got=f"{_NODES[0]} {nodes}", need=need)
    return WorkerRange(minimum=minimum, maximum=maximum)


def _without_variable(container: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a container without a variable."""
    env = [variable for variable in container.get("env") or [] if variable.get("name") != name]
    return {**container, "env": env}


def _horovod_bounds(
    spec: Mapping[str, Any], workers: Replicas | None, launcher: Replicas | None
) -> WorkerRange | None:
    """Return the bounds that a launcher's own command says: those of an elastic horovodrun.

    Its numbers are of processes, of which a worker has as many as it has slots.
    """
    path = "spec.slotsPerWorker"
    slots = spec.get("slotsPerWorker")
    slots = 1 if slots is None else whole_of(slots, path=path, minimum=1, maximum=LARGEST_COUNT)
    if spec.get("mainContainer"):
        name_of(spec["mainContainer"], _CONTAINER, path="spec.mainContainer")
    if workers is None or launcher is None:
        return None
    command = command_of(launcher.template["spec"]["containers"][0])
    if _DISCOVERS not in command:
        return None

    def value_of(*options: str) -> int | None:
        number = option_of(command, *options)
        if number is not None and not re.fullmatch(r"\d{1,6}", number, re.ASCII):
            raise SpecError(
                f"spec.mpiReplicaSpecs.{LAUNCHER}.template.spec.containers[0]",
                got=f"{options[0]} {quoted(number)}",
                need="a number, or a variable to which `env` of the container gives one",
            )
        return int(number) if number is not None else None

    usual = max(1, workers.count)
    processes = value_of("-np", "--num-proc")
    fewest = value_of("--min-np", "--min-num-proc") or processes
    highest = value_of("--max-np", "--max-num-proc")
    minimum = -(-fewest // slots) if fewest else usual
    maximum = highest // slots if highest else max(usual, minimum)
    if not 1 <= minimum <= maximum:
        actual = f"{fewest} to {highest} processes of {slots} on each worker"
        need = "a number of workers between them"
        raise SpecError(f"spec.mpiReplicaSpecs.{LAUNCHER}", got=actual, need=need)
    return WorkerRange(minimum=minimum, maximum=maximum)


# MPI of v2beta1 -----------------------------------------------------------------------------------


def _mpi_launch(spec: Mapping[str, Any]) -> MpiLaunch:
    return read_struct(MpiLaunch, spec, path="spec")


def _check_elastic(mpi: MpiLaunch, bounds: WorkerRange | None) -> None:
    """Raises SpecError where the hosts of an elastic job are other ones than its bounds count."""
    if mpi.launcher_works and bounds is not None:
        raise SpecError(
            "spec.runLauncherAsWorker",
            got=f"true, beside {_DISCOVERS} in the launcher's command",
            need="one of them: the launcher of an elastic horovodrun is no worker of it",
        )


# The run policy -----------------------------------------------------------------------------------


def _run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    path = "spec.runPolicy"
    policy = object_of(spec.get("runPolicy"), path=path)
    # MPIJob has it in two places.
    outer, inner = spec.get("cleanPodPolicy"), policy.get("cleanPodPolicy")
    if None not in (outer, inner) and outer != inner:
        raise SpecError(f"{path}.cleanPodPolicy", got=quoted(inner), need=f"as above, {outer}")
    chosen = choice_of(outer, _CLEANINGS, path="spec.cleanPodPolicy")
    run = read_struct(RunPolicy, policy, path=path)
    return run if outer is None else msgspec.structs.replace(run, clean=chosen)


def _scheduling_policy(spec: Mapping[str, Any]) -> SchedulingPolicy | None:
    path = "spec.runPolicy.schedulingPolicy"
    policy = object_of(spec.get("runPolicy"), path="spec.runPolicy").get("schedulingPolicy")
    return None if policy is None else read_struct(SchedulingPolicy, policy, path=path)
