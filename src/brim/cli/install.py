"""`brim install`: put the operator into a cluster of Kubernetes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from brim.cli.shared.usage import EXIT_DONE, warn
from brim.domain.options import whole
from brim.domain.quantities import format_duration
from brim.kubernetes.pods.manifests import USUAL_GRACE
from brim.runs.options import option
from brim.runs.values import Value

if TYPE_CHECKING:
    from brim.kubernetes.install.manifests import Installation
    from brim.kubernetes.install.objects import AppliedObject

_MOST_REPLICAS = 100


@click.command()
@option(
    "--image",
    required=True,
    metavar="IMAGE",
    help="Run the operator in this image. It has brim with its extras cluster and kubernetes.",
)
@option(
    "--job-image",
    default="",
    metavar="IMAGE",
    help="Run jobs that name no image in this one. It has brim with its extra train. [default: that "
    "of the operator]",
)
@option(
    "--namespace",
    metavar="NS",
    default="brim-system",
    show_default=True,
    help="Put the operator here. No job can be in this namespace.",
)
@of_operators
@option(
    "--replicas",
    type=Value(whole(minimum=1, maximum=_MOST_REPLICAS, hint="--replicas 2")),
    default=1,
    show_default=True,
    help="Keep this many operators. One decides; the others wait to take over.",
)
@option(
    "--kubeflow",
    is_flag=True,
    help="Run Kubeflow's PyTorchJobs, TFJobs and MPIJobs, too, in place of its own operator. Their "
    "definitions are added where Kubeflow's own are absent.",
)
@GANGS
@EVICTIONS
@PLACEHOLDERS
@SERVICE_URLS
@KUBECTL
@option("--dry-run", is_flag=True, help="Print the objects as YAML, and change nothing.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def install(
    image: str, job_image: str, namespace: str, replicas: int, kubeflow: bool, gangs: bool,
    evictions: bool, placeholders: int, service_urls: tuple[str, ...], dry_run: bool, as_json: bool, **scheduling: Any,
) -> int:  # fmt: skip
    """Add brim to a cluster of Kubernetes: its kinds of objects, its rights, and its operator.

    The cluster is that of your kubeconfig, as for kubectl: $KUBECONFIG, or ~/.kube/config. You need
    the rights of its administrator. The same command with another image or other options updates
    the existing objects; jobs train on meanwhile.

    \b
    brim install --image images/brim:1 --slot cpu=4 --slot memory=16Gi --slot nvidia.com/gpu=1
    brim install --image images/brim:1 --watch team           (only the jobs of namespace team)
    brim install --image images/brim:1 --dry-run | kubectl apply --server-side -f -
    brim install --image images/brim:1 --dry-run | kubectl delete -f -     (and all jobs with it)
    """
    require_kubernetes_extra()
    from brim.kubernetes.install.manifests import Installation, foreign_definitions, manifests
    from brim.kubernetes.objects.schemas import in_yaml

    chosen = Installation(
        image=image,
        job_image=job_image,
        slot=scheduling["slot"],
        namespace=namespace,
        of=scheduling["watch"],
        foreign_kinds=kubeflow,
        gangs=gangs,
        evictions=evictions,
        placeholders=placeholders,
        service_urls=service_urls,
        arguments=_arguments(**scheduling),
        replicas=replicas,
    )
    objects = manifests(chosen)
    if dry_run:
        click.echo(
            json.dumps({"objects": objects})
            if as_json
            else "---\n".join(in_yaml(manifest) for manifest in objects),
            nl=as_json,
        )
        if kubeflow:
            _warn_of_kinds()
        return EXIT_DONE
    applied = _apply(objects, foreign_definitions() if kubeflow else [])
    if as_json:
        click.echo(json.dumps({"applied": [result._asdict() for result in applied]}))
    else:
        for kind, name, outcome in applied:
            click.echo(f"{outcome:<9}  {kind} {name}")
    _say_what_is_next(chosen, applied)
    return EXIT_DONE


def _arguments(
    *,
    node_labels: str,
    tolerated: Sequence[str],
    policy: str,
    headroom: int,
    grace: float,
    usage_half_life: float | None,
    volume_size: str,
    kubectl: str,
    **_: Any,
) -> tuple[str, ...]:
    """The options of `brim operator` that are other than usual."""
    words = [f"--node-labels={node_labels}"] if node_labels else []
    words += [f"--tolerate={key}" for key in tolerated]
    words += [f"--policy={policy}"] if policy != "brim" else []
    words += [f"--headroom={headroom}"] if headroom else []
    words += [f"--grace={format_duration(grace)}"] if grace != USUAL_GRACE else []
    half_life = usage_half_life
    words += [f"--usage-half-life={format_duration(half_life)}"] if half_life else []
    words += [f"--volume-size={volume_size}"] if volume_size else []
    words += [f"--kubectl-image={kubectl}"] if kubectl else []
    return tuple(words)


def _apply(
    objects: Sequence[dict[str, Any]], where_absent: Sequence[dict[str, Any]]
) -> list[AppliedObject]:
    """Apply objects; those that others may have made only where they are absent."""
    import asyncio

    from brim.kubernetes.client.access import find_access
    from brim.kubernetes.client.api_server import ApiServer
    from brim.kubernetes.install.objects import (
        FOREIGN,
        AppliedObject,
        apply_all,
        check_rights,
        made_by_others,
    )

    access = find_access(os.environ)

    async def work() -> list[AppliedObject]:
        async with ApiServer(access) as server:
            await check_rights(server, objects)
            foreign = await made_by_others(server, where_absent)
            foreign_objects = [item.ours for item in foreign]
            results = [
                AppliedObject(manifest["kind"], manifest["metadata"]["name"], FOREIGN)
                for manifest in foreign_objects
            ]
            for item in filter(None, (item.warning for item in foreign)):
                warn(item)
            return results + await apply_all(
                server, [manifest for manifest in objects if manifest not in foreign_objects]
            )

    return asyncio.run(work())


def _say_what_is_next(chosen: Installation, applied: Sequence[AppliedObject]) -> None:
    from brim.kubernetes.install.objects import FOREIGN, UNCHANGED

    if all(result.outcome in (FOREIGN, UNCHANGED) for result in applied):
        click.echo("nothing to change: the cluster has every object already", err=True)
    if names := [result.name for result in applied if result.outcome == FOREIGN]:
        click.echo(f"left unchanged, since others created them: {', '.join(names)}", err=True)
    if chosen.foreign_kinds:
        click.echo("Kubeflow's own operator must not run beside this one", err=True)
    wait = f"kubectl -n {chosen.namespace} rollout status deployment/brim-operator"
    click.echo(f"wait for the operator: {wait}", err=True)
    address = f"kubernetes://{chosen.of}" if chosen.of else "kubernetes"
    click.echo(f"hand it a job: brim submit FILE.py --to {address}", err=True)


def _warn_of_kinds() -> None:
    click.echo(
        "leave out the definitions of kubeflow.org that the cluster already has (kubectl get crds): "
        "deleting them deletes the jobs of all operators",
        err=True,
    )
