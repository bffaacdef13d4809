"""Pods that have failed, as the status of their job keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from brim.kubernetes.client.kube_types import (
    ContainerReport,
    ContainerState,
    KubePod,
    PodReport,
    Terminated,
)
from brim.kubernetes.objects.failed_pods import LONGEST_LINES, MOST_FAILED, failed_pod, failed_pods
from brim.kubernetes.objects.status import NAME_TAKEN, Stall
from brim.kubernetes.pods.retries import Retries
from kube_objects import master, pod, worker

AT = "2026-11-24T17:00:00Z"


def ended(pod: KubePod, name: str = "worker", **details: Any) -> KubePod:
    state = ContainerState(terminated=Terminated(finished_at=AT, **details))
    report = PodReport(
        phase="Failed", container_statuses=(ContainerReport(name=name, state=state),)
    )
    return msgspec.structs.replace(pod, status=report)


def test_what_failed_is_told_once() -> None:
    failed = ended(worker(2), exit_code=3, reason="Error", message="one\nboom\n")
    found = failed_pod(worker(2), failed)
    assert found is not None
    assert (found.identity.job, found.identity.uid) == ("team.flights", "uid of flights")
    assert found.entry == {
        "pod": "flights-1-2",
        "node": "n1",
        "reason": "Error",
        "exitCode": 3,
        "finishTime": AT,
        "lastLines": "one\nboom",
    }
    assert failed_pod(failed, failed) is None
    entries = failed_pods(None, [found.entry])
    assert failed_pods({"failedPods": entries}, [found.entry]) == entries == [found.entry]


@pytest.mark.parametrize(
    "change",
    [
        (worker(0), None),
        (worker(0), worker(0, phase="Succeeded")),
        (worker(0, leaving=True), ended(worker(0, leaving=True), exit_code=137)),
        (None, ended(pod("other"), "main", exit_code=1)),
    ],
)
def test_sound_and_foreign_pods_are_skipped(
    change: tuple[KubePod | None, KubePod | None],
) -> None:
    assert failed_pod(*change) is None


def test_one_that_was_evicted_says_why() -> None:
    report = PodReport(phase="Failed", reason="Evicted", message="The node was low on memory.")
    found = failed_pod(None, msgspec.structs.replace(master(), status=report))
    assert found is not None
    assert (found.entry["reason"], found.entry["lastLines"]) == (
        "Evicted",
        "The node was low on memory.",
    )
    assert "exitCode" not in found.entry


def test_failed_pods_are_kept_within_limits() -> None:
    texts = ["\x1b]0;title\x07" * 500, "ä" * 5_000, "\ud800" * 50, "\n" * 9_999, "x\n" * 9_999]
    found = [
        failed_pod(None, ended(worker(number), exit_code=1, message=text))
        for number, text in enumerate(texts * 3)
    ]
    entries = failed_pods(
        {"failedPods": [7, {"pod": None}]}, [failure.entry for failure in found if failure]
    )
    assert [entry["pod"] for entry in entries] == [
        f"flights-1-{number}" for number in range(10, 15)
    ]
    assert len(entries) == MOST_FAILED
    for kept_entry in entries:
        assert len(kept_entry.get("lastLines", "")) <= LONGEST_LINES
        assert "\x1b" not in kept_entry.get("lastLines", "")
        kept_entry.get("lastLines", "").encode()


def test_success_of_a_neighbour_hides_no_taken_name() -> None:
    retries = Retries()
    retries.begin()
    retries.failed("n1", 0.0, stall := Stall(NAME_TAKEN, "the Pod of another"), pod="flights-1-1")
    retries.succeeded("n1", "flights-1-0")
    assert retries.stall == stall
    retries.want(["flights-1-1"])
    retries.begin()
    assert retries.stall == stall
    retries.complete()
    assert retries.stall is None
