"""Options that the verbs of Kubernetes share, and the packages that they need."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from brim.domain.options import DURATION, whole
from brim.domain.quantities import format_duration
from brim.domain.services import check_url_prefix
from brim.domain.usage import check_half_life
from brim.errors import SpecError
from brim.host.installation import command_for
from brim.kubernetes.objects.templates import check_size
from brim.kubernetes.pods.manifests import USUAL_GRACE, check_grace
from brim.runs.options import option
from brim.runs.values import Value

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_MOST_HEADROOM = 1_000_000  # slots
_MOST_PLACEHOLDERS = 1_000  # jobs


def amounts(words: Sequence[str]) -> dict[str, str]:
    """Return the amounts of `--slot NAME=AMOUNT`, given several times.

    Raises:
        SpecError: one is no amount of a resource, or a resource is given twice.

    >>> amounts(["cpu=1", "nvidia.com/gpu=1"])
    {'cpu': '1', 'nvidia.com/gpu': '1'}
    """
    from brim.kubernetes.client.amounts import parse_amount

    found: dict[str, str] = {}
    hint = "--slot cpu=1 --slot memory=2Gi"
    for word in words:
        name, equals, amount = word.partition("=")
        if not (name and equals and amount):
            raise SpecError("--slot", got=repr(word), need="NAME=AMOUNT", hint=hint)
        if name in found:
            need = f"one amount of {name}"
            raise SpecError("--slot", got=f"{name} twice", need=need, hint=hint)
        try:
            parse_amount(amount)
        except SpecError as wrong:
            need = f"an amount of {name} as Kubernetes writes it"
            raise SpecError("--slot", got=repr(amount), need=need, hint=hint) from wrong
        found[name] = amount
    return found


def _slot(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    from brim.kubernetes.nodes.places import slot_of

    found = amounts(words)
    try:
        slot_of(found)
    except SpecError as wrong:
        hint = "--slot cpu=1 --slot memory=2Gi"
        raise SpecError("--slot", got=wrong.got, need=wrong.need, hint=hint) from None
    return found


def _grace(_: click.Context, __: click.Parameter, seconds: float) -> float:
    check_grace(seconds, field="--grace")
    return seconds


def _half_life(_: click.Context, __: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None:
        check_half_life(seconds, None, field="--usage-half-life")
    return seconds


def _node_labels(_: click.Context, __: click.Parameter, selector: str) -> str:
    from brim.kubernetes.nodes.node_selection import node_requirements

    node_requirements(selector)
    return selector


def _volume_size(_: click.Context, __: click.Parameter, size: str) -> str:
    if size:
        check_size(size, field="--volume-size")
    return size


def _service_urls(_: click.Context, __: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    field = "--service-url"
    for url in urls:
        check_url_prefix(url, field=field, hint=f"{field} http://prometheus.monitoring.svc:9090/")
    return urls


SLOT = option(
    "--slot",
    metavar="NAME=AMOUNT",
    multiple=True,
    envvar=None,
    default=("cpu=1", "memory=2Gi"),
    callback=_slot,
    help="Give each worker this much of a resource; a node has as many slots as fit on it. May be "
    "repeated. [default: cpu=1 and memory=2Gi]",
)


_OF_OPERATORS = (
    option(
        "--watch",
        metavar="NS",
        default="",
        help="Run the jobs of this namespace alone. [default: those of all]",
    ),
    SLOT,
    option(
        "--node-labels",
        metavar="SELECTOR",
        default="",
        callback=_node_labels,
        help="Use the nodes with these labels alone: pool=training. [default: all]",
    ),
    option(
        "--tolerate",
        "tolerated",
        metavar="KEY",
        multiple=True,
        envvar=None,
        help="Use nodes with a taint of this key for all jobs, in addition to the tolerations of a job's "
        "own template. May be repeated.",
    ),
    option(
        "--policy",
        metavar="NAME",
        default="brim",
        show_default=True,
        help="Decide by this policy.",
    ),
    option(
        "--headroom",
        type=Value(whole(minimum=0, maximum=_MOST_HEADROOM, hint="--headroom 2")),
        default=0,
        show_default=True,
        help="Leave this many slots free, for jobs to come.",
    ),
    option(
        "--grace",
        type=Value(DURATION),
        default=format_duration(USUAL_GRACE),
        show_default=True,
        callback=_grace,
        help="Give a worker this long to leave; shortly before that, its pod is ended by force.",
    ),
    option(
        "--usage-half-life",
        type=Value(DURATION),
        metavar="TIME",
        callback=_half_life,
        help="Lend slots first to tenants that have borrowed little lately: what was borrowed this long "
        "ago counts half. [default: only the present counts]",
    ),
    option(
        "--volume-size",
        metavar="SIZE",
        default="",
        callback=_volume_size,
        help="Keep the runs of jobs that name no other place on volumes of this size, of the cluster's "
        "default StorageClass: 10Gi. Without it, such a job starts from scratch after a suspension.",
    ),
)


PLACEHOLDERS = option(
    "--placeholders",
    metavar="N",
    type=Value(whole(minimum=0, maximum=_MOST_PLACEHOLDERS, hint="--placeholders 10")),
    default=0,
    show_default=True,
    help="Let a cluster autoscaler see what jobs wait for: create pending pods in place of the minimum "
    "number of workers, for up to N jobs that find no room.",
)


SERVICE_URLS = option(
    "--service-url",
    "service_urls",
    metavar="PREFIX",
    multiple=True,
    envvar=None,
    callback=_service_urls,
    help="Scale Deployments and StatefulSets with annotations of brim by the load that is foreseen. "
    "The URLs of their loads have to begin like this. May be repeated. [default: none is scaled]",
)


KUBECTL = option(
    "--kubectl-image",
    "kubectl",
    metavar="IMAGE",
    default="",
    help="Give launchers of Kubeflow's MPIJobs the kubectl of this image, which has a shell. "
    "[default: kubeflow/kubectl-delivery:latest, as Kubeflow's operator]",
)


GANGS = option(
    "--gangs",
    is_flag=True,
    help="Bind the minimum number of a job's workers together, or none of them, if the job asks for it "
    "(spec.gang; schedulingPolicy of Kubeflow's jobs), by PodGroups of the server or of Volcano.",
)


EVICTIONS = option(
    "--evictions",
    is_flag=True,
    help="Answer EvictionRequests for jobs' pods (lifecycle.k8s.io/v1alpha1), where the server has "
    "them: their workers leave at the next step boundary.",
)


def of_operators(function: Decorated) -> Decorated:
    """Give a verb the options that say how an operator schedules."""
    for add_option in reversed(_OF_OPERATORS):
        function = add_option(function)
    return function


def require_kubernetes_extra() -> None:
    """Raises SpecError where the client of API servers is not installed."""
    for package in ("aiohttp", "yaml"):
        if importlib.util.find_spec(package) is None:
            raise SpecError(
                package,
                got="no such package",
                need="the extra 'kubernetes'",
                hint=command_for("kubernetes"),
            )
