"""The command `brim`: its verbs, none of which is imported before it is asked for."""

from __future__ import annotations

import click

import brim
from brim.cli.usage import Verbs

__all__ = ["cli", "main"]

_VERBS = {
    "train": ("brim.cli.train", "train", "Train the model of a file, elastically."),
    "run": ("brim.cli.train", "run", "Run your own training loop, elastically."),
    "up": ("brim.cli.cluster", "up", "Start the scheduler of this host."),
    "down": ("brim.cli.cluster", "down", "Suspend all jobs and end the scheduler."),
    "submit": ("brim.cli.submit", "submit", "Hand a job to the scheduler."),
    "jobs": ("brim.cli.jobs", "jobs", "The scheduler's jobs."),
    "cancel": ("brim.cli.jobs", "cancel", "End a job for good."),
    "tenants": ("brim.cli.cluster", "tenants", "Who owns, holds and has borrowed how much."),
    "apply": ("brim.cli.cluster", "apply", "Describe the cluster anew: quotas, policy, nodes."),
    "status": ("brim.cli.control", "status", "What a run or a job is doing now."),
    "resize": ("brim.cli.control", "resize", "Give a run more workers, or fewer."),
    "logs": ("brim.cli.logs", "logs", "What the workers printed."),
    "suspend": ("brim.cli.control", "suspend", "Take a run to no workers, with a checkpoint."),
    "resume": ("brim.cli.train", "resume", "Go on with a run, on any number of workers."),
    "evaluate": ("brim.cli.inference", "evaluate", "The metrics of a trained model."),
    "predict": ("brim.cli.inference", "predict", "The outputs of a trained model for every row."),
    "export": ("brim.cli.export", "export", "A trained model as files that load without brim."),
    "track": ("brim.cli.loggers", "track", "Send a run's records to TensorBoard, MLflow or W&B."),
    "report": ("brim.cli.records", "report", "Write a run's report.html."),
    "ledger": ("brim.cli.records", "ledger", "Prove how often every sample was applied."),
    "checkpoints": ("brim.cli.checkpoints", "checkpoints", "List a run's checkpoints and check every byte."),
    "chaos": ("brim.cli.chaos", "chaos", "Break short runs at random and check every promise."),
    "demo": ("brim.cli.demo", "demo", "Run one of ElasticDL's experiments, live."),
    "simulate": (
        "brim.cli.simulate",
        "simulate",
        "Run job traces under scheduling policies, on a virtual clock.",
    ),
    "explain": ("brim.cli.explain", "explain", "Why the scheduler did what it did with a job."),
    "agent": ("brim.cli.control", "agent", "Join a run from another host."),
}

cli = Verbs(
    name="brim",
    verbs=_VERBS,
    help="""Elastic PyTorch training: any worker may die, join or leave, and the result stays the same.

\b
  brim train flights.py --workers 4
  brim status                 (in another terminal)
  brim resize latest 8
""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
cli = click.version_option(brim.__version__, prog_name="brim", message="%(prog)s %(version)s")(cli)


def main() -> None:
    """Entry point of the command."""
    cli()


if __name__ == "__main__":
    main()
