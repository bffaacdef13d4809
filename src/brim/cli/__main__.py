"""The command `brim`: its verbs, none of which is imported before it is asked for."""

from __future__ import annotations

import os

import click

import brim
from brim.cli.shared.usage import Verbs
from brim.domain.options import choice
from brim.host.log import LEVELS, VARIABLE, level_in, write_to_stderr
from brim.runs.values import Value

# group -> verb -> one line of help; each verb is in the module of its name
_VERBS: dict[str, dict[str, str]] = {
    "Train": {
        "train": "Train the model of a file.",
        "run": "Run your own training loop, or any command.",
        "resume": "Continue a run from its last checkpoint.",
    },
    "Watch and change what is running": {
        "status": "Show what a run or a job is doing now.",
        "logs": "Show what the workers print.",
        "stacks": "Show where each worker's Python code is now.",
        "resize": "Give a run more or fewer workers.",
        "suspend": "Pause a run: write a checkpoint and release its workers.",
        "master": "Lead a run, or continue one whose master is gone.",
        "agent": "Add this host's workers to a run on another host.",
    },
    "Look at what a run left": {
        "report": "Write a run's report as a web page.",
        "track": "Send a run's records to TensorBoard, MLflow or W&B.",
        "checkpoints": "List a run's checkpoints and verify them.",
        "ledger": "Check that every sample was used exactly once per epoch.",
    },
    "Use a trained model": {
        "evaluate": "Compute the metrics of a trained model.",
        "predict": "Write a trained model's output for every row.",
        "export": "Save a trained model in files, to be used or served.",
        "serve": "Answer requests with a model's predictions.",
    },
    "Share this machine between jobs": {
        "up": "Start the scheduler.",
        "node": "Add this host to a scheduler on another host.",
        "submit": "Hand a job to the scheduler.",
        "jobs": "List the scheduler's jobs.",
        "top": "Show the cluster and its jobs on this terminal.",
        "dashboard": "Show the cluster and its jobs in a browser.",
        "explain": "Tell what the scheduler decided for a job, and why.",
        "cancel": "End a job for good.",
        "restart": "Replace the replicas of a service, one after the other.",
        "forget": "Delete ended jobs with their records and files.",
        "tenants": "Show each tenant's quota and what it holds.",
        "usage": "Show the device hours of a month.",
        "token": "Give a tenant a token, or revoke it.",
        "nodes": "Show each node and what runs on it.",
        "drain": "Pause the use of a node.",
        "apply": "Change the cluster: nodes, quotas, policy.",
        "backup": "Save the scheduler's jobs and settings in one file.",
        "restore": "Restore what brim backup saved.",
        "down": "Pause all jobs and stop the scheduler.",
    },
    "Share a cluster of Kubernetes": {
        "install": "Add brim to a cluster of Kubernetes.",
        "operator": "Run the ElasticJobs of a cluster of Kubernetes.",
        "pod": "Lead or join a run as a pod of an indexed Job.",
    },
    "Try it out": {
        "demo": "Run a demo with real jobs on this machine.",
        "simulate": "Replay job traces under scheduling policies, in simulated time.",
        "help": "Show how a verb is used.",
    },
}

cli = Verbs(
    name="brim",
    package="brim.cli",
    verbs=_VERBS,
    help="""Elastic PyTorch training: any worker may die, join or leave, and the result stays the same.

\b
  brim train flights.py --workers 4
  brim status                 (in another terminal)
  brim resize latest 8

brim VERB --help explains a verb, with examples.
""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _log_from(ctx: click.Context, _: click.Parameter, level: str | None) -> None:
    """Log from a level on, in this process and in those that it starts."""
    chosen = level or level_in(os.environ.get(VARIABLE, ""))
    if chosen and not ctx.resilient_parsing:
        os.environ[VARIABLE] = chosen
        write_to_stderr(chosen)


def _ask(ctx: click.Context, _: click.Parameter, server: str | None) -> None:
    """Let the verb, and its child processes, ask this scheduler."""
    if server is not None and not ctx.resilient_parsing:
        from brim.cli.shared.handles import ask_server

        ask_server(server, field="--server")


cli = click.option(
    "--server",
    metavar="URL",
    expose_value=False,
    callback=_ask,
    help="Ask the scheduler at https://HOST:PORT, with the token in the file BRIM_TOKEN_FILE, or "
    "kubernetes://NAMESPACE, as kubectl does. "
    "[default: the one of this host and account; also BRIM_SERVER]",
)(cli)
cli = click.option(
    "--log-level",
    type=Value(choice(*LEVELS)),
    metavar="|".join(LEVELS),
    expose_value=False,
    is_eager=True,
    callback=_log_from,
    help="Log from this level on: the scheduler's cycles, the rounds of runs, failures. [default: "
    "none; also BRIM_LOG]",
)(cli)
cli = click.version_option(
    brim.__version__, "--version", "-V", prog_name="brim", message="%(prog)s %(version)s"
)(cli)


def main() -> None:
    """Entry point of the command."""
    cli()


if __name__ == "__main__":
    main()
