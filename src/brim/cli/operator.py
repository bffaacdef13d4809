"""`brim operator`: schedule jobs on a cluster of Kubernetes."""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path

import click

from brim.cli.shared.kube_options import (
    EVICTIONS,
    GANGS,
    KUBECTL,
    PLACEHOLDERS,
    SERVICE_URLS,
    of_operators,
    require_kubernetes_extra,
)
from brim.cli.shared.usage import EXIT_DONE
from brim.runs.options import ADDRESS, STATE_VARIABLE, option


@click.command()
@option("--image", required=True, help="Run jobs that name no image in this one. It has brim.")
@option(
    "--namespace",
    metavar="NS",
    help="Keep the Lease and the operator's own objects here. "
    "[default: the namespace of its pod, or of the kubeconfig]",
)
@of_operators
@option(
    "--kubeflow",
    is_flag=True,
    help="Schedule Kubeflow's PyTorchJobs, TFJobs and MPIJobs, too, in place of its own operator.",
)
@GANGS
@EVICTIONS
@PLACEHOLDERS
@SERVICE_URLS
@KUBECTL
@option(
    "--listen",
    type=ADDRESS,
    help="Answer probes (/healthz, /readyz) and Prometheus (/metrics) here. [default: nowhere]",
)
@option(
    "--identity",
    metavar="NAME",
    help="Hold the Lease by this name. [default: the name of this host, which is that of its pod]",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    envvar=STATE_VARIABLE,
    metavar="DIR",
    help="Keep the operator's copies here, and the records of runs. [default: ~/.local/state/brim]",
)
def operator(
    image: str,
    namespace: str | None,
    watch: str,
    slot: dict[str, str],
    node_labels: str,
    tolerated: tuple[str, ...],
    policy: str,
    headroom: int,
    grace: float,
    usage_half_life: float | None,
    volume_size: str,
    kubeflow: bool,
    gangs: bool,
    evictions: bool,
    placeholders: int,
    service_urls: tuple[str, ...],
    listen: str | None,
    kubectl: str,
    identity: str | None,
    state: Path | None,
) -> int:
    """Run the ElasticJobs of a cluster of Kubernetes, until SIGTERM: that leaves them training.

    brim install puts it into the cluster, where it runs in a pod with its own account. Started by
    hand, it finds the cluster by a kubeconfig, as kubectl does: $KUBECONFIG, or ~/.kube/config.

    Several may run: the one that holds the Lease brim-operator decides, the others wait to take
    over. On disk it keeps only copies, which may be lost. With --log-level info, before the verb, it
    logs its actions.

    \b
    brim operator --image images/brim:1 --slot cpu=4 --slot memory=16Gi --slot nvidia.com/gpu=1
    brim operator --image images/brim:1 --namespace team --watch team
    """
    require_kubernetes_extra()
    import asyncio

    from brim.client import default_state_dir
    from brim.host.log import VARIABLE, write_to_stderr
    from brim.kubernetes.client.access import find_access
    from brim.kubernetes.run_operator import serve
    from brim.kubernetes.settings import OperatorSettings

    if not os.environ.get(VARIABLE):
        write_to_stderr(usual="warning")
    access = find_access(os.environ)
    settings = OperatorSettings(
        directory=(state or default_state_dir()).resolve() / "operator",
        namespace=namespace or access.namespace,
        image=image,
        slot=slot,
        watched=watch,
        node_labels=node_labels,
        tolerated=tolerated,
        foreign_kinds=kubeflow,
        kubectl=kubectl,
        gangs=gangs,
        evictions=evictions,
        placeholders=placeholders,
        service_urls=service_urls,
        policy=policy,
        headroom=headroom,
        grace=grace,
        usage_half_life=usage_half_life,
        volume_size=volume_size,
    )
    name = f"{identity or platform.node()}_{uuid.uuid4().hex[:8]}"
    asyncio.run(serve(access, settings, name, listen=listen or ""))
    return EXIT_DONE
