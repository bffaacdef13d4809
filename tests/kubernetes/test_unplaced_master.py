"""Masters that no node takes: their messages, and the time for which their workers make way."""

from __future__ import annotations

from typing import Any

import msgspec

from brim.kubernetes.client.kube_types import KubePod
from brim.kubernetes.pods.unplaced_master import UnplacedMaster
from kube_objects import master

TAINTED = "0/3 nodes are available: 3 node(s) had untolerated taint(s)."
FULL = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."


def refused(message: str = TAINTED, uid: str = "1", **fields: Any) -> KubePod:
    pod = master(node="", phase="Pending", refused=True, message=message, **fields)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid))


def test_workers_hold_slots_a_minute_between_growing_pauses() -> None:
    masters, now = UnplacedMaster(), 0.0
    for launch, pause in enumerate((60.0, 120.0, 240.0, 480.0, 600.0, 600.0), 1):
        pod = refused(uid=str(launch))
        masters.look(launch, pod, now)
        assert masters.pause(launch, now + 59.0) is None
        assert not masters.is_calm()
        assert masters.pause(launch, now + 60.0) == pause
        assert masters.pause(launch, now + 90.0) is None  # once is enough
        assert masters.is_calm()
        now += 1000.0


def test_unplaced_master_is_reported_until_placed() -> None:
    masters = UnplacedMaster()
    masters.look(1, None, 0.0)
    masters.look(1, master(node="", phase="Pending"), 0.0)
    masters.look(1, refused(), 0.0)
    stall = masters.stall
    assert stall is not None
    assert stall.reason == "MasterUnschedulable"
    assert stall.message == (
        f"no node takes its master: {TAINTED}; spec.masterTemplate says where it may be"
    )
    masters.look(1, refused(), 1.0)
    masters.look(1, refused(leaving=True), 70.0)
    masters.look(2, None, 70.0)
    assert masters.stall == stall
    masters.look(2, master(), 80.0)
    assert masters.stall is None


def test_where_room_is_what_it_lacks_it_waits() -> None:
    masters = UnplacedMaster()
    masters.look(1, refused(FULL), 0.0)
    assert not masters.asks_for_room(4.9)
    assert not masters.is_calm()
    assert masters.asks_for_room(5.0), "nobody else may end"
    assert masters.is_calm()
    assert masters.pause(1, 1e6) is None
    stall = masters.stall
    assert stall is not None
    assert stall.message == f"no node takes its master: {FULL}"


def test_room_is_requested_only_for_a_full_node() -> None:
    masters = UnplacedMaster()
    masters.look(1, refused(FULL), 0.0)
    assert masters.asks_for_room(10.0)
    masters.look(1, refused(TAINTED), 20.0)
    assert not masters.asks_for_room(20.0)
    assert not masters.is_calm()
    masters.look(1, master(), 30.0)
    assert not masters.asks_for_room(40.0)


def test_workers_with_an_earlier_master_keep_their_work() -> None:
    masters = UnplacedMaster()
    masters.look(1, master(), 0.0)
    masters.look(1, refused(uid="2"), 10.0)
    assert masters.pause(1, 1e6) is None
    masters.forget()  # its object has changed
    masters.look(1, refused(uid="2"), 10.0)
    assert masters.pause(1, 1e6) is None
    masters.look(2, refused(uid="3"), 20.0)
    assert masters.pause(2, 80.0) == 60.0


def test_nothing_is_known_of_jobs_that_are_gone() -> None:
    masters = UnplacedMaster()
    masters.look(1, refused(), 0.0)
    assert masters.pause(1, 60.0) == 60.0
    masters.stop(is_there=True)
    assert masters.stall is not None
    masters.stop(is_there=False)
    assert masters.stall is None


def test_suspension_by_others_clears_the_masters_stall() -> None:
    masters = UnplacedMaster()
    masters.look(1, refused(FULL), 0.0)
    assert masters.stall is not None
    masters.stop(is_there=True)  # others have its slots now
    assert masters.stall is None
