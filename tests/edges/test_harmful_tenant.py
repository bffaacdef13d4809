"""A tenant that means harm, beside one that submits jobs: the harm to the latter."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from brim.client import Client
from brim.domain.cluster import Cluster, ClusterSpec, Node
from brim.domain.tenancy import Tenant
from brim.host.clock import monotonic, sleep
from brim.host.process import run_module
from brim.scheduler.loop import CLUSTER
from brim.storage.bundles import digest_of, pack
from brim.storage.contact import SchedulerContact, read_scheduler_contact
from brim.storage.database import Database
from brim.wire.cluster import Submit
from e2e.running import until
from edges import harmful_tenant
from submissions import submission

PAUSE = 0.05
MOST_DELAY = 0.1  # seconds, by which another's submission may take longer
MOST_MEMORY = 256 << 20
CODE = pack({"m.py": b"x = 1\n"})


@pytest.fixture
def contact(tmp_path: Path) -> Iterator[SchedulerContact]:
    """A scheduler of two tenants, whose nodes are on other hosts and have not joined."""
    tmp_path.chmod(0o700)
    tenants = (Tenant(id="ads"), Tenant(id="web"))
    spec = ClusterSpec(cluster=Cluster(nodes=(Node(id="n1", devices=0),)), tenants=tenants)
    database = Database(tmp_path / "scheduler.db")
    database.put(CLUSTER, msgspec.json.encode(spec))
    database.close()
    with (tmp_path / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            run_module("brim.backends.up", str(tmp_path)), stdout=log, stderr=log
        )
    until(lambda: read_scheduler_contact(tmp_path) is not None, "the scheduler")
    contact = read_scheduler_contact(tmp_path)
    assert contact is not None
    try:
        yield contact
        Client(tmp_path).down()
        assert process.wait(300.0) == 0
    finally:
        process.kill()
        process.wait()


def memory(contact: SchedulerContact, name: str) -> int:
    """The bytes that a process has in memory, or has had at most."""
    lines = Path(f"/proc/{contact.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def seconds_to_submit(client: Client) -> float:
    job = submission(tenant="web")
    job = replace(job, spec=replace(job.spec, bundle=digest_of(CODE)))
    started = monotonic()
    client.submit(Submit(submission=job, name="job", bundle=CODE))
    duration = monotonic() - started
    sleep(PAUSE)  # so that the submissions are spread over the attempts
    return duration


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_harmful_tenant_costs_others_little(
    contact: SchedulerContact, tmp_path: Path, seconds: int
) -> None:
    harmful = Client(tmp_path).give_token("ads")
    address = f"{contact.host}:{contact.port}"
    other_client = Client(address=address, token=Client(tmp_path).give_token("web"))
    memory_before = memory(contact, "VmRSS")
    words = [contact.host, str(contact.port), harmful, str(seconds)]
    for _ in range(3):  # others of this machine may delay one of the two, and not each time
        calm = statistics.median([seconds_to_submit(other_client) for _ in range(20)])
        with subprocess.Popen(
            [sys.executable, harmful_tenant.__file__, *words], stdout=subprocess.PIPE, text=True
        ) as attempts:
            assert attempts.stdout is not None
            assert attempts.stdout.readline() == "begun\n"
            times = [seconds_to_submit(other_client)]
            while attempts.poll() is None:
                times.append(seconds_to_submit(other_client))
            median_beside = statistics.median(times)
            counts = json.loads(attempts.stdout.readline())
        if len(times) >= 5 and median_beside - calm < MOST_DELAY:
            break
    grown = memory(contact, "VmHWM") - memory_before
    print(  # noqa: T201 a person who measures looks at it
        f"\na submission takes {calm * 1e3:.1f} ms in calm and {median_beside * 1e3:.1f} ms beside all "
        f"attempts ({median_beside / calm:.1f} times); memory grew by {grown >> 20} MiB; {counts}"
    )
    assert len(times) >= 5
    assert median_beside - calm < MOST_DELAY
    assert grown < MOST_MEMORY
    assert all(counts.values()), "each attempt was made"
    refused = ("nul", "pattern", "nothing", "odd code", "many parts")
    assert {status for name in refused for status in counts[name]} <= {"422", "503"}
    assert set(counts["large body"]) <= {"413", "BrokenPipeError", "ConnectionResetError"}
    assert not other_client.job("job-1").has_ended
