"""`--notice`: the option of a host that leaves before it is taken back."""

from __future__ import annotations

from collections.abc import Callable

from brim.runs.options import option

NOTICE = option(
    "--notice",
    metavar="aws|gcp|azure|URL|FILE|COMMAND",
    envvar=None,
    help="Leave at the next step boundary once this host is about to be taken back, as said by the "
    "metadata server of a cloud, a URL that then answers 200 with a text, a file that then exists, "
    "or a command of several words that then exits with status 0.",
)


def leaving_at(notice: str | None, work: Callable[[], int]) -> int:
    """Do the work of a host, until a notice if one is watched for; the exit status.

    Raises:
        SpecError: the notice is none that can be watched for.
        EnvironmentFault: its server does not answer.
    """
    if notice is None:
        return work()
    from brim.joined.notices import leave_at

    return leave_at(notice, work)
