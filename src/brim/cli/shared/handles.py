"""Finds the scheduler, the run or the job that a command is meant for.

A user who has to wait for a scheduler is told so on stderr.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.shared.kube_options import require_kubernetes_extra
from brim.cli.shared.usage import warn
from brim.runs.options import STATE_VARIABLE

if TYPE_CHECKING:
    from brim.client import Client
    from brim.runs.handle import Handle


def ask_server(server: str, *, field: str) -> None:
    """Let this process, and its child processes, ask this scheduler.

    Args:
        field: where it was named, for the error.
    """
    from brim.client import SERVER
    from brim.wire.https import scheduler_url

    os.environ[SERVER] = scheduler_url(server, field=field)
    os.environ.pop(STATE_VARIABLE, None)  # a state directory of the environment comes second


def client_of(state: Path | None) -> Client:
    """The scheduler of a state directory, or the jobs of Kubernetes where `--server` says so.

    Raises EnvironmentFault where no scheduler runs there.
    """
    from brim.client import Client, named_scheduler
    from brim.wire.https import namespace_in

    namespace = namespace_in(named_scheduler()) if state is None else None
    if namespace is None:
        return Client(state, notice=warn)
    require_kubernetes_extra()
    from brim.kubernetes.cluster_client import KubeJobs

    return KubeJobs(namespace, notice=warn)


def handle_of(name: str | None, state: Path | None, *, required: bool = False) -> Handle:
    """See `brim.runs.handle.handle_of`."""
    from brim.runs import handle

    return handle.handle_of(name, state, required=required, notice=warn, connect=client_of)
