"""Kinds whose objects are jobs, as an operator and its installation know them.

ElasticJobs are brim's own. Kinds that others have defined come in families, which entry points name:
nothing imports one, and a reader of the operator need know none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from brim.coordination.cluster.scheduled_jobs import RangeChanged, Wished
from brim.domain.course import Change
from brim.domain.scheduled_job import ScheduledJob
from brim.domain.submission import Submission
from brim.errors import EnvironmentFault
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.declared import Schema
from brim.kubernetes.client.reading import Problems
from brim.kubernetes.client.reflector import Reflector
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.nodes.node_selection import NodeChoice
from brim.kubernetes.objects.identities import KubeJob
from brim.kubernetes.objects.status import Stall
from brim.kubernetes.objects.tenants import KnownTenants
from brim.kubernetes.pods.job_pods import JobPods
from brim.kubernetes.pods.known_pods import KnownPods
from brim.kubernetes.pods.manifests import Manifest
from brim.kubernetes.settings import OperatorSettings
from brim.user_code.plugins import KINDS, own_plugins

Records = tuple[list[ScheduledJob], dict[str, EnvironmentFault]]
"""The records that objects have, and why others cannot be read, by job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    """The part of an operator that a family of kinds stands on.

    Args:
        pods: of all jobs.
        changed: is called with the id of each job whose object has changed.
        record: the record of a job by its id; None: it has none.
        wall: seconds since 1970.
    """

    server: ApiServer
    settings: OperatorSettings
    pods: KnownPods
    changed: Callable[[str], None]
    record: Callable[[str], ScheduledJob | None]
    wall: Callable[[], float]


class JobObjects(Protocol):
    """The objects of a family of kinds: one of them is one job."""

    @property
    def watches(self) -> Sequence[Reflector[PlainObject]]:
        """The watches that keep all this up to date; an operator runs it."""
        ...

    def begin(self, *, key: bytes, evictions: bool) -> None:
        """Know the findings of an operator that comes up.

        Args:
            key: of which it makes tokens and marks.
            evictions: the server has them, and the operator answers them.
        """
        ...

    def ids(self) -> Iterable[str]:
        """Return the ids of all jobs that have an object."""
        ...

    def object(self, job: str) -> PlainObject | None:
        """Return the object of a job; None where there is none."""
        ...

    def read_records(self) -> Records:
        """Return the records of all objects."""
        ...

    async def read(self, thing: PlainObject, tenants: KnownTenants) -> Submission | Problems:
        """Return the submission of an object that is read for the first time."""
        ...

    def wishes(
        self, thing: PlainObject, record: ScheduledJob
    ) -> tuple[list[Wished | RangeChanged], Problems]:
        """Return the wishes of an object that its record lacks."""
        ...

    def shape(self, job: KubeJob) -> JobPods[Any]:
        """Return the automaton of a job's pods."""
        ...

    def order(self, job: str) -> Any:
        """Return the object of a job as far as its pods go; None where it is gone."""
        ...

    def choice(self, job: str) -> NodeChoice:
        """Return the nodes on which all pods of a job may be."""
        ...

    def placeholders(self, job: str, fewest: int) -> Sequence[Manifest]:
        """Return the placeholders of a job that needs so many pods to run."""
        ...

    async def show_stall(self, thing: PlainObject, stall: Stall) -> None:
        """Say in the status of an object why nothing comes of it."""
        ...

    def forget(self, job: str) -> None:
        """Know nothing more of a job whose object is gone."""
        ...


class ForeignObjects(JobObjects, Protocol):
    """The objects of a family that others have defined: the server may have no such kinds."""

    async def find(self) -> None:
        """Find out which of the kinds the server has; before that there are no objects."""
        ...

    async def write(
        self, thing: PlainObject, record: ScheduledJob, story: Sequence[Change], stall: Stall | None
    ) -> None:
        """Have the object of a job keep its record, and say how it does."""
        ...


class RoleRule(NamedTuple):
    """Verbs on resources of a group, as a rule of a role has them."""

    group: str
    resources: Sequence[str]
    verbs: Sequence[str]


class KindFamily(Protocol):
    """Kinds of one maker."""

    @property
    def words(self) -> Collection[str]:
        """The words by which the kinds stand in ids of jobs, see `KubeJob`."""
        ...

    @property
    def resources(self) -> Mapping[str, Sequence[str]]:
        """The resources of the kinds, by their group: people have rights on them."""
        ...

    @property
    def rights(self) -> Sequence[RoleRule]:
        """The operator's rights for these kinds, beside those that all jobs take."""
        ...

    def definitions(self) -> Mapping[str, Schema]:
        """Return the definitions of the kinds, by the names of their files."""
        ...

    def objects(self, context: OperatorContext) -> ForeignObjects:
        """Return an operator's knowledge of the objects of these kinds."""
        ...


@functools.cache
def foreign_families() -> tuple[KindFamily, ...]:
    """Return the families that entry points of brim itself name, kind by kind."""
    families: list[KindFamily] = []
    for plugin in own_plugins(KINDS).values():
        family: KindFamily = plugin.load()
        if family not in families:
            families.append(family)
    return tuple(families)
