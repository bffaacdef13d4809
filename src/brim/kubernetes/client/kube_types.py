"""Objects of an API server as they are read: the fields that decide something, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

Amounts: TypeAlias = Mapping[str, str | int | float]
"""Quantities by resource, as they are written."""

READY, SCHEDULED = "Ready", "PodScheduled"
ENDED = frozenset({"Succeeded", "Failed"})  # phases of a pod whose containers do not run any more
UNSCHEDULABLE = "Unschedulable"
_NO_ROOM = ("Insufficient ", "Too many pods")  # one is in what it says where a node is full
# Reasons of a pod that a kubelet has turned away, and the beginning of those that name a resource.
_TURNED_AWAY = frozenset({"TopologyAffinityError", "UnexpectedAdmissionError"})
_OUT_OF = "OutOf"
_ITS_GANG = "minCount ("  # is in what kube-scheduler says of a pod that others keep waiting


class ObjectFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object; fields that are not named here are passed over."""


class Owner(ObjectFields, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(ObjectFields, frozen=True, kw_only=True):
    """The name of an object, and its owner.

    Args:
        deletion_timestamp: when it is to be gone at the latest, where it was asked to end.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[Owner, ...] = ()

    @property
    def key(self) -> str:
        """`NAMESPACE/NAME`, or the name of an object without namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(ObjectFields, frozen=True, kw_only=True):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


# Nodes --------------------------------------------------------------------------------------------


class Taint(ObjectFields, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = ""


class NodeDescription(ObjectFields, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(ObjectFields, frozen=True, kw_only=True):
    type: str = ""
    address: str = ""


class NodeReport(ObjectFields, frozen=True, kw_only=True):
    allocatable: Amounts = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class KubeNode(ObjectFields, frozen=True, kw_only=True):
    """A node as its kubelet and its administrators describe it."""

    metadata: Metadata
    spec: NodeDescription = NodeDescription()
    status: NodeReport = NodeReport()


# Pods ---------------------------------------------------------------------------------------------


class Resources(ObjectFields, frozen=True, kw_only=True):
    requests: Amounts = {}


class Container(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None


class PodDescription(ObjectFields, frozen=True, kw_only=True):
    """The fields of a pod's spec.

    Args:
        resources: of the pod as a whole, where somebody has given them.
    """

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Amounts = {}
    priority_class_name: str = ""
    resources: Resources | None = None


class Terminated(ObjectFields, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(ObjectFields, frozen=True, kw_only=True):
    terminated: Terminated | None = None


class ContainerReport(ObjectFields, frozen=True, kw_only=True):
    name: str = ""
    state: ContainerState = ContainerState()
    restart_count: int = 0
    allocated_resources: Amounts = {}


class PodReport(ObjectFields, frozen=True, kw_only=True):
    """The fields of a pod's status.

    Args:
        nominated_node_name: where it is to be once others have been taken away for it.
    """

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerReport, ...] = ()


class KubePod(ObjectFields, frozen=True, kw_only=True):
    """A pod as the API server has it."""

    metadata: Metadata
    spec: PodDescription = PodDescription()
    status: PodReport = PodReport()

    @property
    def has_ended(self) -> bool:
        """True where none of its containers runs, or ever will: it holds nothing."""
        return self.status.phase in ENDED

    @property
    def is_bound(self) -> bool:
        """True where a scheduler has said on which node it is."""
        return bool(self.spec.node_name)

    @property
    def is_leaving(self) -> bool:
        """True where it was asked to end."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_ready(self) -> bool:
        """True where it does its work."""
        return any(
            condition.type == READY and condition.status == "True"
            for condition in self.status.conditions
        )

    @property
    def was_turned_away(self) -> bool:
        """True where the kubelet of its node did not take it: there was less room than believed."""
        reason = self.status.reason
        return self.status.phase == "Failed" and (
            reason.startswith(_OUT_OF) or reason in _TURNED_AWAY
        )

    @property
    def is_refused(self) -> bool:
        """True where no node takes it as it is, and no other is preempted for it."""
        message = self.why_unschedulable
        return message is not None and _ITS_GANG not in message

    @property
    def lacks_room(self) -> bool:
        """True where it is refused since its node has too little of its requests left."""
        message = self.why_unschedulable or ""
        return self.is_refused and any(words in message for words in _NO_ROOM)

    @property
    def waits_for_its_gang(self) -> bool:
        """True where others of its gang were refused: whether its node has room was not said."""
        message = self.why_unschedulable
        return message is not None and _ITS_GANG in message

    @property
    def why_unschedulable(self) -> str | None:
        """The reason for which kube-scheduler does not bind it, in its words; None: it has said none."""
        if self.status.nominated_node_name:
            return None
        return next(
            (
                condition.message
                for condition in self.status.conditions
                if (condition.type, condition.status, condition.reason)
                == (SCHEDULED, "False", UNSCHEDULABLE)
            ),
            None,
        )
