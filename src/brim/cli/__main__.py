"""The command `brim`: its verbs, none of which is imported before it is asked for."""

from __future__ import annotations

import click

import brim
from brim.cli.usage import Verbs

# group -> verb -> (module, attribute, one line of help)
_VERBS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Train": {
        "train": ("brim.cli.train", "train", "Train the model of a file."),
        "run": ("brim.cli.train", "run", "Run your own training loop."),
        "resume": ("brim.cli.train", "resume", "Continue a run from its last checkpoint."),
    },
    "Watch and change what is running": {
        "status": ("brim.cli.control", "status", "Show what a run or a job is doing now."),
        "logs": ("brim.cli.logs", "logs", "Show what the workers print."),
        "resize": ("brim.cli.control", "resize", "Give a run more or fewer workers."),
        "suspend": (
            "brim.cli.control",
            "suspend",
            "Pause a run: write a checkpoint and release its workers.",
        ),
        "agent": ("brim.cli.control", "agent", "Add this host's workers to a run on another host."),
    },
    "Look at what a run left": {
        "report": ("brim.cli.records", "report", "Write a run's report as a web page."),
        "track": (
            "brim.cli.loggers",
            "track",
            "Send a run's records to TensorBoard, MLflow or W&B.",
        ),
        "checkpoints": (
            "brim.cli.checkpoints",
            "checkpoints",
            "List a run's checkpoints and verify them.",
        ),
        "ledger": (
            "brim.cli.records",
            "ledger",
            "Check that every sample was used exactly once per epoch.",
        ),
    },
    "Use a trained model": {
        "evaluate": ("brim.cli.inference", "evaluate", "Compute the metrics of a trained model."),
        "predict": (
            "brim.cli.inference",
            "predict",
            "Write a trained model's output for every row.",
        ),
        "export": (
            "brim.cli.export",
            "export",
            "Save a trained model in files, to be used or served.",
        ),
        "serve": ("brim.cli.serve", "serve", "Answer requests with a model's predictions."),
    },
    "Share this machine between jobs": {
        "up": ("brim.cli.cluster", "up", "Start the scheduler."),
        "submit": ("brim.cli.submit", "submit", "Hand a job to the scheduler."),
        "jobs": ("brim.cli.jobs", "jobs", "List the scheduler's jobs."),
        "explain": (
            "brim.cli.explain",
            "explain",
            "Tell why the scheduler did what it did with a job.",
        ),
        "cancel": ("brim.cli.jobs", "cancel", "End a job for good."),
        "forget": (
            "brim.cli.forget",
            "forget",
            "Delete what is known of ended jobs, and their files.",
        ),
        "tenants": ("brim.cli.cluster", "tenants", "Show each tenant's quota and what it holds."),
        "token": ("brim.cli.token", "token", "Give a tenant a token, or revoke it."),
        "apply": ("brim.cli.cluster", "apply", "Change the cluster: nodes, quotas, policy."),
        "backup": ("brim.cli.backup", "backup", "Save what the scheduler remembers in one file."),
        "restore": ("brim.cli.backup", "restore", "Restore what brim backup saved."),
        "down": ("brim.cli.cluster", "down", "Pause all jobs and stop the scheduler."),
    },
    "Try it out": {
        "demo": ("brim.cli.demo", "demo", "Run a demo with real jobs on this machine."),
        "simulate": (
            "brim.cli.simulate",
            "simulate",
            "Replay job traces under scheduling policies, in simulated time.",
        ),
        "help": ("brim.cli.help", "help", "Show how a verb is used."),
    },
}

cli = Verbs(
    name="brim",
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
cli = click.version_option(
    brim.__version__, "--version", "-V", prog_name="brim", message="%(prog)s %(version)s"
)(cli)


def main() -> None:
    """Entry point of the command."""
    cli()


if __name__ == "__main__":
    main()
