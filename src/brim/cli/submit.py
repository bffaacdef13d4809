"""`brim submit`: hand a job to the scheduler, or ask for a forecast of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from brim.cli.shared.handles import ask_server, client_of
from brim.cli.shared.sections import CommandVerb
from brim.cli.shared.usage import EXIT_DONE, EXIT_REFUSED, warn
from brim.domain.quantities import counted
from brim.kubernetes.objects.templates import MODES, MOST_PROCESSES
from brim.runs.options import COMMAND, STATE, option
from brim.runs.services import service_request
from brim.runs.submitting import hand_in, request_of, submission

if TYPE_CHECKING:
    from brim.client import Client
    from brim.kubernetes.cluster_client import KubeJobs
    from brim.wire.cluster import Forecast, JobView, Submit


_KUBERNETES = "kubernetes://"
_OF_SERVICES = {"service", "tenant", "key", "notify", "dry_run", "as_json", "state", "to"}


def _check_server(ctx: click.Context, _: click.Parameter, server: str | None) -> None:
    if server is not None and not ctx.resilient_parsing:
        ask_server(server, field="--to")


@click.command(cls=CommandVerb)
@submission
@option(
    "--service",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=None,
    help="Submit the online service that this file describes. Its replicas come before training, and "
    "their number follows the load.",
)
@option("--wait", is_flag=True, help="Wait until the job ends, and exit with its exit code.")
@option(
    "--tty",
    is_flag=True,
    envvar=None,
    help="Use the command at this terminal, as in --tty -- bash: one process, which ends with "
    "this one. Exit with its exit code.",
)
@option("--dry-run", is_flag=True, help="Say what would happen, and submit nothing.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@option(
    "--to",
    envvar=None,
    metavar="URL",
    expose_value=False,
    callback=_check_server,
    help="Hand the job to this scheduler, as with brim --server: kubernetes://NAMESPACE, or "
    "https://HOST:PORT.",
)
@option(
    "--image",
    metavar="IMAGE",
    help="Run the workers in this image; only for Kubernetes. [default: that of brim install]",
)
@option(
    "--mode",
    type=click.Choice(MODES),
    help="Let brim choose the nodes of the workers (planned), or the scheduler that binds pods "
    "(opportunistic); only for Kubernetes. [default: planned]",
)
@option(
    "--gang",
    is_flag=True,
    help="Bind the minimum number of workers together, or none of them; only for Kubernetes.",
)
@option(
    "--processes-per-worker",
    type=click.IntRange(1, MOST_PROCESSES),
    metavar="N",
    help="Train with N processes in the pod of each worker, which share its slot, such as one for "
    "each of its GPUs; only for Kubernetes. [default: 1]",
)
@STATE
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    file: tuple[str, ...],
    service: Path | None,
    wait: bool,
    tty: bool,
    dry_run: bool,
    as_json: bool,
    image: str | None,
    mode: str | None,
    gang: bool,
    processes_per_worker: int | None,
    state: Path | None,
    **values: Any,
) -> int:
    """Hand a job to the scheduler: a training file, a job.yaml with options as its keys, or a command.

    \b
    brim submit flights.py --workers 1:4 --deadline 2h
    brim submit job.yaml --dry-run
    brim submit -- python prepare.py                            (any command)
    brim submit --workers 1:4 -- python train.py                (with torchrun's variables)
    brim submit --tty -- bash                                   (at this terminal)
    brim submit flights.py --key nightly-2026-11-21 --wait      (typed twice, it is one job)
    brim submit --service service.yaml                          (replicas that follow a load)
    brim submit flights.py --to kubernetes                      (as an ElasticJob, by kubeconfig)
    brim submit flights.py --to kubernetes --dry-run            (print its objects as YAML)

    A command that calls brim.join is at the exact level. Any other is at the restart level: at each
    change of its workers it is started again, and continues from its own checkpoints. The first line
    printed says which.

    Exit code 3: the scheduler does not promise the deadline.
    """
    if tty:
        _check_attended({"--wait": wait, "--dry-run": dry_run, "--json": as_json})
    if service is not None:
        _check_alone(ctx)
        names = {name: values[name] for name in ("tenant", "key", "notify")}
        request = service_request(service, **names, warn=warn)
    else:
        request = request_of(ctx, file, values, say_level=warn, warn=warn, tty=tty)
    if wait and request.array:
        from brim.errors import SpecError

        need = "one job to wait for"
        hint = "leave --wait out, and submit the next step with --after JOB:ok"
        raise SpecError("--wait", got="an array of jobs", need=need, hint=hint)
    client = client_of(state)
    kube_jobs = _kube_jobs(client)
    choices = {
        "image": image,
        "mode": mode,
        "gang": gang or None,
        "processes_per_worker": processes_per_worker,
    }
    _choose_pods(kube_jobs, choices)
    if service is not None and kube_jobs is not None:
        from brim.errors import SpecError

        need = "a scheduler of brim up: on Kubernetes, a Deployment serves"
        raise SpecError("--service", got="--to kubernetes", need=need, hint="leave --to out")
    if dry_run and kube_jobs is not None:
        _show_objects(kube_jobs.written(request), as_json=as_json)
        return EXIT_DONE
    if dry_run:
        import msgspec

        dry_request = msgspec.structs.replace(request, bundle=b"")  # nothing of it is run
        return _show_forecast(client.forecast(dry_request), request, as_json=as_json)
    if tty and kube_jobs is not None:
        from brim.errors import SpecError

        need = "a scheduler of brim up"
        hint = "kubectl exec -it POD -- bash, in a worker's pod"
        raise SpecError("--tty", got=client.address, need=need, hint=hint)
    view = hand_in(client, request)
    if tty:
        from brim.runs.attaching import stay_at_terminal

        click.echo(f"{view.job}: submitted; it ends with this command", err=True)
        return stay_at_terminal(client, view.job, notice=partial(click.echo, err=True))
    if wait:
        from brim.cli.shared.ending import wait_for
        from brim.runs.handle import JobHandle

        click.echo(f"{view.job}: submitted", err=True)
        _say_verdict(view)
        return wait_for(JobHandle(client, view.job), as_json=as_json)
    if kube_jobs is not None:
        for verb in ("status", "explain", "logs", "cancel"):
            click.echo(f"brim --server {client.address} {verb} {view.job}", err=True)
    if request.array:
        click.echo(
            f"{view.job}: the first of {counted(len(request.array), 'job')}: brim jobs", err=True
        )
    return _show_submitted(view, as_json=as_json)


def _check_alone(ctx: click.Context) -> None:
    """Raises SpecError where something is given that a service has no use for."""
    given = [
        max(param.opts, key=len)
        for param in ctx.command.params
        if ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        and param.name not in _OF_SERVICES
    ]
    given += ["a command"] if ctx.meta.get(COMMAND) else []
    if given:
        from brim.errors import SpecError

        name = "FILE" if given[0] == "file" else given[0]
        need = "the file alone, which has all options of a service"
        raise SpecError("--service", got=f"it beside {name}", need=need, hint=f"leave {name} out")


def _check_attended(others: Mapping[str, bool]) -> None:
    """Raises SpecError where nobody is at a terminal, or it is used with other output."""
    from brim.errors import SpecError
    from brim.runs.attaching import check_terminal_here

    for name, is_given in others.items():
        if is_given:
            need = "--tty alone: the program has the terminal"
            raise SpecError("--tty", got=f"it beside {name}", need=need, hint=f"leave out {name}")
    check_terminal_here()


def _kube_jobs(client: Client) -> KubeJobs | None:
    """Return the client of a namespace of Kubernetes; None for that of another scheduler."""
    if not client.address.startswith(_KUBERNETES):
        return None
    from brim.kubernetes.cluster_client import KubeJobs

    assert isinstance(client, KubeJobs)
    return client


def _choose_pods(kube_jobs: KubeJobs | None, options: Mapping[str, Any]) -> None:
    """Have the pods of the job as these options say.

    Args:
        kube_jobs: None: the scheduler is not Kubernetes'.
        options: None where one is not given.

    Raises:
        SpecError: one is, for a scheduler whose jobs have no pods.
    """
    values = {name: value for name, value in options.items() if value is not None}
    if kube_jobs is not None:
        from brim.kubernetes.objects.written_jobs import PodChoices

        kube_jobs.choices = PodChoices(**values)
    elif values:
        from brim.errors import SpecError

        name, value = next(iter(values.items()))
        need = "no such option: jobs of this scheduler run without pods, in its own Python"
        actual = "the option" if value is True else repr(value)
        raise SpecError(
            f"--{name.replace('_', '-')}", got=actual, need=need, hint="--to kubernetes"
        )


def _show_objects(objects: list[dict[str, Any]], *, as_json: bool) -> None:
    from brim.kubernetes.objects.schemas import in_yaml

    if as_json:
        click.echo(json.dumps({"objects": objects}))
    else:
        click.echo("---\n".join(in_yaml(manifest) for manifest in objects), nl=False)


def _show_submitted(view: JobView, *, as_json: bool) -> int:
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(view)))
    else:
        click.echo(view.job)
    if view.service is not None:
        click.echo(f"{view.job}: serves at {view.service.url}", err=True)
    _say_verdict(view)
    return EXIT_REFUSED if view.was_refused else EXIT_DONE


def _say_verdict(view: JobView) -> None:
    """Print the policy's verdict on the job's deadline, with the numbers."""
    if view.was_refused:
        goes_on = (
            ""
            if view.has_ended
            else f"; it runs on what others leave (brim cancel {view.job} ends it)"
        )
        click.echo(
            f"{view.job}: no promise ({view.reason}): "
            f"{view.detail}{_earliest(view.earliest)}{goes_on}",
            err=True,
        )
    elif view.promised:
        click.echo(f"{view.job}: promised ({view.reason}): {view.detail}", err=True)
    elif view.deadline is not None and not view.judged:
        text = "its steps are measured before its deadline can be promised"
        click.echo(f"{view.job}: {text}: brim status {view.job}", err=True)


def _show_forecast(forecast: Forecast, request: Submit, *, as_json: bool) -> int:
    from brim.runs.times import clock_time

    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(forecast)))
    else:
        word = {True: "promised", False: "not promised", None: "accepted"}[forecast.admitted]
        reason = f" ({forecast.reason})" if forecast.reason else ""
        click.echo(f"{word}{reason}: {forecast.detail}{_earliest(forecast.earliest)}")
        conditions = request.submission.conditions
        if conditions.predecessors or conditions.earliest:
            click.echo("if it could begin now, which --after or --at does not let it:")
        if request.array:
            click.echo(f"for the first of {counted(len(request.array), 'job')}:")
        click.echo(f"workers now: {forecast.workers}")
        for job, workers in forecast.takes.items():
            click.echo(f"  {workers} of {job}")
        if forecast.finish is not None:
            click.echo(f"finish: {clock_time(forecast.finish)}")
    return (
        EXIT_REFUSED
        if forecast.admitted is False and request.submission.deadline is not None
        else EXIT_DONE
    )


def _earliest(moment: float | None) -> str:
    from brim.runs.times import clock_time

    return (
        f"; the earliest that could be promised: {clock_time(moment)}" if moment is not None else ""
    )
