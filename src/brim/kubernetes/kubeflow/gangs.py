"""Gangs of Kubeflow's jobs: their pods, of any type, are bound together or not at all. Pure."""

from __future__ import annotations

from brim.kubernetes.kubeflow.objects import KubeflowStart, common_labels, object_of_job
from brim.kubernetes.pods.gangs import POD_GROUP, Gang, api_for
from brim.kubernetes.pods.manifests import Manifest


def gang_of_kubeflow(start: KubeflowStart) -> Gang | None:
    """Return the gang of a job's pods; None: they are bound one by one.

    Whose it is, and its PriorityClass, are those of the first of its templates.
    """
    policy = start.request.scheduling
    if policy is None or not start.gangs:
        return None
    spec = start.request.replicas[0].template["spec"]
    return Gang(
        api=api_for(spec),
        priority_class=spec.get("priorityClassName") or policy.priority_class,
        queue=policy.queue,
    )


def pod_group_of(start: KubeflowStart) -> Manifest | None:
    """Return the PodGroup of a job that is a gang; None: it is none.

    It has as many pods as the job needs to run, or fewer where its owner says so: with more, it would
    never begin as small as it may be.
    """
    request, gang = start.request, gang_of_kubeflow(start)
    if gang is None or request.scheduling is None:
        return None
    group = object_of_job(gang.version, POD_GROUP, start, request.job.name, common_labels(request))
    return gang.pod_group(
        group, min(request.scheduling.fewest or request.pods.minimum, request.pods.minimum)
    )
