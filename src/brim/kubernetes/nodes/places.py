"""Places for workers on the nodes of Kubernetes: how many slots each has free of others. Pure.

A slot is the room of one worker. A node has as many as its allocatable resources hold beside the
requests of all pods that are no workers of jobs, and requests of workers' pods beyond a slot.
Placeholders take nothing: they give way to workers. What kube-scheduler and kubelets refuse is taken
in as well: a pod that its node does not take stands for a slot that is not there, for a while.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from brim.coordination.cluster.sightings import AgentSeen, NodeSeen
from brim.domain.cluster import MOST_DEVICES, Node
from brim.errors import SpecError
from brim.kubernetes.client.amounts import (
    PODS,
    Totals,
    asked_by,
    parse_amount,
    parse_amounts,
    total,
)
from brim.kubernetes.client.kube_types import READY, Amounts, KubeNode, KubePod, Taint
from brim.kubernetes.nodes.node_choices import NodeChoices
from brim.kubernetes.objects.identities import WORKER, PodIdentity, identity_of, stands_for

_EVICTS = "NoExecute"
_CLOSES = frozenset({"NoSchedule", _EVICTS})  # effects of taints
_TO_RETURN = 5.0  # seconds that plans count on a node whose kubelet says that it is not ready
_REFUSED, _LONGEST_REFUSED = 10.0, 300.0  # seconds that a slot is not counted; doubled each time

# Taints that nodes get before they are taken away: by autoscalers, and by those who pass on the
# notices of clouds.
GIVES_WAY = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "remediation.kubernetes.azure.com/spot-eviction",
    }
)


def slot_of(amounts: Amounts) -> Totals:
    """Return the resources of one worker.

    Raises:
        SpecError: that is nothing, or less than nothing of something.

    >>> {name: str(amount) for name, amount in slot_of({"cpu": "500m"}).items()}
    {'pods': '1', 'cpu': '1/2'}
    """
    found = {name: parse_amount(amount) for name, amount in amounts.items()}
    odd = sorted(name for name, amount in found.items() if amount < 0)
    if odd or not any(found.values()):
        raise SpecError(
            "slot",
            got=f"{odd[0]}: {amounts[odd[0]]}" if odd else "nothing",
            need="what one worker gets, more than 0 of at least one resource",
            hint="slot: {cpu: 1, memory: 2Gi}",
        )
    return {PODS: Fraction(1), **{name: amount for name, amount in found.items() if amount}}


def slots_in(allocatable: Totals, occupied: Totals, slot: Totals) -> int:
    """Count the slots that fit beside the used resources; none where nothing is left."""
    free = (
        math.floor((allocatable.get(name, Fraction(0)) - occupied.get(name, Fraction(0))) / amount)
        for name, amount in slot.items()
    )
    return max(0, min(MOST_DEVICES, *free, MOST_DEVICES))


@dataclass(slots=True)
class _Refusal:
    """Slots of a node that kube-scheduler does not see.

    Args:
        slots: how many.
        until: when they are tried again.
        wait: seconds that they were not tried for.
        without: the slots that the node was believed to have; other ones end the refusal.
    """

    slots: int
    until: float
    wait: float
    without: int


class NodePlaces:
    """The nodes and pods of a cluster as slots, kept up to date object by object.

    Args:
        slot: see `slot_of`.
        tolerated: keys of taints that the pods of workers bear.

    Attributes:
        choices: which nodes jobs may have.
        doubts: nodes that are not ready may be there: the server was silent for long.
    """

    def __init__(self, slot: Totals, *, tolerated: Collection[str] = ()) -> None:
        self.choices = NodeChoices()
        self._slot, self._tolerated = slot, frozenset(tolerated)
        self._nodes: dict[str, KubeNode] = {}
        self._pods: dict[str, tuple[KubePod, str]] = {}  # and their nodes
        self._room: dict[str, str] = {}  # nodes by the pods that are to find room there
        self._spare: dict[str, Totals] = {}  # what nodes have beside their slots
        self._pods_on: dict[str, dict[str, KubePod]] = {}  # pods by node
        self._amounts: dict[str, Totals] = {}
        self._beyond: dict[str, Totals] = {}  # what workers' pods request beyond a slot
        self._unready: dict[str, float] = {}  # since when
        self._refusals: dict[str, _Refusal] = {}
        self._seen: dict[str, NodeSeen] = {}
        self._changed: set[str] = set()
        self._left_alone: frozenset[str] = frozenset()
        self._tainted: set[str] = set()  # nodes whose taints not all workers' pods bear
        self.doubts = False

    def leave_alone(self, jobs: Collection[str]) -> None:
        """Count the pods of these jobs as foreign: no decisions about them are made."""
        self._left_alone = frozenset(jobs)
        self._changed |= self._pods_on.keys()

    def take_node(self, name: str, node: KubeNode | None) -> None:
        """Know a node as it is now; None: it is gone."""
        self._tainted.discard(name)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
            if self._closing(node):
                self._tainted.add(name)
        self.choices.forget_node(name)
        self._changed.add(name)

    def take_pod(self, key: str, pod: KubePod | None) -> None:
        """Know a pod as it is now; None: it is gone."""
        _, node_before = self._pods.pop(key, (None, ""))
        self._amounts.pop(key, None)
        self._beyond.pop(key, None)
        if node_before:
            del self._pods_on[node_before][key]
            if not self._pods_on[node_before]:
                del self._pods_on[node_before]
            self._changed.add(node_before)
        if pod is None or pod.spec.node_name:
            self._room.pop(key, None)
        node = "" if pod is None or not _counts(pod) else _place_of(pod) or self._room.get(key, "")
        if pod is not None and node:
            self._pods[key] = pod, node
            self._pods_on.setdefault(node, {})[key] = pod
            self._changed.add(node)

    def make_room(self, pod: KubePod, nodes: Mapping[str, int]) -> None:
        """Count a pod that finds room nowhere as if it were on a node, until it is on one.

        Plans then take as many workers from there as it needs.

        Args:
            nodes: on which it may be counted, and for each a number: the largest is preferred.
        """
        found = [name for name in nodes if self._is_open(name)]
        key = pod.metadata.key
        if found and self._room.get(key) not in found:
            self._room[key] = min(found, key=lambda name: (-nodes[name], name))
            self.take_pod(key, pod)

    def node_beside_slots(self, requests: Amounts) -> str:
        """Return an open node with room for a pod beside all its slots; empty: there is none.

        That room is counted as taken, and a node that was too full is not asked again, until a pod
        comes there or goes. So the masters of a thousand jobs look at each of a thousand nodes once.

        Args:
            requests: of the pod.
        """
        amounts = {PODS: Fraction(1), **parse_amounts(requests)}
        while self._spare:
            name, spare = next(iter(self._spare.items()))
            if self._is_open(name) and all(
                spare.get(resource, 0) >= amount for resource, amount in amounts.items()
            ):
                self._spare[name] = {
                    resource: amount - amounts.get(resource, Fraction(0))
                    for resource, amount in spare.items()
                }
                return name
            del self._spare[name]
        return ""

    def _is_open(self, name: str) -> bool:
        seen = self._seen.get(name)
        return seen is not None and seen.up

    def seen(self, now: float) -> Mapping[str, NodeSeen]:
        """Return the sight of each node.

        Args:
            now: monotonic seconds.
        """
        due = {
            name
            for name, unready_since in self._unready.items()
            if now - unready_since > _TO_RETURN
        }
        due |= {
            name
            for name, refusal in self._refusals.items()
            if refusal.slots and now >= refusal.until
        }
        self.choices.release_due(now)
        if self.choices.are_others:
            due |= self._tainted  # open to some job now, or to none any more
        changed, self._changed = self._changed | due, set()
        if changed:
            self._seen = {**self._seen, **{name: self._look(name, now) for name in changed}}
            self._seen = {name: seen for name, seen in self._seen.items() if name in self._nodes}
        if self.choices.has_news:
            self._seen = {
                name: seen._replace(refuses=self._refuses(name))
                for name, seen in self._seen.items()
            }
        self.choices.settle()
        return self._seen

    @property
    def last(self) -> Mapping[str, NodeSeen]:
        """The nodes as `seen` has said last."""
        return self._seen

    def awaits_worker(self, name: str) -> bool:
        """Return whether a worker that is to be on a node is not bound yet."""
        workers_here, _ = self._of_jobs(name)
        return any(not self._pods[key][0].spec.node_name for key in workers_here)

    def is_calm(self) -> bool:
        """Return whether the sight changes only with another object, and not with time."""
        refused = any(refusal.slots for refusal in self._refusals.values())
        waits = self._unready or refused or self.choices.holds_back
        return not (self._changed or self.choices.has_news or waits)

    # One node -------------------------------------------------------------------------------------

    def _look(self, name: str, now: float) -> NodeSeen:
        node = self._nodes.get(name)
        if node is None:
            self._unready.pop(name, None)
            self._refusals.pop(name, None)
            self._spare.pop(name, None)
            return NodeSeen(up=False)
        workers_here, foreign_pods = self._of_jobs(name)
        turned_away = {key for key in workers_here if self._pods[key][0].has_ended}
        workers_here = {
            key: identity for key, identity in workers_here.items() if key not in turned_away
        }
        pods = [self._pods[key][0] for key in workers_here]
        agents = _agents(workers_here.values())
        staying = sum(not pod.is_leaving for pod in pods)
        problem, lost = self._readiness(name, node, now)
        closed = problem or self._closed(node)
        slots = self._slots(node, foreign_pods, workers=workers_here)
        missing = _missing(slots, pods, turned_away=bool(turned_away))
        slots -= self._refused(name, slots, missing, now)
        # Who is there stays; nobody is to come.
        devices = min(slots, staying) if closed else slots
        address = next((a.address for a in node.status.addresses if a.type == "InternalIP"), "")
        return NodeSeen(
            up=not closed,
            gone=bool(problem),
            lost=lost,
            problem=closed,
            brings=Node(id=name, devices=max(0, devices)),
            address=address,
            leaving=_gives_way(node),
            agents=agents,
            refuses=self._refuses(name),
        )

    def _closed(self, node: KubeNode) -> str:
        """Say why a node takes no pods; empty where pods of some job may come."""
        if node.metadata.deletion_timestamp is not None:
            return "it is being removed"
        if node.spec.unschedulable:
            return "it is cordoned"
        taints = self._closing(node)
        taint = next((taint for taint in taints if _is_of_the_cluster(taint)), None)
        if taint is None and taints and not self.choices.allow(node, taints):
            taint = taints[0]
        return f"it has the taint {taint.key}" if taint else ""

    def _closing(self, node: KubeNode) -> list[Taint]:
        """Return the taints of a node that not all workers' pods bear."""
        return [
            taint
            for taint in node.spec.taints
            if taint.effect in _CLOSES and taint.key not in self._tolerated
        ]

    def _refuses(self, name: str) -> frozenset[str]:
        """Return the jobs that are not to come to a node, nor to stay there."""
        node = self._nodes[name]
        taints = self._closing(node)
        if any(map(_is_of_the_cluster, taints)):  # nobody comes, whatever they bear
            taints = []
        refused = self.choices.refused_by(node, taints)
        if not taints:
            return refused
        # Who was there before a node was tainted stays, unless the taint evicts.
        workers_here, _ = self._of_jobs(name)
        pods = {key: self._pods[key][0] for key in workers_here}
        jobs_here = {
            workers_here[key].job
            for key, pod in pods.items()
            if pod.is_bound and not pod.is_leaving
        }
        evicting = [taint for taint in taints if taint.effect == _EVICTS]
        staying = self.choices.may_stay(jobs_here, node, evicting)
        return refused - staying if staying else refused

    def _of_jobs(self, name: str) -> tuple[dict[str, PodIdentity], list[str]]:
        """Return the workers of jobs on a node, by key, and the keys of all pods that take of it, too."""
        workers_here: dict[str, PodIdentity] = {}
        all_pods: list[str] = []
        for key, pod in self._pods_on.get(name, {}).items():
            identity = identity_of(pod)
            is_mine = identity is not None and identity.job not in self._left_alone
            if is_mine and identity is not None and identity.role == WORKER:
                workers_here[key] = identity
            elif stands_for(pod) is None and not pod.has_ended:
                all_pods.append(key)
        return workers_here, all_pods

    def _readiness(self, name: str, node: KubeNode, now: float) -> tuple[str, bool]:
        """Say why a node is not ready, or nothing, and whether to stop counting on it."""
        ready = next(
            (condition for condition in node.status.conditions if condition.type == READY), None
        )
        if ready is not None and ready.status == "True":
            self._unready.pop(name, None)
            return "", False
        self._unready[name] = unready_since = now if self.doubts else self._unready.get(name, now)
        unheard = not self.doubts and (ready is None or ready.status != "False")
        words = (ready.reason if ready else "") or "it has not said that it is ready"
        return words, unheard or now - unready_since > _TO_RETURN

    def _slots(self, node: KubeNode, foreign_pods: Iterable[str], *, workers: Iterable[str]) -> int:
        # Whoever may make pods can have one of a job's owner and name that requests anything.
        occupied = total([*map(self._asked_by, foreign_pods), *map(self._beyond_slot, workers)])
        allocatable = parse_amounts(node.status.allocatable)
        slots, zero = slots_in(allocatable, occupied, self._slot), Fraction(0)
        self._spare[node.metadata.name] = {
            resource: amount - occupied.get(resource, zero) - slots * self._slot.get(resource, zero)
            for resource, amount in allocatable.items()
        }
        return slots

    def _asked_by(self, key: str) -> Totals:
        if key not in self._amounts:
            self._amounts[key] = asked_by(self._pods[key][0])
        return self._amounts[key]

    def _beyond_slot(self, key: str) -> Totals:
        if key not in self._beyond:
            self._beyond[key] = _beyond(self._asked_by(key), self._slot)
        return self._beyond[key]

    def _refused(self, name: str, slots: int, refused: int, now: float) -> int:
        """Count the slots of a node that are not there.

        Args:
            slots: that it is believed to have.
            refused: as many of these as are missing now.
        """
        refusal = self._refusals.get(name)
        if refusal is not None and refusal.without != slots:
            del self._refusals[name]
            refusal = None
        if refusal is not None and now < refusal.until:
            refusal.slots = max(refusal.slots, refused)
            return refusal.slots
        if refused:
            wait = min(_LONGEST_REFUSED, 2 * refusal.wait) if refusal else _REFUSED
            self._refusals[name] = _Refusal(refused, now + wait, wait, slots)
            return refused
        if refusal is not None:
            refusal.slots = 0  # it is tried again, and how long it was not is remembered
        return 0


def _counts(pod: KubePod) -> bool:
    """Return whether a pod says anything of its node: it holds something, or found no room."""
    if pod.was_turned_away:
        identity = identity_of(pod)
        return identity is not None and identity.role == WORKER
    return not pod.has_ended


def _missing(slots: int, pods: Collection[KubePod], *, turned_away: bool) -> int:
    """Count the slots of a node that are not there, as kube-scheduler and its kubelet say.

    Where one finds no room, there is none beside the workers that were taken: with one slot less,
    the plan could leave it there for ever. A worker that is refused for another reason may be the
    only one, so it stands for one slot.

    Args:
        slots: that the node is believed to have.
        pods: of workers on it.
        turned_away: its kubelet has not taken one.
    """
    refused = [pod for pod in pods if pod.is_refused and not pod.is_leaving]
    # Of a gang, kube-scheduler asks for room no further than to the first that finds none.
    waiting = sum(pod.waits_for_its_gang and not pod.is_leaving for pod in pods) if refused else 0
    if not turned_away and not any(pod.lacks_room for pod in refused):
        return len(refused) + waiting
    return max(0, slots - (len(pods) - len(refused) - waiting))


def _beyond(amounts: Totals, slot: Totals) -> Totals:
    """Return a pod's requests beyond its slot, as for a container beside the worker."""
    surplus = {name: amounts.get(name, Fraction(0)) - slot[name] for name in slot}
    return {name: amount for name, amount in surplus.items() if amount > 0}


def _place_of(pod: KubePod) -> str:
    """Return the node of a pod, present or planned; empty where unknown."""
    identity = identity_of(pod)
    planned = identity.node if identity is not None else ""
    return pod.spec.node_name or pod.status.nominated_node_name or planned


def _agents(identities: Iterable[PodIdentity]) -> tuple[AgentSeen, ...]:
    counts = Counter((identity.job, identity.launch) for identity in identities)
    return tuple(AgentSeen(*start, workers=count) for start, count in sorted(counts.items()))


def _is_of_the_cluster(taint: Taint) -> bool:
    """Return whether a taint says that something is wrong with a node, or soon will be.

    No template opens such a node: workers would come to where others leave.
    """
    return taint.key.startswith("node.kubernetes.io/") or taint.key in GIVES_WAY


def _gives_way(node: KubeNode) -> bool:
    """Return whether a node is about to be taken away, so that everybody is to leave it in time."""
    return node.metadata.deletion_timestamp is not None or any(
        taint.key in GIVES_WAY for taint in node.spec.taints
    )
