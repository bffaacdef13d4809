"""The HorizontalPodAutoscaler of a job, which the `metrics` of its elastic policy ask for. Pure.

It changes `replicas` of the workers, through the scale of the job's object: how many that has at
most. Its name, bounds and target are those that Kubeflow's operator gives it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from brim.kubernetes.client.resources import PlainObject, Resource
from brim.kubernetes.kubeflow.objects import common_labels, owner_of
from brim.kubernetes.kubeflow.request import KUBEFLOW, VERSION, KubeflowSpec
from brim.kubernetes.objects.identities import GROUP, MANAGED_BY, OPERATOR
from brim.kubernetes.pods.manifests import Manifest

AUTOSCALERS = Resource("autoscaling/v2", "horizontalpodautoscalers", PlainObject)
AUTOSCALER = "HorizontalPodAutoscaler"
SELECTOR = f"{MANAGED_BY}={OPERATOR}"  # selects them
_REQUESTED = f"{GROUP}/asked"  # an annotation: what was asked for, since servers add to it


def autoscaler_of(request: KubeflowSpec, uid: str) -> Manifest | None:
    """Return the autoscaler that a job is to have; None: it is to have none.

    Args:
        uid: of its object.
    """
    metrics = (request.spec.get("elasticPolicy") or {}).get("metrics")
    if not metrics or request.bounds is None or request.run.suspend:
        return None
    spec = {
        "scaleTargetRef": {
            "apiVersion": f"{KUBEFLOW}/{VERSION}",
            "kind": request.kind.name,
            "name": request.job.name,
        },
        "minReplicas": request.bounds.minimum,
        "maxReplicas": request.bounds.maximum,
        "metrics": metrics,
    }
    text = json.dumps(spec, sort_keys=True)
    return {
        "apiVersion": AUTOSCALERS.api,
        "kind": AUTOSCALER,
        "metadata": {
            "name": request.job.name,
            "namespace": request.job.namespace,
            "labels": common_labels(request),
            "annotations": {_REQUESTED: hashlib.sha256(text.encode()).hexdigest()},
            "ownerReferences": [owner_of(request, uid)],
        },
        "spec": spec,
    }


def is_as_asked(present: Mapping[str, Any], desired: Manifest) -> bool:
    """Return whether an autoscaler is the wanted one, without regard to additions."""
    return is_of(present, desired["metadata"]["ownerReferences"][0]["uid"]) and (
        (present["metadata"].get("annotations") or {}).get(_REQUESTED)
        == desired["metadata"]["annotations"][_REQUESTED]
    )


def is_of(present: Mapping[str, Any], uid: str) -> bool:
    """Return whether the job whose object has this uid owns an autoscaler."""
    owners = present["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == uid for owner in owners)
