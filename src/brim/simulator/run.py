"""The result of a simulation, and the metrics computed from it: one ruler for every policy."""

from __future__ import annotations

from dataclasses import dataclass

from brim.domain.course import Change, deadline_kept
from brim.domain.schedule import Verdict
from brim.domain.workload import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one job.

    Args:
        started: when it first had workers; None if never.
        finished: the exact end, overheads included; None if it was refused and not run.
        admitted: its deadline was promised.
        refused: a promise was refused (it may have run nevertheless).
        attained: worker-seconds that it used.
        changes: starts, resizes and migrations.
        judged: whether the deadline was met where another ruler than the exact finish is to be
            shown, as the published artifact's; None otherwise.
    """

    job: Job
    started: float | None
    finished: float | None
    admitted: bool
    refused: bool
    attained: float = 0.0
    changes: int = 0
    judged: bool | None = None

    @property
    def met(self) -> bool:
        """Return whether it had a deadline and finished by it."""
        if self.judged is not None:
            return self.judged and self.job.deadline is not None
        return deadline_kept(self.job.deadline, self.finished) is True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One trace under one policy.

    Args:
        outcomes: by job id.
        usage: (time, devices in use, jobs that wait), where either changed.
        changes: every change of workers, where the settings asked to record them.
        cycles: how often the policy was asked.
    """

    outcomes: tuple[Outcome, ...]
    devices: int
    usage: tuple[tuple[float, int, int], ...] = ()
    changes: tuple[Change, ...] = ()
    verdicts: tuple[tuple[float, Verdict], ...] = ()
    cycles: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of one run; see `measure` for their definitions."""

    jobs: int
    deadline_jobs: int
    deadline_satisfactory_ratio: float | None
    admitted: int
    admitted_missed: int
    refused: int
    refused_met: int
    dropped: int
    average_wait_seconds: float | None
    average_jct_seconds: float | None
    average_jct_admitted_seconds: float | None
    makespan_seconds: float
    utilisation: float
    changes: int


def measure(run: SimulatedRun) -> Metrics:
    """The metrics of `run`.

    A deadline is met if the exact finish, overheads included, is at most the deadline; a job that
    was refused and dropped has missed it. The wait of a job is from submission to its first
    workers. JCT is from submission to finish, over every job that ran, best-effort and refused ones
    included; dropped jobs have no JCT. Makespan is from the first submission to the last finish.
    """
    outcomes = run.outcomes
    deadline = [outcome for outcome in outcomes if outcome.job.deadline is not None]
    times = [(o.finished - o.job.submitted, o) for o in outcomes if o.finished is not None]
    promised = [jct for jct, o in times if o.admitted]
    waits = [o.started - o.job.submitted for o in outcomes if o.started is not None]
    first = min((o.job.submitted for o in outcomes), default=0.0)
    makespan = max((o.finished for o in outcomes if o.finished is not None), default=first) - first
    work = sum(o.attained for o in outcomes)
    return Metrics(
        jobs=len(outcomes),
        deadline_jobs=len(deadline),
        deadline_satisfactory_ratio=sum(o.met for o in deadline) / len(deadline)
        if deadline
        else None,
        admitted=sum(o.admitted for o in deadline),
        admitted_missed=sum(o.admitted and not o.met for o in deadline),
        refused=sum(o.refused for o in deadline),
        refused_met=sum(o.refused and not o.admitted and o.met for o in deadline),
        dropped=len(outcomes) - len(times),
        average_wait_seconds=sum(waits) / len(waits) if waits else None,
        average_jct_seconds=sum(jct for jct, _ in times) / len(times) if times else None,
        average_jct_admitted_seconds=sum(promised) / len(promised) if promised else None,
        makespan_seconds=makespan,
        utilisation=work / (makespan * run.devices) if makespan else 0.0,
        changes=sum(o.changes for o in outcomes),
    )
