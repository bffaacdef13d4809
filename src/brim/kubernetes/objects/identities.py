"""Names and labels of jobs' pods: which job and which start of it a pod is of, and where. Pure.

Names follow from the job alone, so objects of an earlier operator are found by the next.
"""

from __future__ import annotations

from typing import NamedTuple

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.objects.foreign_kinds import foreign_kinds

GROUP = "brim.dev"
VERSION = "v1alpha1"
KIND = "ElasticJob"
MANAGED_BY = "app.kubernetes.io/managed-by"
OPERATOR = "brim"  # what manages; also the name under which fields are applied
JOB = f"{GROUP}/job"
ROLE = f"{GROUP}/role"
LAUNCH = f"{GROUP}/launch"
NODE = f"{GROUP}/node"  # an annotation: a label may be shorter than the name of a node
MASTER, WORKER = "master", "worker"
PLACEHOLDER = "placeholder"  # the role of a pod that stands for a worker, and is none
PLACEHOLDER_CLASS = "brim-placeholder"  # the PriorityClass of those, below that of all other pods
SERVICE = "brim-masters"  # by which the masters of a namespace have names


class KubeJob(NamedTuple):
    """The name of a job's object.

    Attributes:
        kind: the word of its kind, where it is a foreign one; empty: it is an ElasticJob.

    >>> KubeJob("team", "flights").id, KubeJob.parse("team.flights.v2").name
    ('team.flights', 'flights.v2')
    >>> KubeJob("team", "imagenet", "pytorchjob").id, KubeJob.parse("team.imagenet.pytorchjob").kind
    ('team.imagenet.pytorchjob', 'pytorchjob')
    >>> KubeJob.parse("team.pytorchjob")  # an ElasticJob of that name
    KubeJob(namespace='team', name='pytorchjob', kind='')
    """

    namespace: str
    name: str
    kind: str = ""

    @property
    def id(self) -> str:
        """The id of the job: names of namespaces have no dots."""
        return f"{self.namespace}.{self.name}" + (f".{self.kind}" if self.kind else "")

    @classmethod
    def parse(cls, id: str) -> KubeJob:
        """Return the name that an id was made of."""
        namespace, _, name = id.partition(".")
        prefix, _, word = name.rpartition(".")
        is_foreign = bool(prefix) and word in foreign_kinds()
        return cls(namespace, prefix, word) if is_foreign else cls(namespace, name)

    @property
    def kind_name(self) -> str:
        """The kind of its object, as that has it."""
        return foreign_kinds()[self.kind] if self.kind else KIND

    @property
    def master(self) -> str:
        """The name of its master's pod."""
        return f"{self.name}-{MASTER}"

    def start(self, launch: int) -> str:
        """The common part of the names of all pods of a start."""
        return f"{self.name}-{launch}"

    def worker(self, launch: int, number: int) -> str:
        """The name of a worker's pod."""
        return f"{self.name}-{launch}-{number}"


class PodIdentity(NamedTuple):
    """The job that a pod is of.

    Attributes:
        launch: the start of the job.
        role: master or worker.
        node: on which it is, or is to be.
        uid: of the job's object; another one of the same name has another.
    """

    job: str
    launch: int
    role: str
    node: str
    uid: str


def labels_of(job: KubeJob, role: str, launch: int) -> dict[str, str]:
    """Return the labels of a pod of a job."""
    return {MANAGED_BY: OPERATOR, JOB: job.name, ROLE: role, LAUNCH: str(launch)}


def identity_of(pod: KubePod) -> PodIdentity | None:
    """Return the job that a pod is of; None where it is anybody else's.

    Its labels alone do not make it a job's: that has to be its owner, by the same name.
    """
    meta = pod.metadata
    role, launch = meta.labels.get(ROLE, ""), meta.labels.get(LAUNCH, "")
    if role not in (MASTER, WORKER) or not (launch.isascii() and launch.isdecimal()):
        return None
    if (owner := _owner_of(pod)) is None:
        return None
    node = pod.spec.node_name or meta.annotations.get(NODE, "")
    return PodIdentity(owner.job, int(launch), role, node, owner.uid)


class JobObject(NamedTuple):
    """The object of a job.

    Attributes:
        job: its id.
        uid: of the object.
    """

    job: str
    uid: str


def stands_for(pod: KubePod) -> JobObject | None:
    """Return the job for whose worker a pod stands as a placeholder; None where it is no such pod.

    Its PriorityClass makes it one as well: it gives way to every other pod, so somebody who made it
    hides nothing by it.
    """
    is_one = pod.metadata.labels.get(ROLE) == PLACEHOLDER
    return _owner_of(pod) if is_one and pod.spec.priority_class_name == PLACEHOLDER_CLASS else None


def _owner_of(pod: KubePod) -> JobObject | None:
    """Return the job that owns a pod, by the name that its label has."""
    meta = pod.metadata
    name = meta.labels.get(JOB)
    for owner in meta.owner_references:
        if owner.controller and owner.name == name:
            job = KubeJob(meta.namespace, name, _word_of(owner.kind))
            if owner.kind == job.kind_name:
                return JobObject(job.id, owner.uid)
    return None


def _word_of(kind: str) -> str:
    """Return the word of a foreign kind; empty for any other."""
    word = kind.lower()
    return word if kind != KIND and word in foreign_kinds() else ""


def placeholder_of(job: KubeJob, number: int) -> str:
    """Return the name of a placeholder of a job."""
    return "-".join(filter(None, (job.name, job.kind, PLACEHOLDER, str(number))))


def number_of(pod: KubePod, job: KubeJob, launch: int) -> int | None:
    """Return the number of a worker's pod among those of its start; None where it has none."""
    number = pod.metadata.name.removeprefix(f"{job.start(launch)}-")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else None
