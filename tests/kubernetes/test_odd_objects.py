"""What an API server may give beside what brim writes: objects without fields, and times of lines."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from brim.kubernetes import cluster_client
from brim.kubernetes.cluster_client import KubeJobs

META = {
    "name": "a-1",
    "namespace": "team",
    "uid": "u",
    "creationTimestamp": "2026-11-30T00:00:00Z",
}


@pytest.mark.parametrize(
    "fields", [{}, {"spec": None, "status": None}, {"status": {"story": None}}]
)
def test_job_without_fields_is_shown(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = _jobs(monkeypatch)
    monkeypatch.setattr(jobs, "_objects", lambda: [{"metadata": META, **fields}])
    found = jobs.news()
    assert [(view.job, view.state) for view in found.jobs] == [("a-1", "submitted")]
    assert found.changes == []


def test_lines_of_one_time_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRI-O gives all lines of one write one time, and a log begins again at its second."""
    jobs = _jobs(monkeypatch)
    first, second = "2026-11-30T00:00:01.100000000Z", "2026-11-30T00:00:01.200000000Z"
    log = f"{first} a\n{first} b\n"
    looks = [log, log, f"{log}{first} c\n", f"{log}{first} c\n{second} c\n{second} c\n"]
    monkeypatch.setattr(jobs, "job", lambda _: Mock(has_ended=False))
    found, place = [], ""
    for look in looks:
        monkeypatch.setattr(jobs, "_ask", lambda _, text=look: [("w1", text.encode())])
        logs = jobs.log_lines("a-1", place=place)
        found.append("".join(text for _, text in logs.lines))
        place = logs.after
    assert found == ["ab", "", "c", "cc"]


def _jobs(monkeypatch: pytest.MonkeyPatch) -> KubeJobs:
    monkeypatch.setattr(cluster_client, "find_access", lambda _: Mock())
    return KubeJobs("team", notice=print)
