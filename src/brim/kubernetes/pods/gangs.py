"""Gangs of a job's workers, as the schedulers that bind their pods know them. Pure.

A plan gives a job the fewest workers that it asks for, or none. Between a plan and its pods' binding
others' pods may come: with a gang, a scheduler binds so many together, or none. A worker beyond
the fewest comes and goes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from brim.kubernetes.nodes.neighbours import VOLCANO_QUEUE
from brim.kubernetes.pods.manifests import Manifest, PodWishes

KUBERNETES, VOLCANO = "scheduling.k8s.io", "scheduling.volcano.sh"  # groups of APIs
POD_GROUP = "PodGroup"
_VERSION = "v1beta1"  # of both
_VOLCANO_SCHEDULER = "volcano"  # as `schedulerName` says it; all others read the server's PodGroups
_VOLCANO_MEMBER = "scheduling.k8s.io/group-name"  # an annotation of pods


class Gang(NamedTuple):
    """The gang of a job's workers.

    Attributes:
        api: the group of the API that has its PodGroup.
        priority_class: of its pods; empty: the cluster's usual.
        queue: of Volcano; empty: its usual.
    """

    api: str
    priority_class: str
    queue: str

    @property
    def version(self) -> str:
        """The version of the API, as objects name it."""
        return f"{self.api}/{_VERSION}"

    def pod_group(self, thing: Manifest, fewest: int) -> Manifest:
        """Return the PodGroup of a job, which is the same object at each of its starts.

        Args:
            thing: an object of the job of this kind, without its content.
            fewest: pods that are bound together.
        """
        named = {"priorityClassName": self.priority_class} if self.priority_class else {}
        if self.api == VOLCANO:
            queue = {"queue": self.queue} if self.queue else {}
            return thing | {"spec": {"minMember": fewest, **queue, **named}}
        policy = {"gang": {"minCount": fewest}}
        one_by_one: Mapping[str, Any] = {"single": {}}
        spec = {"schedulingPolicy": policy, "disruptionMode": one_by_one, **named}
        return thing | {"spec": spec}

    def with_member(self, group: str, pod: Manifest) -> Manifest:
        """Return a pod as one of the gang, whose PodGroup has this name."""
        if self.api == VOLCANO:
            notes = {**pod["metadata"].get("annotations", {}), _VOLCANO_MEMBER: group}
            return pod | {"metadata": {**pod["metadata"], "annotations": notes}}
        member = {"schedulingGroup": {"podGroupName": group}}
        return pod | {"spec": {**pod["spec"], **member}}


def api_for(spec: Mapping[str, Any]) -> str:
    """Return the group of the API that has the PodGroups of a pod's scheduler.

    Args:
        spec: of the pod.
    """
    return VOLCANO if spec.get("schedulerName") == _VOLCANO_SCHEDULER else KUBERNETES


def gang_of(wishes: PodWishes) -> Gang | None:
    """Return the gang of a job's workers; None: they are bound one by one."""
    if not wishes.gang:
        return None
    spec = wishes.template.get("spec", {})
    notes = {
        **wishes.handed_on.get("annotations", {}),
        **wishes.template.get("metadata", {}).get("annotations", {}),
    }
    return Gang(
        api=api_for(spec),
        priority_class=wishes.priority_class or spec.get("priorityClassName", ""),
        queue=notes.get(VOLCANO_QUEUE, ""),
    )
