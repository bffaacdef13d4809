"""The faults by which the pods of a job are not made, and the interventions they need. Pure."""

from __future__ import annotations

from brim.errors import EnvironmentFault
from brim.kubernetes.client.refusals import Forbidden, Invalid, NotFound
from brim.kubernetes.objects.status import NAME_TAKEN, PODS_REFUSED, Stall


class NameTaken(EnvironmentFault):
    """A name that a job needs is that of an object which is not of the job.

    Args:
        kind, key: of that object.
        job: the name of the job.
    """

    def __init__(self, kind: str, key: str, job: str) -> None:
        super().__init__(
            f"the {kind} {key} is not of {job}; the job needs that name\n"
            "  hint: delete it, or give the job another name"
        )


def stall_of(fault: EnvironmentFault, *, to_change: str) -> Stall | None:
    """Return the fault that needs an intervention; None where the next attempt may go well.

    Args:
        to_change: the fields of the job's object by which the server may be content.
    """
    if isinstance(fault, NameTaken):
        return Stall(NAME_TAKEN, str(fault))
    if isinstance(fault, Invalid | Forbidden | NotFound):
        message = f"change {to_change}: the API server refuses what they ask for: {fault}"
        return Stall(PODS_REFUSED, message)
    return None
