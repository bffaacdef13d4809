"""The settings of an operator. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.kubernetes.client.kube_types import Amounts
from brim.kubernetes.nodes.node_selection import node_requirements
from brim.kubernetes.pods.manifests import USUAL_GRACE

MASTERS = "(masters)"  # no node of Kubernetes can have that name


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings of an operator.

    Args:
        directory: for its working copy of the book, and of the records of runs.
        namespace: its own.
        image: of jobs that name none.
        slot: resources of a worker.
        watched: the namespace whose jobs it schedules; empty: all.
        node_labels: a selector of the nodes that it may use; empty: all.
        tolerated: keys of taints that its jobs' pods bear.
        foreign_kinds: jobs of kinds that others have defined are its, too: see `kinds`.
        kubectl: the image from which launchers of MPIJobs get kubectl; empty: the usual one.
        gangs: jobs of foreign kinds with a scheduling policy are gangs; an ElasticJob says it itself.
        evictions: evictions of jobs' pods are answered, where the server has them.
        policy, headroom, grace: see `ClusterSpec`.
        usage_half_life: see `ClusterSpec`; it counts while there are tenants.
        volume_size: of the volume on which a job's master keeps the run, where the job names no place
            for it; empty: it has none, and starts from scratch after it was suspended.
        placeholders: jobs that wait for places and have placeholders, at most.
        service_urls: how the URLs of services' loads may begin; none: no service is scaled.

    Raises:
        SpecError: the nodes are no selector.
    """

    directory: Path
    namespace: str
    image: str
    slot: Amounts
    watched: str = ""
    node_labels: str = ""
    tolerated: tuple[str, ...] = ()
    foreign_kinds: bool = False
    kubectl: str = ""
    gangs: bool = False
    evictions: bool = False
    policy: str = "brim"
    headroom: int = 0
    grace: float = USUAL_GRACE
    usage_half_life: float | None = None
    volume_size: str = ""
    placeholders: int = 0
    service_urls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        node_requirements(self.node_labels)

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as the operator describes it: all devices are brought by nodes."""
        return ClusterSpec(
            cluster=Cluster(nodes=(Node(id=MASTERS, devices=0),)),
            policy=self.policy,
            headroom=self.headroom,
            grace=self.grace,
        )
