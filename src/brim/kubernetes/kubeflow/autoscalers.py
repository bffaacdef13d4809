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
from brim.kubernetes.kubeflow.asked import KUBEFLOW, VERSION, KubeflowSpec
from brim.kubernetes.kubeflow.objects import common_labels, owner_of
from brim.kubernetes.objects.identities import GROUP, MANAGED_BY, OPERATOR
from brim.kubernetes.pods.manifests import Manifest

AUTOSCALERS = Resource("autoscaling/v2", "horizontalpodautoscalers", PlainObject)
AUTOSCALER = "HorizontalPodAutoscaler"
OURS = f"{MANAGED_BY}={OPERATOR}"  # selects them
_ASKED = f"{GROUP}/asked"  # an annotation: what was asked for, since servers add to it


def autoscaler_of(asked: KubeflowSpec, uid: str) -> Manifest | None:
    """Return the autoscaler that a job is to have; None: it is to have none.

    Args:
        uid: of its object.
    """
    metrics = (asked.spec.get("elasticPolicy") or {}).get("metrics")
    if not metrics or asked.bounds is None or asked.run.suspend:
        return None
    spec = {
        "scaleTargetRef": {
            "apiVersion": f"{KUBEFLOW}/{VERSION}",
            "kind": asked.kind.name,
            "name": asked.job.name,
        },
        "minReplicas": asked.bounds.minimum,
        "maxReplicas": asked.bounds.maximum,
        "metrics": metrics,
    }
    text = json.dumps(spec, sort_keys=True)
    return {
        "apiVersion": AUTOSCALERS.api,
        "kind": AUTOSCALER,
        "metadata": {
            "name": asked.job.name,
            "namespace": asked.job.namespace,
            "labels": common_labels(asked),
            "annotations": {_ASKED: hashlib.sha256(text.encode()).hexdigest()},
            "ownerReferences": [owner_of(asked, uid)],
        },
        "spec": spec,
    }


def is_as_asked(there: Mapping[str, Any], wanted: Manifest) -> bool:
    """Return whether an autoscaler is the one that is wanted, whatever was added to it."""
    return is_of(there, wanted["metadata"]["ownerReferences"][0]["uid"]) and (
        (there["metadata"].get("annotations") or {}).get(_ASKED)
        == wanted["metadata"]["annotations"][_ASKED]
    )


def is_of(there: Mapping[str, Any], uid: str) -> bool:
    """Return whether the job whose object has this uid owns an autoscaler."""
    owners = there["metadata"].get("ownerReferences") or []
    return any(each.get("uid") == uid for each in owners)
