"""Requests to a cluster and faults of it, as a small language of clauses with times.

`submit 1:4 of ads for 4 epochs by 40s at 0s; kill scheduler for 1s at 3s; kill agent of job 1 at
5s`. Pure: it names what is to be done and when; `brim chaos --cluster` does it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from brim.domain.clauses import Clauses
from brim.domain.job import WorkerRange
from brim.errors import SpecError


class DeedKind(enum.StrEnum):
    SUBMIT_BY = "submit by"
    SUBMIT = "submit"
    SUSPEND = "suspend"
    RESIZE = "resize"
    CANCEL = "cancel"
    APPLY = "apply"
    DOWN = "down"
    SERVE = "serve"
    ASK = "ask"
    RESTART = "restart"
    KILL_SCHEDULER = "kill scheduler"
    STOP_SCHEDULER = "stop scheduler"
    KILL_NODE = "kill node"
    KILL_AGENT = "kill agent"
    KILL_MASTER = "kill master"
    STOP_MASTER = "stop master"
    KILL_WORKER = "kill worker"
    KILL_EVERYTHING = "kill everything"
    KILL_REPLICA = "kill replica"
    KILL_FRONT = "kill front"


SUBMITS = frozenset({DeedKind.SUBMIT, DeedKind.SUBMIT_BY, DeedKind.SERVE})
# Only a service bears these.
ON_SERVICE = frozenset({DeedKind.ASK, DeedKind.RESTART, DeedKind.KILL_REPLICA, DeedKind.KILL_FRONT})
# Nobody asks for these.
ON_PROCESSES = frozenset(
    {
        DeedKind.KILL_SCHEDULER,
        DeedKind.STOP_SCHEDULER,
        DeedKind.KILL_NODE,
        DeedKind.KILL_AGENT,
        DeedKind.KILL_MASTER,
        DeedKind.STOP_MASTER,
        DeedKind.KILL_WORKER,
        DeedKind.KILL_EVERYTHING,
        DeedKind.KILL_REPLICA,
        DeedKind.KILL_FRONT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One deed.

    Args:
        at: when, seconds after the cluster came up; it waits for what it needs (a job that runs, a
            scheduler).
        job: which, in the order of submission, from 1.
        node: which, from 1.
        workers: that a job is submitted with, or resized to; of a service, replicas.
        tenant: whose job it is.
        epochs: that it trains.
        due: its deadline, seconds after its submission; 0 for none.
        seconds: until what was stopped, suspended or killed goes on; a scheduler that was killed is
            brought up then.
        ads, web: devices that are guaranteed to these tenants from now on.
        rate: requests a second to a service, from now on.
    """

    kind: DeedKind
    at: float
    job: int = 0
    node: int = 0
    workers: WorkerRange | None = None
    tenant: str = ""
    epochs: int = 0
    due: float = 0.0
    seconds: float = 0.0
    ads: int = 0
    web: int = 0
    rate: int = 0


FIELD = "--faults"
# Each form is both what is read and what is written; the longer one of two that begin alike comes
# first.
_FORMS = {
    DeedKind.SUBMIT_BY: "submit {workers} of {tenant} for {epochs} epochs by {due} at {at}",
    DeedKind.SUBMIT: "submit {workers} of {tenant} for {epochs} epochs at {at}",
    DeedKind.SUSPEND: "suspend job {job} for {seconds} at {at}",
    DeedKind.RESIZE: "resize job {job} to {workers} at {at}",
    DeedKind.CANCEL: "cancel job {job} at {at}",
    DeedKind.APPLY: "apply ads {ads} web {web} at {at}",
    DeedKind.DOWN: "down for {seconds} at {at}",
    DeedKind.SERVE: "serve {workers} of {tenant} at {at}",
    DeedKind.ASK: "ask job {job} {rate} times a second at {at}",
    DeedKind.RESTART: "restart job {job} at {at}",
    DeedKind.KILL_SCHEDULER: "kill scheduler for {seconds} at {at}",
    DeedKind.STOP_SCHEDULER: "stop scheduler for {seconds} at {at}",
    DeedKind.KILL_NODE: "kill node {node} at {at}",
    DeedKind.KILL_AGENT: "kill agent of job {job} at {at}",
    DeedKind.KILL_MASTER: "kill master of job {job} at {at}",
    DeedKind.STOP_MASTER: "stop master of job {job} for {seconds} at {at}",
    DeedKind.KILL_WORKER: "kill worker of job {job} at {at}",
    DeedKind.KILL_EVERYTHING: "kill everything for {seconds} at {at}",
    DeedKind.KILL_REPLICA: "kill replica of job {job} at {at}",
    DeedKind.KILL_FRONT: "kill front of job {job} at {at}",
}
ON_JOB = frozenset(kind for kind, form in _FORMS.items() if "{job}" in form)
_EXAMPLE = {
    "at": "5s", "job": "1", "node": "1", "workers": "1:4", "tenant": "ads", "epochs": "4", "due": "40s",
    "seconds": "1s", "ads": "1", "web": "3", "rate": "20",
}  # fmt: skip
_NUMBERS, _SPANS = ("job", "node", "epochs", "ads", "web", "rate"), ("at", "due", "seconds")
_LANGUAGE = Clauses(FIELD, _FORMS, _EXAMPLE, numbers=_NUMBERS, spans=_SPANS)


def parse_deeds(text: str) -> tuple[Deed, ...]:
    """Read clauses separated by `;`, in the order written; an empty string has none.

    Raises:
        SpecError: a clause is not in this language, or names a job that is not submitted, or is no
            service where it has to be one.

    >>> [describe_deed(deed) for deed in parse_deeds("submit 1:2 of web for 4 epochs at 0s; cancel job 1 at 2500ms")]
    ['submit 1:2 of web for 4 epochs at 0s', 'cancel job 1 at 2500ms']
    """
    deeds = []
    for kind, clause, words in _LANGUAGE.read(text):
        values: dict[str, Any] = {name: int(words[name]) for name in _NUMBERS if name in words}
        values |= {name: _time_of(words[name], clause) for name in _SPANS if name in words}
        values["workers"] = WorkerRange.parse(words["workers"]) if "workers" in words else None
        deeds.append(Deed(kind=kind, tenant=words.get("tenant", ""), **values))
    submits = [deed for deed in sorted(deeds, key=lambda deed: deed.at) if deed.kind in SUBMITS]
    for deed in deeds:
        if deed.kind in ON_JOB and not 1 <= deed.job <= len(submits):
            need = f"a job that is submitted: 1 to {len(submits)}"
            raise SpecError(FIELD, got=repr(describe_deed(deed)), need=need)
        if deed.kind in ON_SERVICE and submits[deed.job - 1].kind is not DeedKind.SERVE:
            need = "a job that is a service"
            hint = _LANGUAGE.example(DeedKind.SERVE)
            raise SpecError(FIELD, got=repr(describe_deed(deed)), need=need, hint=hint)
        if deed.kind is DeedKind.ASK and not deed.rate:
            need = "at least one request a second"
            raise SpecError(FIELD, got=repr(describe_deed(deed)), need=need)
        if deed.kind is DeedKind.KILL_NODE and not deed.node:
            raise SpecError(
                FIELD, got=repr(describe_deed(deed)), need="a node: they are counted from 1"
            )
    return tuple(deeds)


def _time_of(text: str, clause: str) -> float:
    return 0.0 if text == "0s" else _LANGUAGE.span(text, clause)


def describe_deed(deed: Deed) -> str:
    """The clause that `parse_deeds` reads back as this deed."""
    values = {name: getattr(deed, name) for name in _EXAMPLE}
    return _LANGUAGE.write(deed.kind, **values)
