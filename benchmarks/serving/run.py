"""Predictions a second and their latency, beside plain torch in a minimal server: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, table
from benchmarks.serving import clicks
from brim_lab.driver import Driver

BENCHMARK = Path(__file__).parent
SIDES = {
    "plain torch": ("--port",),
    "plain torch, in a thread": ("--threaded", "--port"),
    "brim, each request alone": ("--batch-rows", "0"),
    "brim": (),
}
_START = 120.0  # seconds
_BODIES = 50
_FIRST = 20  # requests of a connection before it counts
Figures = dict[str, list[float]]


class Server(NamedTuple):
    """A side."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """The processor time that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bodies(rows: int) -> list[str]:
    """Requests of values that are drawn anew in each."""
    rng = random.Random(0)

    def row() -> dict[str, object]:
        values: dict[str, object] = {
            f"C{n}": clicks.value_of(rng.randrange(clicks.VALUES)) for n in range(clicks.FIELDS)
        }
        return values | {f"I{n}": rng.randrange(1000) for n in range(clicks.NUMBERS)}

    return [json.dumps({"rows": [row() for _ in range(rows)]}) for _ in range(_BODIES)]


def client(port: int, rows: int, seconds: float, durations: Any, ready: Any) -> None:
    """Ask without a pause over one connection, and tell how long each answer took."""
    request_bodies = bodies(rows)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    took: list[float] = []

    def ask(body: str) -> None:
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    for body in request_bodies[:_FIRST]:
        ask(body)
    ready.wait(60.0)
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        ask(request_bodies[len(took) % len(request_bodies)])
        took.append(time.perf_counter() - start)
    connection.close()
    durations.put(took)


def load(port: int, connections: int, rows: int, seconds: float) -> tuple[float, list[float]]:
    """Predictions a second over all connections, and seconds of each request."""
    context = multiprocessing.get_context("fork")
    durations, ready = context.Queue(), context.Barrier(connections)
    clients = [
        context.Process(target=client, args=(port, rows, seconds, durations, ready))
        for _ in range(connections)
    ]
    for process in clients:
        process.start()
    took = [duration for _ in clients for duration in durations.get(timeout=60.0 + seconds)]
    for process in clients:
        process.join(60.0)
    return rows * len(took) / seconds, took


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[str, Server]]:
    """All sides at once, each at a port; only the side under load works."""
    with contextlib.ExitStack() as stack:
        ports = {}
        for name, words in SIDES.items():
            port = _free_port()
            process = _side(name, words, folder, port)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ports[name] = Server(port, process.pid)
            _await(port)
        yield ports


def _side(name: str, words: Sequence[str], folder: Path, port: int) -> subprocess.Popen[str]:
    """A server under way, on its way to its port."""
    if not name.startswith("plain"):
        bundle = str(folder / "bundle")
        options = ("--listen", f"127.0.0.1:{port}", *words)
        brim = Driver(repository())
        return brim.start("serve", bundle, *options, stdout=None, stderr=subprocess.DEVNULL)
    weights = str(folder / "weights" / "model.safetensors")
    columns = str(folder / "bundle" / "columns.json")
    command = [sys.executable, "-m", "benchmarks.serving.plain", weights, columns, *words]
    return subprocess.Popen(
        [*command, str(port)], cwd=repository(), stderr=subprocess.DEVNULL, text=True
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        port: int = server_socket.getsockname()[1]
    return port


def _await(port: int) -> None:
    end = time.monotonic() + _START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def prepare(folder: Path) -> None:
    """Train for an epoch, and export."""
    clicks.write(folder / "clicks.csv")
    run = str(folder / "run")
    driver = Driver(repository())
    data = f"path={folder / 'clicks.csv'}"
    job = ("train", str(BENCHMARK / "clicks.py"), "--set", data, "--workers", "1", "--run-dir", run)
    driver.call(*job, timeout=None)
    driver.call("export", run, "--output", str(folder / "bundle"), "--format", "bundle")
    driver.call("export", run, "--output", str(folder / "weights"))


def measure(
    ports: dict[str, Server],
    cases: list[tuple[int, int]],
    *,
    rounds: int,
    seconds: float,
    report: Report,
) -> dict[str, dict[str, Figures]]:
    """By turns: in each round, each side is asked for so many seconds."""
    results: dict[str, dict[str, Figures]] = {}
    for connections, rows in cases:
        case = f"{connections} x {rows}"
        report.say(f"connections x rows: {case}")
        kinds = ("per_second", "p50", "p99", "cpu")
        sides: dict[str, Figures] = {name: {kind: [] for kind in kinds} for name in ports}
        for _ in range(rounds):
            for name, server in ports.items():
                cpu_before = server.cpu_seconds()
                speed, took = load(server.port, connections, rows, seconds)
                took.sort()
                request_count = len(took) + connections * _FIRST
                sides[name]["cpu"].append((server.cpu_seconds() - cpu_before) / request_count)
                sides[name]["per_second"].append(speed)
                sides[name]["p50"].append(statistics.median(took))
                sides[name]["p99"].append(took[int(0.99 * (len(took) - 1))])
        results[case] = sides
    return results


def tell(results: dict[str, dict[str, Figures]], report: Report) -> None:
    for case, sides in results.items():
        peer = sides["plain torch"]["per_second"]
        lines = []
        for name, found in sides.items():
            ratio = statistics.median(
                own_rate / peer_rate
                for own_rate, peer_rate in zip(found["per_second"], peer, strict=True)
            )
            latencies = [
                f"{1000 * statistics.median(found[figure_name]):.2f}"
                for figure_name in ("p50", "p99", "cpu")
            ]
            lines.append(
                [name, f"{statistics.median(found['per_second']):,.0f}", *latencies, f"{ratio:.2f}"]
            )
        connections, _, rows = case.partition(" x ")
        head = [
            "side",
            "predictions/s",
            "p50 ms",
            "p99 ms",
            "CPU ms a request",
            "speed, plain torch = 1",
        ]
        report.add(f"## Connections: {connections}, rows a request: {rows}\n\n{table(head, lines)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a turn takes")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one round, no report")
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "Predictions over HTTP", seed=0)
    rounds, seconds = (1, 0.5) if arguments.quick else (arguments.rounds, arguments.seconds)
    with tempfile.TemporaryDirectory(prefix="brim-benchmark-") as folder:
        prepare(Path(folder))
        with servers(Path(folder)) as ports:
            cases = [(1, 1), (8, 1), (1, 100), (8, 100)]
            results = measure(ports, cases, rounds=rounds, seconds=seconds, report=report)
    tell(results, report)
    if not arguments.quick:
        report.write({"results": results})


if __name__ == "__main__":
    main()
