"""Events that the automaton of a job's pods takes, and commands that it gives. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from brim.backends.processes import Launch
from brim.backends.watching import RunWatch
from brim.coordination.cluster.reconcile import ByNode
from brim.coordination.cluster.sightings import NodeSeen
from brim.errors import EnvironmentFault
from brim.kubernetes.client.kube_types import Amounts, KubePod
from brim.kubernetes.client.resources import PlainObject
from brim.kubernetes.pods.manifests import Manifest

Order = TypeVar("Order")


class JobSight(NamedTuple, Generic[Order]):
    """The state of the world around one job at an event.

    Attributes:
        now: monotonic seconds of seen time.
        wall: seconds since 1970.
        order: the object of the job as far as its pods go; None: it is gone.
        pods: of the job, of any start.
        nodes: as they were seen last.
        run: the present knowledge of its run; None: it has no follower.
    """

    now: float
    wall: float
    order: Order | None
    pods: tuple[KubePod, ...]
    nodes: Mapping[str, NodeSeen]
    run: RunWatch | None = None


# Events -------------------------------------------------------------------------------------------


class PodsSeen(NamedTuple):
    """A look at the present start of a job: `JobPods.seen` is as it says."""

    launch: Launch


class Swept(NamedTuple):
    """A look for pods that are of no use.

    Attributes:
        running: the number of the present start; None: the job has no processes.
    """

    running: int | None


class WorkersAsked(NamedTuple):
    """A wish for so many workers on each node.

    Attributes:
        begins: the start begins, and the needs of its pods beside them may be missing.
    """

    launch: Launch
    workers: ByNode
    begins: bool = False


class Begun(NamedTuple):
    """The end of `WorkersAsked` that begins a start: all of it was carried out."""

    launch: Launch


class Left(NamedTuple):
    """A wish that a job leaves a node."""

    launch: Launch
    node: str


class Suspended(NamedTuple):
    """A wish that a job ends for now, as it ends by itself."""

    launch: Launch


class Forced(NamedTuple):
    """An order to end at once the pods beyond so many workers."""

    launch: Launch
    workers: ByNode


class CommandEnded(NamedTuple):
    """The end of a command.

    Attributes:
        fault: why it came to nothing; None: it is carried out.
        now: monotonic seconds of seen time.
    """

    command: Command
    fault: EnvironmentFault | None
    now: float


Event = PodsSeen | Swept | WorkersAsked | Begun | Left | Suspended | Forced | CommandEnded

# Commands -----------------------------------------------------------------------------------------


class AwaitRecord(NamedTuple):
    """Wait until the record of the job is on the server."""


class ClearWay(NamedTuple):
    """End the placeholders on nodes, where pods are about to be made."""

    nodes: frozenset[str]


class MakeObject(NamedTuple):
    """Make an object; one of its name that is the job's was made for it."""

    manifest: Manifest


class KeepObjects(NamedTuple):
    """Have objects be so, one after the other."""

    manifests: tuple[Manifest, ...]


class RemoveObject(NamedTuple):
    """Delete an object, and its dependents.

    Attributes:
        thing: has its version of the API, its kind, its name and namespace; the uid if it is to be
            this very one.
    """

    thing: PlainObject


class RemoveServices(NamedTuple):
    """Delete the Services of a job that have all these labels."""

    labels: Mapping[str, str]


class Annotate(NamedTuple):
    """Have a pod have annotations."""

    pod: KubePod
    notes: Mapping[str, str]


class MakePod(NamedTuple):
    """Make a pod.

    Attributes:
        slot: the node that failures of it count for, or a stand-in for one.
        node: that it is to be on; empty: any.
        service: of its namespace, by which it is found; None: there is none.
        beside_slots: its requests, where it is to be on a node on which it costs no slot; None: it
            is to have one.
    """

    manifest: Manifest
    slot: str
    node: str = ""
    service: Manifest | None = None
    beside_slots: Amounts | None = None

    @property
    def name(self) -> str:
        """The name of the pod."""
        return str(self.manifest["metadata"]["name"])


class EndPod(NamedTuple):
    """Ask a pod to end.

    Attributes:
        grace: seconds that it has; None: its own.
    """

    pod: KubePod
    grace: int | None = None


class AskMaster(NamedTuple):
    """Ask the master at this address to suspend its run."""

    address: str
    token: str


class Refuse(NamedTuple):
    """Say that the wish cannot be fulfilled now."""

    problem: str


class FollowRun(NamedTuple):
    """Follow the run of the job at this address.

    Attributes:
        version: of the master's pod.
    """

    address: str
    token: str
    version: str


class HoldBack(NamedTuple):
    """Let the job have no node until a time, monotonic seconds."""

    until: float


class MakeRoom(NamedTuple):
    """Have plans give slots to a pod that finds room nowhere.

    Attributes:
        nodes: on which it may be counted, with the workers that the job has there.
    """

    pod: KubePod
    nodes: Mapping[str, int]


Command = (
    AwaitRecord
    | ClearWay
    | MakeObject
    | KeepObjects
    | RemoveObject
    | RemoveServices
    | Annotate
    | MakePod
    | EndPod
    | AskMaster
    | Refuse
    | FollowRun
    | HoldBack
    | MakeRoom
)

Stage = tuple[Command, ...]
"""Commands that are carried out side by side; the next stage begins once all are."""
