"""The words in which a master warns people, and says why a job fails. Pure: values in, text out."""

from __future__ import annotations

from brim.coordination.job.audits import NOT_KEPT, TO_KEEP
from brim.coordination.job.membership import GiveUpOn
from brim.coordination.job.stragglers import Bottleneck
from brim.domain.job import JobSpec, fewest_micro_batches
from brim.domain.quantities import counted, format_duration
from brim.wire import messages as wire

MORE_MEMORY = "give workers more (--memory), or have them do less at a time (--micro-batches)"


def never_ready(reason: str) -> str:
    """A service fails: one start after the other has, and no replica was ever ready."""
    return (
        f"no replica was ever ready, and its starts failed one after the other, the last: {reason}"
    )


def taken_over(life: int, *, run: str, note: str) -> str:
    """Another master goes on, in the same directory or in another one."""
    place_note = f" and goes on in {run}" if run else ""
    return (
        f"the master died; another, life {life}, has taken over{place_note}{note and f'; {note}'}"
    )


def slow_worker(slow: Bottleneck, *, host: str, parts: int) -> str:
    """A worker holds everyone up, however little it is given."""
    return (
        f"{slow.worker} on {host} takes {slow.times:.1f} times as long for a micro-batch as its "
        f"peers: everyone waits for it even where it has one of {parts}, and without it steps "
        f"would be {slow.speedup:.1f} times as fast; send it SIGTERM to go on without it, or start "
        "with a larger --micro-batches"
    )


def host_given_up(given_up: GiveUpOn, *, host: str, run: str, spec: JobSpec) -> str:
    """A host on which workers die young gets no more of them."""
    goes_on = counted(given_up.target, "worker")
    resize = f"the job goes on with {goes_on}; brim resize {run} {spec.workers.maximum}"
    consequence = "its agent ends; another" if given_up.ends else resize
    return (
        f"{host} gets no more workers: {given_up.deaths} in a row died young there, the last: "
        f"{given_up.reason}; {consequence} gives it another try"
    )


def waiting_for(late: wire.Late, *, worker: str) -> str:
    """A wait: for whom, during which activity, how long, until when, and the code's place."""
    end = "never given up" if late.limit is None else f"given up at {format_duration(late.limit)}"
    stack = (
        f"its stack, the most recent call last:\n{late.stack}"
        if late.stack
        else "it shows no stack yet"
    )
    return (
        f"waiting for {worker}, which has been {late.doing} for {late.seconds:.0f} s and is {end} "
        f"(--hang-timeout); {stack}"
    )


def starting(late: wire.Late, *, subject: str) -> str:
    """A start that takes long, as it does on a busy host; the subject may be empty."""
    return f"{subject and f'{subject}: '}{late.start} ({late.seconds:.0f} s so far)"


def out_of_memory(lost: wire.LoseWorker, *, worker: str, host: str) -> str:
    """A worker was lost since memory ran out, and the remedies."""
    if lost.memory == "limit":
        return f"{worker} was ended, {lost.reason}; {MORE_MEMORY}"
    return (
        f"{worker} on {host} is lost, {lost.reason}; run fewer workers there, have them do less at a "
        "time (--micro-batches), or end what else takes memory"
    )


def host_left_out(host: str, reason: str) -> str:
    """A host does not take part."""
    return f"{host} cannot take part, and is left out: {reason}"


def waiting_for_a_host(lacking: int) -> str:
    """A run cannot begin on the hosts that are here."""
    workers = counted(lacking, "more worker")
    return f"waiting for another host: {workers} must have room before the first step"


def waiting_for_any_host(step: int) -> str:
    """A run goes on once somebody comes."""
    return f"no host is left: the run waits at step {step} for an agent to join"


def turned_away(agent: str, reason: str) -> str:
    """An agent that is not in the job knows more than its master: that is lost."""
    return f"agent {agent} was turned away: {reason}; its workers start from scratch"


def made_again(step: int, *, previous_loss: float, now: float) -> str:
    """A step that had counted, and was made again from a checkpoint, came to another loss."""
    return (
        f"step {step} was repeated, and its loss is {now!r}, not {previous_loss!r} as before: the weights "
        f"are not those of an undisturbed run\n  {NOT_KEPT}\n  hint: {TO_KEEP}"
    )


def newcomer_turned_away(name: str, reason: str, *, remaining: int) -> str:
    """A newcomer disagrees with the others."""
    workers = counted(remaining, "worker")
    return f"{name} was turned away, and the run goes on with {workers}: {reason}"


def short_micro_batches(seconds: float, *, spec: JobSpec) -> str:
    """Steps are cut into more parts than the job's workers need, and that is most of their time.

    Args:
        seconds: of a micro-batch.
        spec: of the job.
    """
    fewest = fewest_micro_batches(spec.workers)
    limit = f"1 to {fewest} workers" if fewest > 1 else "1 worker"
    text = (
        f"a micro-batch takes {1e3 * seconds:.1f} ms, and a step has {spec.micro_batches} of them so "
        f"that 1 to {spec.micro_batches} workers give the same weights; with --micro-batches auto a "
        f"step has {fewest} and takes less time, but weights are other ones than this run's, and "
        f"the same for {limit} only"
    )
    if spec.capture or spec.servers:
        return text
    return f"{text}; --capture (alpha) keeps the weights and replays micro-batches in less time"


def servers_without_need() -> str:
    """A job of one worker has servers beside it."""
    return (
        "--ps: parameter servers share the work on embeddings with several workers, and a job of "
        "1 worker only waits for them; leave --ps out, or give the job more workers (--workers 1:4)"
    )


def host_departs(host: str) -> str:
    """A host is to be free."""
    return f"{host} was asked to leave; its workers go at the next step boundary"


def hung_again(lost: wire.LoseWorker, *, worker: str) -> wire.JobFailed:
    """The failure of a run where a second worker hangs in one step."""
    assert lost.hang is not None
    place = f"step {lost.hang.step}" if lost.hang.step else "the start of a worker"
    return wire.JobFailed(
        who="user",
        message=f"{worker} hangs: {lost.reason}, as another worker before it; mend what {place} waits "
        "for, or give it longer: --hang-timeout",
        trace=f"Stack (most recent call last):\n{lost.hang.stack}" if lost.hang.stack else "",
    )


def ended_again(reason: str, *, worker: str) -> wire.JobFailed:
    """The failure of a run where a second worker ends without an error, and before the job."""
    return wire.JobFailed(
        who="user",
        message=f"{worker} {reason}, as another worker before it; let the loop over batches end by "
        "itself, and take exit() and os._exit() out of it",
    )
