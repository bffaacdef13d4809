"""An online service on real nodes: a Deployment whose pods come before those of jobs."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import kubectl_command
from brim_lab.kubernetes.jobs import JobsOnNodes, until

_NAME = "web"
_TO_END = 10.0  # seconds for the watch
# What is told of a pod: whether it is there, its name, whether it serves, whether it is to end.
_POD_FIELDS = (
    "{.type} {.object.metadata.name} "
    '{.object.status.conditions[?(@.type=="Ready")].status}/{.object.metadata.deletionTimestamp}'
    '{"\\n"}'
)
_SERVES = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    "signal.sigwait([signal.SIGTERM])"
)


class OnlineService:
    """A Deployment that is scaled by hand; each of its pods takes a slot.

    Args:
        priority: the PriorityClass of its pods.
        takes: the resources of each.
    """

    def __init__(
        self, jobs: JobsOnNodes, *, image: str, priority: str, takes: Mapping[str, str]
    ) -> None:
        self._jobs = jobs
        self._ready: set[str] = set()
        self._changes: list[tuple[float, int]] = []
        self._jobs.apply(_deployment(jobs.namespace, image, priority, takes))
        words = ("get", "pods", "-l", f"app={_NAME}", "--watch", "--output-watch-events")
        config, namespace = jobs.cluster.kubeconfig, f"--namespace={jobs.namespace}"
        self._watch = subprocess.Popen(
            kubectl_command(config, namespace, *words, "-o", f"jsonpath={_POD_FIELDS}"),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._watch.stdout is not None
        self._watch_output = self._watch.stdout
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch, not the service."""
        self._watch.terminate()
        self._watch.wait(_TO_END)
        self._thread.join(_TO_END)
        self._watch_output.close()

    def scale(self, replicas: int) -> None:
        """Have so many pods, as an autoscaler does it."""
        path = f"/apis/apps/v1/namespaces/{self._jobs.namespace}/deployments/{_NAME}/scale"
        body = {"spec": {"replicas": replicas}}
        self._jobs.api.ask(path, method="PATCH", body=body, kind=PATCH)

    def until_serving(self, replicas: int) -> None:
        """Wait until so many pods serve.

        Raises:
            AssertionError: they do not.
        """
        until(
            lambda: len(self._ready) == replicas, lambda: self._jobs.kubectl("get", "pods,events")
        )

    def changes(self) -> list[tuple[float, int]]:
        """Return (seconds since 1970, pods that served from then on), in order."""
        return list(self._changes)

    def _follow(self) -> None:
        for line in self._watch_output:
            kind, name, state = line.split()
            serves = kind != "DELETED" and state == "True/"
            ready = self._ready | {name} if serves else self._ready - {name}
            if ready != self._ready:
                self._ready = ready
                self._changes.append((time.time(), len(ready)))


def _deployment(
    namespace: str, image: str, priority: str, takes: Mapping[str, str]
) -> dict[str, Any]:
    labels = {"app": _NAME}
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-I", "-S", "-c", _SERVES],
        "resources": {"requests": dict(takes), "limits": dict(takes)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "priorityClassName": priority,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
