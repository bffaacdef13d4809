"""Help of verbs with many options: the usual ones first, then the others by subject."""

from __future__ import annotations

from collections.abc import Sequence

import click

from brim.runs.options import COMMAND

_WIDTH = 24  # columns of an option with its value; a longer one gets a line of its own

# A verb shows the options that it has. A new option of these verbs fails a test until it is here.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Usual options": (
        "--workers", "--epochs", "--global-batch-size", "--set", "--seed", "--device", "--deadline",
        "--tenant", "--priority", "--run-dir", "--resume", "--checkpoint-every", "--logger",
    ),
    "Any command": ("--restart", "--per", "--grace", "--progress", "--tty"),
    "The run that is led": (
        "--auto-resume", "--rejoin-timeout", "--patience", "--token-file", "--heartbeat-file",
        "--summary-file",
    ),
    "The scheduler": (
        "--to", "--state", "--name", "--key", "--after", "--at", "--array", "--retries",
        "--notify", "--service", "--wait",
        "--dry-run",
    ),
    "Pods, with --to kubernetes": ("--image", "--processes-per-worker", "--mode", "--gang"),
    "Code and data": ("--include", "--env", "--loaders"),
    "Workers": ("--spares", "--threads", "--memory", "--start-method", "--ps"),
    "Exactness and arithmetic": (
        "--exact", "--audit", "--capture", "--micro-batches", "--clip-norm", "--on-nan", "--embeddings", "--delay",
        "--async",
    ),
    "Checkpoints and recovery": (
        "--checkpoints", "--keep", "--keep-best", "--runs", "--heartbeat-timeout", "--hang-timeout",
        "--faults",
    ),
    "Output": ("--json", "--prints", "--log-limit"),
    "The pod": (
        "--index", "--pods", "--first", "--workers-per-pod", "--failures",
    ),
    "Several hosts": (
        "--listen", "--agents", "--workers-here", "--ports", "--transport", "--insecure",
    ),
    "Help": ("--help",),
}  # fmt: skip


class SectionedCommand(click.Command):
    """A verb whose help lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            option: record
            for param in self.get_params(ctx)
            if (record := param.get_help_record(ctx)) is not None
            for option in param.opts
        }
        for title, options in SECTIONS.items():
            rows = [records[option] for option in options if option in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(_aligned(rows), col_max=_WIDTH)


class CommandVerb(SectionedCommand):
    """A verb whose words behind `--` are a command, also where it is a single word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[COMMAND] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def _aligned(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pad the options, so that all sections begin their texts at the same column."""
    return [(option.ljust(_WIDTH), text) for option, text in rows]
