"""Probes of an operator tell whether it lives, whether it is ready, and its metrics."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace

import pytest

from brim.kubernetes.metrics import ClusterFigures, JobFigures, Requests, ServiceFigures, metrics_of
from brim.kubernetes.objects.status import STALLS, stalled_jobs
from brim.kubernetes.probes import Signs, application
from brim.telemetry.prometheus import Histogram, MetricFamily, MetricSample, in_text
from brim.wire.door import BACKLOG, Door, answering
from brim.wire.listening import listen_on

STANDBY = Signs(holds=False, begun=False, unheard=2.0, idle=1.0)
LEADER = replace(STANDBY, holds=True, begun=True)


@pytest.mark.parametrize(
    ("signs", "not_live", "not_ready"),
    [
        (LEADER, "", ""),
        (STANDBY, "", ""),
        (replace(LEADER, begun=False), "", "it reads what there is"),
        # It could not take over, and to start it again would not help.
        (replace(STANDBY, unheard=60.0), "", "the API server has not said who holds"),
        # A busy machine is slow for a minute; nothing that is well is still for five.
        (replace(LEADER, idle=120.0), "", ""),
        (replace(LEADER, idle=400.0), "it has done nothing for 400 s", ""),
        (replace(STANDBY, idle=400.0, unheard=400.0), "it has done nothing", "the API server"),
    ],
)
def test_what_is_said_of_signs(signs: Signs, not_live: str, not_ready: str) -> None:
    assert signs.not_live.startswith(not_live)
    assert bool(signs.not_live) == bool(not_live)
    assert signs.not_ready.startswith(not_ready)
    assert bool(signs.not_ready) == bool(not_ready)


def test_they_are_answered_over_http() -> None:
    signs = [LEADER]

    async def work() -> None:
        listener = listen_on("127.0.0.1", 0, backlog=BACKLOG, hint="")
        port = listener.getsockname()[1]
        answers = application(
            lambda: signs[-1],
            lambda: [MetricFamily("sent_total", "counter", "Sent.", [MetricSample(1)])],
        )

        def ask(path: str, accept: str = "") -> tuple[int, str, str]:
            url = f"http://127.0.0.1:{port}{path}"
            request = urllib.request.Request(url, headers={"Accept": accept})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return answer.status, answer.headers["Content-Type"], answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, "", error.read().decode()

        async with answering(answers, listener, Door(), to_end=1):
            plain = "text/plain; charset=utf-8"
            assert await asyncio.to_thread(ask, "/healthz") == (200, plain, "ok\n")
            assert await asyncio.to_thread(ask, "/readyz") == (200, plain, "ok\n")
            kind = "text/plain; version=0.0.4; charset=utf-8"
            text = "# HELP sent_total Sent.\n# TYPE sent_total counter\nsent_total 1\n"
            assert await asyncio.to_thread(ask, "/metrics") == (200, kind, text)
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            text = "# TYPE sent counter\n# HELP sent Sent.\nsent_total 1\n# EOF\n"
            accept = "application/openmetrics-text"
            assert await asyncio.to_thread(ask, "/metrics", accept) == (200, kind, text)
            assert (await asyncio.to_thread(ask, "/elsewhere"))[0] == 404
            signs.append(replace(LEADER, begun=False))
            assert (await asyncio.to_thread(ask, "/healthz"))[0] == 200
            answer = await asyncio.to_thread(ask, "/readyz")
            assert answer == (503, "", "it reads what there is\n")
            signs.append(replace(LEADER, idle=1e4))
            assert (await asyncio.to_thread(ask, "/healthz"))[0] == 503

    asyncio.run(work())


# Metrics ------------------------------------------------------------------------------------------

LINE = re.compile(
    r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge|histogram))"
    r'|[a-z_]+(\{([a-z_]+="([^"\\\n]|\\.)*",?)+\})? [0-9.e+-]+(Inf)?'
)


def values(text: str) -> dict[str, float]:
    """The samples of a text, each of whose lines has to be one that Prometheus reads."""
    assert text.endswith("\n")
    lines = text.splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def figures(seconds: Callable[[], Histogram] = lambda: Histogram((0.1, 1.0))) -> ClusterFigures:
    return ClusterFigures(
        states={"running": 1, "done": 0},
        stalled={"InvalidSpec": 2},
        slots=8,
        held=3,
        cycles=seconds(),
        looks=seconds(),
        jobs=[
            JobFigures("team.flights", 3, 12.5, 2.5),
            JobFigures("team.imagenet.v2.pytorchjob", 2, None, None),
        ],
        services=[
            ServiceFigures("team", "web", "Deployment", load=24.5, wanted=3, ready=2),
            ServiceFigures("team", "new", "StatefulSet", load=None, wanted=1, ready=0),
        ],
    )


def test_metrics_of_an_operator() -> None:
    requests = Requests()
    for code in (200, 200, 409, 0):
        requests.answered("create", code)
    cluster = figures()
    for seconds in (0.1, 0.5, 3.0):
        cluster.cycles.observe(seconds)
    text = in_text(metrics_of(holds=True, requests=requests.counts, cluster=cluster))
    flights = '{namespace="team",name="flights",kind="ElasticJob"}'
    web = '{namespace="team",name="web",kind="Deployment"}'
    found = values(text)
    assert sum(name.startswith("brim_service_load") for name in found) == 1  # the other is unknown
    assert (
        found.items()
        >= {
            "brim_lease_held": 1,
            'brim_api_requests_total{verb="create",code="200"}': 2,
            'brim_api_requests_total{verb="create",code="none"}': 1,
            'brim_jobs{state="running"}': 1,
            'brim_jobs{state="done"}': 0,
            'brim_stalled_jobs{reason="InvalidSpec"}': 2,
            "brim_slots_held": 3,
            "brim_slots_free": 5,
            'brim_cycle_seconds_bucket{le="0.1"}': 1,
            'brim_cycle_seconds_bucket{le="1.0"}': 2,
            'brim_cycle_seconds_bucket{le="+Inf"}': 3,
            "brim_cycle_seconds_sum": 3.6,
            "brim_cycle_seconds_count": 3,
            "brim_look_seconds_count": 0,
            f"brim_service_load{web}": 24.5,
            f"brim_service_replicas_wanted{web}": 3,
            f"brim_service_replicas_ready{web}": 2,
            f"brim_job_workers{flights}": 3,
            f"brim_job_steps_per_second{flights}": 12.5,
            f"brim_job_marginal_steps_per_second{flights}": 2.5,
            'brim_job_workers{namespace="team",name="imagenet.v2",kind="PyTorchJob"}': 2,
        }.items()
    )
    assert sum("marginal" in name for name in found) == 1, "what is not known is not said"


def test_a_standby_has_no_figures_of_jobs() -> None:
    text = in_text(metrics_of(holds=False, requests={("get", "200"): 3}, cluster=None))
    assert values(text) == {
        "brim_lease_held": 0,
        'brim_api_requests_total{verb="get",code="200"}': 3,
    }


def test_whatever_a_label_says_it_stays_one_line() -> None:
    odd = MetricFamily("odd", "gauge", "With\na break.", [MetricSample(1, {"name": 'a"b\\c\nd'})])
    text = in_text([odd, MetricFamily("none", "gauge", "Without a value.", [])])
    assert text == '# HELP odd With\\na break.\n# TYPE odd gauge\nodd{name="a\\"b\\\\c\\nd"} 1\n'
    assert values(text) == {'odd{name="a\\"b\\\\c\\nd"}': 1}


def test_only_actionable_objects_count_as_stalled() -> None:
    def thing(reason: str, status: str = "True") -> dict[str, object]:
        condition = {"type": "Stalled", "status": status, "reason": reason}
        return {"status": {"conditions": [condition, {"type": "Failed", "status": "True"}]}}

    things = [thing("InvalidSpec"), thing("Failed"), thing("NameTaken", "False"), {}, thing("Done")]
    assert stalled_jobs(things) == dict.fromkeys(STALLS, 0) | {"InvalidSpec": 1}
