"""`python -m brim_lab.kubernetes`: builds Kubernetes for tests, and starts and ends it."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from brim.cli.shared.usage import EXIT_FAILED, EXIT_USAGE
from brim.errors import BrimError, SpecError, did_you_mean
from brim_lab.kubernetes import binaries, box, cluster
from brim_lab.kubernetes.cluster import DEFAULT
from brim_lab.kubernetes.control_plane import CONTROLLERS, KWOK, SCHEDULER, Features, control_plane
from brim_lab.kubernetes.peers import PEERS, build_peer
from brim_lab.kubernetes.settings import MOST_NODES, ClusterSettings

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_gates = click.option(
    "--feature",
    "gates",
    multiple=True,
    metavar="NAME",
    help="Turn on a feature that is off by default: GenericWorkload. May be repeated.",
)
_apis = click.option(
    "--api",
    "apis",
    multiple=True,
    metavar="GROUP/VERSION",
    help="Serve an API that is off by default: scheduling.k8s.io/v1beta1. May be repeated.",
)


@click.group(context_settings=_SETTINGS)
def main() -> None:
    """Build and run real Kubernetes for tests.

    \b
      build           once, minutes
      control-plane   an API server on loopback, seconds
      up, down        real nodes; needs root

    All of it is kept in $BRIM_TEST_KUBERNETES; by default in brim/kubernetes in your cache.
    """


@main.command()
@click.argument("names", nargs=-1, metavar="[PROGRAM]…")
def build(names: tuple[str, ...]) -> None:
    """Build the programs that are missing: all of Kubernetes, or those named.

    \b
    Other people's operators are built only where they are named:
      jobset, kueue, mpi-operator, trainer, training-operator
    """
    known = (*binaries.BINARIES, *PEERS)
    for name in names:
        if name not in known:
            need, hint = "a program of Kubernetes, or an operator", did_you_mean(name, known)
            raise SpecError("PROGRAM", got=repr(name), need=need, hint=hint)
    operators = [PEERS[name] for name in names if name in PEERS]
    programs = [name for name in names if name not in PEERS]
    if programs or not operators:
        binaries.build(programs or binaries.BINARIES, click.echo)
        click.echo(f"built: {binaries.folder()}")
    for peer in operators:
        click.echo(f"built: {build_peer(peer, click.echo)}")


@main.command("control-plane")
@click.option(
    "--fake-nodes",
    type=click.IntRange(min=0),
    default=0,
    metavar="NUMBER",
    help="Add nodes that only seem to run their pods, and the scheduler that fills them.",
)
@_gates
@_apis
def run_control_plane(fake_nodes: int, gates: Iterable[str], apis: Iterable[str]) -> None:
    """Run etcd, an API server and its controllers on loopback, until Control-C."""
    features = Features(gates=tuple(gates), apis=tuple(apis))
    programs = (CONTROLLERS, SCHEDULER, *((KWOK,) if fake_nodes else ()))
    with (
        tempfile.TemporaryDirectory(prefix="brim-control-plane-") as place,
        control_plane(Path(place), features=features, programs=programs) as plane,
    ):
        plane.add_fake_nodes(fake_nodes)
        click.echo(f"export KUBECONFIG={plane.kubeconfig}")
        click.echo(f"logs: {plane.folder}/log; Control-C ends it", err=True)
        ends = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # not before: programs would inherit it
        signal.sigwait(ends)


_name = click.option(
    "--name",
    default=DEFAULT,
    show_default=True,
    metavar="NAME",
    help="Give the cluster this name: several can be up.",
)


@main.command("up")
@click.option(
    "--nodes",
    type=click.IntRange(1, MOST_NODES),
    default=2,
    show_default=True,
    metavar="NUMBER",
    help="Make this many nodes, at most 3. Each has all CPUs and all memory of this machine.",
)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Say that each node has this many of something: example.com/gpu=8. May be repeated.",
)
@click.option(
    "--share",
    "shares",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Let containers read this folder, beside this Python and this checkout. May be repeated.",
)
@_gates
@_apis
@_name
def bring_up(
    nodes: int,
    resources: tuple[str, ...],
    shares: tuple[str, ...],
    gates: tuple[str, ...],
    apis: tuple[str, ...],
    name: str,
) -> None:
    """Start a cluster with real nodes on this machine; build missing programs first."""
    settings = ClusterSettings(
        name=name,
        nodes=nodes,
        resources=dict(map(_resource, resources)),
        gates=list(gates),
        apis=list(apis),
        shares=list(shares),
    )
    node_cluster = cluster.up(settings, partial(click.echo, err=True))
    click.echo(f"logs: {settings.folder}", err=True)
    click.echo(f"export KUBECONFIG={node_cluster.kubeconfig}")


def _resource(text: str) -> tuple[str, str]:
    name, _, number = text.partition("=")
    if "/" not in name or not number.isdecimal():
        need = "NAME=NUMBER, with a domain in the name"
        raise SpecError(
            "--resource", got=repr(text), need=need, hint="--resource example.com/gpu=8"
        )
    return name, number


@main.command("down")
@_name
def take_down(name: str) -> None:
    """End a cluster, and remove all that is left of it: its logs, too."""
    was_there = cluster.down(name)
    click.echo(f"the cluster {name} is {'gone' if was_there else 'not up'}", err=True)


@main.command()
@click.argument("deed", type=click.Choice(box.DEEDS))
@click.argument("node", metavar="NODE")
@_name
def node(deed: str, node: str, name: str) -> None:
    """Kill or boot a node, or cut it off and heal that: node kill node-1."""
    if not cluster.is_up(name):
        hint = "make cluster"
        raise SpecError("--name", got=repr(name), need="a cluster that is up", hint=hint)
    cluster.NodeCluster(name).perform(deed, node)


def run() -> None:
    """Run the command; an error that is no bug is a sentence."""
    try:
        main(prog_name="python -m brim_lab.kubernetes")
    except BrimError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, SpecError) else EXIT_FAILED)


if __name__ == "__main__":
    run()
