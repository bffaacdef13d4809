"""Other people's queues: labels of a job's object that its workers' pods carry for them. Pure.

They take pods, and brim gives workers: a queue that holds a pod back, or takes it away, is one more
that shares the cluster, and asks nothing of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.kubernetes.client.reading import part_of

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
# Labels and annotations as Kueue, KAI and Volcano document them for jobs.
_LABELS = (KUEUE_QUEUE, "kueue.x-k8s.io/priority-class", "kai.scheduler/queue")
_ANNOTATIONS = (VOLCANO_QUEUE,)


def handed_on(thing: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of a job that are for each of its workers' pods, too.

    The pod of its master is as its own template says: a job without its master stands, and would
    keep its workers from everybody while a queue holds that one pod back.

    >>> handed_on({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team", "color": "blue"}}})
    {'labels': {'kueue.x-k8s.io/queue-name': 'team'}, 'annotations': {}}
    """
    meta = thing["metadata"]
    parts = {"labels": _LABELS, "annotations": _ANNOTATIONS}
    return {
        part: {
            name: text
            for name in names
            if isinstance(text := part_of(meta.get(part), name), str) and text
        }
        for part, names in parts.items()
    }


def is_queued(thing: Mapping[str, Any]) -> bool:
    """Return whether Kueue counts a job's requests, and limits it to them."""
    return bool(part_of(thing["metadata"].get("labels"), KUEUE_QUEUE))
