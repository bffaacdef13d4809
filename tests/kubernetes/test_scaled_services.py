"""Services on Kubernetes: what annotations ask for, and replicas by the load that is foreseen."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import yaml

from brim.domain.demand import DAY
from brim.errors import EnvironmentFault, SpecError
from brim.host.clock import SystemClock, monotonic
from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.api_server import ApiServer, WatchEvent
from brim.kubernetes.client.refusals import NoAnswer
from brim.kubernetes.client.resources import Resource
from brim.kubernetes.install.manifests import LOADS
from brim.kubernetes.objects.kept_loads import coarse_past, keep_loads, pack, remembered, unpack
from brim.kubernetes.objects.scaled_services import Annotations, ServiceKey, read_service
from brim.kubernetes.services import ServiceScaling
from brim_lab.kubernetes.api import PATCH
from brim_lab.kubernetes.control_plane import ControlPlane
from number_server import numbers

PATIENCE = 120.0  # seconds: nothing is judged by it, and a busy machine is slow
T = TypeVar("T")
ALLOWED = "http://metrics:9090/api/"
GOOD = {"replicas": "1:8", "per_replica": "50", "load": f"{ALLOWED}web"}
# by name: (annotations beside the good ones, words of the error)
WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "no range": ({"replicas": None}, "brim.dev/replicas: got nothing"),
    "no number of a range": ({"replicas": "many"}, "brim.dev/replicas: got 'many', need MIN:MAX"),
    "an empty range": ({"replicas": "3:2"}, "brim.dev/replicas: got '3:2'"),
    "none": ({"replicas": "0:2"}, "brim.dev/replicas: got '0:2'"),
    "a range without end": ({"replicas": "1:" + "9" * 5_000}, "a text of 1 to 512 characters"),
    "nothing for each": ({"per_replica": "0"}, "brim.dev/per-replica"),
    "no number for each": ({"per_replica": "ten"}, "brim.dev/per-replica: got 'ten'"),
    "no load": ({"load": None}, "brim.dev/load: got nothing"),
    "another host": ({"load": "http://metrics.evil.example/api/"}, "--service-url"),
    "another host behind the name": ({"load": "http://metrics:9090@evil/api/"}, "--service-url"),
    "metadata of a cloud": ({"load": "http://169.254.169.254/latest"}, "--service-url"),
    "another path": ({"load": "http://metrics:9090/admin"}, "--service-url"),
    "a way out": ({"load": f"{ALLOWED}../admin"}, "--service-url"),
    "a hidden way out": ({"load": f"{ALLOWED}x%2f%2E./admin"}, "--service-url"),
    "a file": ({"load": "file:///etc/passwd"}, "--service-url"),
    "another line": ({"load": f"{ALLOWED}web\r\nHost: evil"}, "--service-url"),
    "no time": ({"notice": "soon"}, "brim.dev/notice: got 'soon'"),
    "a long notice": ({"notice": "2h"}, "brim.dev/notice"),
    "a short day": ({"day": "1s"}, "brim.dev/day"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_annotation_is_named(name: str) -> None:
    changes, words = WRONG[name]
    with pytest.raises(SpecError) as caught:
        read_service(Annotations(**{**GOOD, **changes}), prefixes=[ALLOWED])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_no_url_is_allowed_by_default() -> None:
    with pytest.raises(SpecError, match="--service-url"):
        read_service(Annotations(**GOOD), prefixes=[])


def test_example_of_the_guide_is_a_service(api_server: ControlPlane, namespace: str) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/services.md").read_text()
    (text,) = (part for part in re.findall(r"```yaml\n(.*?)```", guide, re.S) if "brim.dev" in part)
    things = list(yaml.safe_load_all(text))
    annotations = msgspec.convert(things[1]["metadata"]["annotations"], Annotations)
    service = read_service(annotations, prefixes=["http://prometheus.monitoring.svc:9090/"])
    assert (service.rule.minimum, service.rule.maximum) == (1, 8)
    api_server.api.ask("/api/v1/namespaces", method="POST", body={"metadata": {"name": namespace}})
    words = ["apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-"]
    assert api_server.kubectl(*words, stdin=text).count("created") == 2


def test_kept_loads_are_those_of_two_days() -> None:
    coarse, end = coarse_past(DAY), 1_800_000_000.0
    for minute in range(4 * 1440):
        if minute % 7:  # some were not measured
            coarse.add(end - 60.0 * (4 * 1440 - minute), float(minute))
    key = ServiceKey("deployments", "team", "web")
    entry = keep_loads(coarse, url="u", day=DAY, notices=[4.0])
    assert len(entry.loads) <= 6_000
    read = unpack(pack({key: entry}))[key]
    assert read == entry
    past, coarse_copy = remembered(read, url="u", day=DAY, wall=end)
    originals, copies = dict(coarse.buckets()), dict(coarse_copy.buckets())
    assert len(copies) > 2 * 1440 * 6 // 7
    assert copies == pytest.approx({time: originals[time] for time in copies}, abs=0.1)
    assert max(time for time, _ in past.buckets()) < end
    for url, day in (("other", DAY), ("u", 3600.0)):  # the unit, or the season, is another one
        assert not list(remembered(read, url=url, day=day, wall=end)[0].buckets())


@pytest.mark.parametrize("text", ["", "nonsense", "AAAA"])
def test_damaged_loads_are_reported(text: str) -> None:
    with pytest.raises(EnvironmentFault, match="past loads"):
        unpack(text)


# On a server --------------------------------------------------------------------------------------


class SilentServer(ApiServer):
    """A server that may say nothing of changes."""

    is_silent = False

    @contextlib.asynccontextmanager
    async def watch(
        self, resource: Resource[T], **options: Any
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        if self.is_silent:
            raise NoAnswer("nobody answers")
        async with super().watch(resource, **options) as events:
            yield events


class Services:
    """The services of a namespace of a server on which nothing acts but brim, and this."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace, self.is_silent = plane, namespace, False
        plane.api.ask("/api/v1/namespaces", method="POST", body={"metadata": {"name": namespace}})

    def path(self, name: str, plural: str = "deployments") -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/{plural}/{name}".rstrip("/")

    def make(
        self, name: str, count: int, plural: str = "deployments", /, **annotations: str
    ) -> None:
        labels = {"app": name}
        container = {"name": "web", "image": "images/web:1"}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        kind = {"deployments": "Deployment", "statefulsets": "StatefulSet"}[plural]
        body = {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name, "annotations": _annotations(**annotations)},
            "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": pod},
        }
        self.plane.api.ask(self.path("", plural), method="POST", body=body)

    def change(self, name: str, body: dict[str, Any], sub: str = "") -> None:
        self.plane.api.ask(f"{self.path(name)}{sub}", method="PATCH", body=body, kind=PATCH)

    def replicas(self, name: str, plural: str = "deployments") -> int:
        return int(self.plane.api.ask(self.path(name, plural))["spec"]["replicas"])

    def events(self, name: str) -> list[str]:
        """Reasons and messages of all events about one."""
        things = self.plane.api.ask(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            f"{thing['reason']}: {thing['message']}"
            for thing in things
            if thing["involvedObject"]["name"] == name
        ]

    @contextlib.asynccontextmanager
    async def scaled(self, prefix: str) -> AsyncIterator[ServiceScaling]:
        access = find_access({"KUBECONFIG": str(self.plane.kubeconfig)})
        async with SilentServer(access, qps=500, burst=500) as server:
            server.is_silent = self.is_silent
            self.server = server
            scaling = ServiceScaling(
                server,
                watched=self.namespace,
                namespace=self.namespace,
                prefixes=[prefix],
                clock=SystemClock(),
            )
            tasks: list[asyncio.Future[None]] = [
                asyncio.ensure_future(watch.run()) for watch in scaling.watches
            ]
            for watch in scaling.watches:
                await watch.synced()
            tasks.append(asyncio.create_task(scaling.run()))
            try:
                yield scaling
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        await asyncio.sleep(0.05)  # connections close in the next turns of the loop

    async def until(self, holds: Callable[[], Any]) -> float:
        """Wait until this is so; seconds that it took."""
        start = monotonic()
        while not await asyncio.to_thread(holds):
            assert monotonic() - start < PATIENCE
            await asyncio.sleep(0.05)
        return monotonic() - start


def _annotations(**values: str) -> dict[str, str]:
    return {f"brim.dev/{name.replace('_', '-')}": text for name, text in values.items()}


@pytest.fixture
def services(api_server: ControlPlane, namespace: str) -> Services:
    return Services(api_server, namespace)


def keep_yesterday(services: Services, name: str, url: str) -> None:
    """Have an earlier operator leave a past: a load of 10, that trebled yesterday two minutes later."""
    coarse, now = coarse_past(DAY), SystemClock().wall()
    for minute in range(-40, 20):
        time = now - DAY + 60.0 * minute
        is_high = coarse.number_of(time) >= coarse.number_of(now - DAY) + 2
        coarse.add(time, 30.0 if is_high else 10.0)
    for minute in range(-40, 0):
        coarse.add(now + 60.0 * minute, 10.0)
    entry = keep_loads(coarse, url=url, day=DAY, notices=())
    body = {
        "metadata": {"name": LOADS},
        "binaryData": {"loads": pack({ServiceKey("deployments", services.namespace, name): entry})},
    }
    path = f"/api/v1/namespaces/{services.namespace}/configmaps"
    services.plane.api.ask(path, method="POST", body=body)


def test_replicas_come_before_the_load(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the past that an earlier operator kept; they leave once they have been too many for a while."""
    monkeypatch.setattr("brim.kubernetes.services.MOST_SERVICES", 1)
    with numbers(["10"]) as port:
        prefix = f"http://127.0.0.1:{port}/"
        keep_yesterday(services, "web", f"{prefix}web")

        async def work() -> None:
            services.make(
                "web", 1, replicas="1:8", per_replica="11", load=f"{prefix}web", notice="2m"
            )
            services.make("young", 1, replicas="2:8", per_replica="1", load=f"{prefix}web")
            async with services.scaled(prefix) as scaling:
                await services.until(lambda: services.replicas("web") == 3)
                (figures,) = scaling.figures()
                assert (figures.load, figures.wanted, figures.ready) == (10.0, 3, 0)
                words = ["describe", "deployment", "web", "-n", services.namespace]
                assert " brim " in services.plane.kubectl(*words).partition("Events:")[2]
                # They come at once: it is enough to foresee a second.
                services.change("web", {"status": {"replicas": 3, "readyReplicas": 3}}, "/status")
                assert await services.until(lambda: services.replicas("web") == 1) > 4.0
            events = services.events("web")
            assert "Scaled: load 10 now, 30 foreseen in 121 s: 3 replicas" in events
            assert any(event.endswith(": 1 replica") for event in events)
            (refusal,) = services.events("young")
            assert refusal.startswith("TooManyServices: 1 other service")
            assert services.replicas("young") == 1
            config_map = services.plane.api.ask(
                f"/api/v1/namespaces/{services.namespace}/configmaps/{LOADS}"
            )
            assert unpack(config_map["binaryData"]["loads"])

        asyncio.run(work())


def test_replicas_follow_the_load_within_their_range(services: Services) -> None:
    answers = ['{"data": {"result": [{"metric": {}, "value": [1, "35"]}]}}']
    with numbers(answers) as port:
        prefix = f"http://127.0.0.1:{port}/"
        usual = {"per_replica": "10", "load": f"{prefix}q", "day": "30s", "notice": "1s"}

        async def work() -> None:
            services.make("web", 1, replicas="1:8", **usual)
            services.make("small", 9, replicas="1:2", **usual)
            services.make("queue", 1, "statefulsets", replicas="1:8", **usual)
            services.make("off", 0, replicas="1:8", **usual)
            services.make("left", 1, replicas="1:8", **usual)
            services.make("other", 1)
            services.change("left", {"metadata": {"annotations": None}})
            async with services.scaled(prefix):
                await services.until(
                    lambda: (
                        (
                            services.replicas("web"),
                            services.replicas("small"),
                            services.replicas("queue", "statefulsets"),
                        )
                        == (4, 2, 4)
                    )
                )
                services.change("web", {"spec": {"replicas": 2}})  # by people
                await asyncio.sleep(2.2)
                assert services.replicas("web") == 2  # until another number follows from the load
                answers[:] = ["1000"]
                services.change("small", {"spec": {"replicas": 5}})  # out of its range
                await services.until(
                    lambda: (services.replicas("web"), services.replicas("small")) == (8, 2)
                )
                services.change("web", {"metadata": {"annotations": None}})
                services.change("web", {"spec": {"replicas": 1}})
                answers[:] = ["nothing"]
                await services.until(
                    lambda: any("neither a number" in event for event in services.events("small"))
                )
                await asyncio.sleep(1.5)
                assert services.replicas("web") == 1
                assert services.replicas("small") == 2
                assert [services.replicas(name) for name in ("off", "left", "other")] == [0, 1, 1]

        asyncio.run(work())


def test_refused_services_keep_their_replicas(services: Services) -> None:
    with numbers(["95"]) as port:
        prefix = f"http://127.0.0.1:{port}/"
        good = {"replicas": "1:8", "per_replica": "10", "load": f"{prefix}web"}
        answers = {"elsewhere": "InvalidService: brim.dev/load", "wrong": "InvalidService: brim.dev/replicas",
                   "two": "TwoAutoscalers: the HorizontalPodAutoscaler theirs scales it, too",
                   "gone": "LoadUnknown: cannot read the load"}  # fmt: skip

        async def work() -> None:
            services.make("elsewhere", 1, **good | {"load": "http://169.254.169.254/latest"})
            services.make("wrong", 1, **good | {"replicas": "8:1"})
            services.make("gone", 1, **good | {"load": "http://127.0.0.1:9/"})
            services.make("two", 1, **good)
            target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "two"}
            spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3}
            path = f"/apis/autoscaling/v2/namespaces/{services.namespace}/horizontalpodautoscalers"
            services.plane.api.ask(
                path, method="POST", body={"metadata": {"name": "theirs"}, "spec": spec}
            )
            services.make("web", 1, **good)
            services.is_silent = True
            async with services.scaled("http://127.0.0.1:") as scaling:
                await services.until(
                    lambda: any(service.load == 95.0 for service in scaling.figures())
                )
                await asyncio.sleep(1.2)
                assert services.replicas("web") == 1  # what it knows of the objects is out of date
                services.server.is_silent = False
                await services.until(lambda: services.replicas("web") == 8)
                for name, words in answers.items():
                    await services.until(partial(services.events, name))
                    (event,) = services.events(name)
                    assert event.startswith(words)
                    assert services.replicas(name) == 1
                # What is mended is scaled.
                services.change(
                    "wrong", {"metadata": {"annotations": _annotations(replicas="1:2")}}
                )
                services.plane.api.ask(f"{path}/theirs", method="DELETE")
                await services.until(
                    lambda: (services.replicas("wrong"), services.replicas("two")) == (2, 8)
                )

        asyncio.run(work())
