"""A step of brim over a network, beside DistributedDataParallel over gloo: see README.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.harness.brim_run import repository
from benchmarks.harness.report import Report, ms, ratio, spread, table
from benchmarks.harness.torchrun import Torchrun
from benchmarks.network import master
from benchmarks.network.hosts import DEVICE, Place, hosts
from brim.demo import flights
from brim.host.process import own_memory_of
from brim.storage.contact import read_contact
from brim.telemetry.history import RunReader
from brim_lab.driver import Driver

T = TypeVar("T")
BENCHMARK = Path(__file__).parent
SIDES = ("ddp", "exact", "inexact", "insecure")  # the last is exact, too
SPLITS = ((4,), (2, 2), (1, 1, 1, 1))
WARM_UP = 3
_POLL, _PATIENCE = 0.02, 120.0  # seconds


@dataclass(frozen=True, slots=True)
class Network:
    """The model of a run.

    Attributes:
        seconds: that are measured.
        least: steps that are measured at least.
    """

    file: Path
    batch: int
    seconds: float
    least: int


NETWORKS = {
    "flights": Network(Path(flights.__file__), batch=512, seconds=3.0, least=20),
    "20 M": Network(BENCHMARK / "large.py", batch=64, seconds=5.0, least=8),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of one run.

    Attributes:
        step: seconds, the median.
        sent: bytes that a step took by the busiest cable, in its busier direction.
        processor: seconds of all processes of the run for a step, on all cores.
        master: seconds of the master's process for a step; 0 without one.
        hosts: workers on each.
        memory: bytes of all processes of the run, where shared ones count once.
    """

    step: float
    sent: float
    processor: float
    master: float
    hosts: list[int]
    memory: int


class Watch:
    """The resources that a run uses from here on.

    Args:
        places: its hosts.
        processes: all that belong to it.
    """

    def __init__(self, places: Sequence[Place], processes: Sequence[psutil.Process]) -> None:
        self._places, self._processes = places, processes
        self._before = self._traffic()
        self._times = {process.pid: _cpu(process) for process in processes}

    def _traffic(self) -> list[tuple[int, int]]:
        return [(place.bytes_sent(), place.bytes_received()) for place in self._places]

    def busiest(self) -> int:
        """Bytes by the busiest cable, in its busier direction."""
        return max(
            now - wa
            for previous_counts, current_counts in zip(self._before, self._traffic(), strict=True)
            for wa, now in zip(previous_counts, current_counts, strict=True)
        )

    def processor(self, *, is_chosen: Callable[[str], bool] = lambda _: True) -> float:
        """Seconds that the processes took whose command is so."""
        chosen = [
            process
            for process in self._processes
            if process.is_running() and is_chosen(_command(process))
        ]
        return sum(_cpu(process) - self._times[process.pid] for process in chosen)

    def memory(self) -> int:
        """Bytes of the processes that there are; shared memory counts once."""
        return sum(own_memory_of(process.pid) or 0 for process in self._processes)


def _cpu(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _is_master(command: str) -> bool:
    return "brim.master" in command


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _until(subject: str, true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if value := true():
            return value
        time.sleep(_POLL)
    raise RuntimeError(f"no {subject} within {_PATIENCE:g} s")


# brim -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def brim_on(
    places: Sequence[Place],
    split: Sequence[int],
    network: Network,
    *,
    side: str,
    named: bool = False,
) -> Iterator[tuple[RunReader, Callable[[], list[psutil.Process]]]]:
    """A run with so many workers on each host, and its processes.

    Args:
        places: of its agents; two that are on one host share no memory there.
        named: agents say on which machine they are.
    """
    folder = Path(tempfile.mkdtemp(prefix="brim-benchmark-"))
    os.environ["PYTHONPATH"] = str(repository())
    run, driver = folder / "run", Driver(folder)
    words = ["train", str(network.file), "--run-dir", str(run), "--workers", str(sum(split))]
    words += ["--global-batch-size", str(network.batch), "--spares", "0", "--epochs", "1000"]
    words += ["--checkpoint-every", "1h", *(["--no-exact"] if side == "inexact" else [])]
    if len(split) > 1:
        words += ["--listen", f"{places[0].address}:7077", "--agents", str(len(split))]
        words += ["--insecure"] if side == "insecure" else []
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [driver.with_prefix(_prefix(places[0], named)).start(*words, **quiet)]
    try:
        for place in places[1 : len(split)]:
            contact = _until("address of the master", lambda: read_contact(run))
            second = Driver(BRIM_TOKEN=contact.token).with_prefix(_prefix(place, named))
            second.mark = driver.mark
            started.append(second.start("agent", contact.address, **quiet))
        yield RunReader(run), lambda: [process for p in started for process in _family(p.pid)]
    finally:
        driver.mark.kill()
        for process in started:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(place: Place, named: bool) -> tuple[str, ...]:
    return (*place.prefix, *(("env", f"BRIM_MACHINE={place.namespace}") if named else ()))


def measure_brim(
    places: Sequence[Place],
    split: Sequence[int],
    network: Network,
    *,
    side: str,
    named: bool = False,
) -> Measured:
    with brim_on(places, split, network, side=side, named=named) as (reader, processes):

        def steps() -> list[Any]:
            with contextlib.suppress(FileNotFoundError):
                reader.poll()
            if reader.history.failed:
                raise RuntimeError(reader.history.failed.message)
            now = reader.history.round
            if now is None or now.world_size != sum(split):
                return []
            return [step for step in reader.history.steps if step.round == now.round]

        first = len(_until("steps", lambda: found if len(found := steps()) > WARM_UP else None))
        watch, started = Watch(places[: len(split)], processes()), time.monotonic()
        _until(
            "enough steps",
            lambda: (
                len(steps()) > first + network.least
                and time.monotonic() - started > network.seconds
            ),
        )
        sent, all_of_it, master = (
            watch.busiest(),
            watch.processor(),
            watch.processor(is_chosen=_is_master),
        )
        memory = watch.memory()
        steps_made = steps()
        found, count = steps_made[first:], len(steps_made) - first
        lives = [reader.history.workers[name] for name in reader.history.round.workers]  # type: ignore[union-attr]
        agents = [life.agent for life in lives]
        return Measured(
            statistics.median(current.at - previous.at for previous, current in pairwise(found)),
            sent / count,
            all_of_it / count,
            master / count,
            sorted((agents.count(agent) for agent in set(agents)), reverse=True),
            memory,
        )


# The peer -------------------------------------------------------------------------------------


def measure_ddp(places: Sequence[Place], split: Sequence[int], network: Network) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="torchrun-benchmark-"))
    first = places[0].address
    meet = [f"--nnodes={len(split)}", f"--master-addr={first}", "--master-port=29500"]
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(
                Torchrun(
                    workers=workers,
                    file=network.file,
                    batch=network.batch,
                    directory=folder,
                    prefix=[*place.prefix, "env", f"GLOO_SOCKET_IFNAME={_device(split)}"],
                    meet=[*meet, f"--node-rank={number}"],
                    clears=False,
                )
            )
            for number, (place, workers) in enumerate(zip(places, split, strict=False))
        ]

        def steps() -> list[float]:
            return [line.at for line in runs[0].lines() if line.rank == 0]

        first_of = len(_until("steps", lambda: f if len(f := steps()) > WARM_UP else None))
        family = [process for run in runs for process in _family(run.pid)]
        watch, started = Watch(places[: len(split)], family), time.monotonic()
        _until(
            "enough steps",
            lambda: (
                len(steps()) > first_of + network.least
                and time.monotonic() - started > network.seconds
            ),
        )
        sent, processor, memory = watch.busiest(), watch.processor(), watch.memory()
        found = steps()[first_of:]
    shutil.rmtree(folder, ignore_errors=True)
    gaps = [current - previous for previous, current in pairwise(found)]
    count = len(found)
    step, wire, cpu = statistics.median(gaps), sent / count, processor / count
    return Measured(step, wire, cpu, 0.0, list(split), memory)


def _device(split: Sequence[int]) -> str:
    """The device that gloo is to use; traffic within one host stays off the cable."""
    return DEVICE if len(split) > 1 else "lo"


# The report -----------------------------------------------------------------------------------

Key = tuple[str, str, int | None]  # network, split, Mbit/s


def measure(side: str, places: Sequence[Place], split: Sequence[int], network: Network) -> Measured:
    if side == "ddp":
        return measure_ddp(places, split, network)
    return measure_brim(places, split, network, side=side)


def sides_on(split: Sequence[int]) -> list[str]:
    """The sides; nothing is encrypted where nothing leaves the host."""
    return [side for side in SIDES if len(split) > 1 or side != "insecure"]


def name_of(split: Sequence[int]) -> str:
    return " + ".join(map(str, split)) if len(split) > 1 else f"{split[0]} on 1 host"


def tell(report: Report, found: dict[Key, dict[str, list[Measured]]]) -> None:
    rows, costs = [], []
    for (network, split, mbit), sides in found.items():
        times = {
            side: [measurement.step for measurement in measurements]
            for side, measurements in sides.items()
        }
        sent = {
            side: statistics.median(measurement.sent for measurement in measurements)
            for side, measurements in sides.items()
        }
        wire = {side: sent[side] * 8e-6 / mbit if mbit else 0.0 for side in sides}
        limit = "unlimited" if mbit is None else f"{mbit / 1000:g} Gbit/s"
        speeds = [ratio(times["ddp"], times[s]) if s in sides else "–" for s in SIDES[1:]]
        megabytes = [
            _of(sent, side, lambda byte_count: f"{byte_count / 1e6:.2f}") for side in SIDES
        ]
        measurements_over = [
            f"{statistics.median(times[s]) / wire[s]:.2f}" if mbit and s in sides else "–"
            for s in SIDES
        ]
        rows.append([network, split, limit, *(_of(times, s, ms) for s in SIDES), *speeds])
        costs.append(
            [network, split, limit, *megabytes, f"{1000 * wire['exact']:.0f}", *measurements_over]
        )
    head = ["network", "workers", "cable"]
    speeds = [f"{side}'s speed" for side in SIDES[1:]]
    steps = [*head, *(f"{side} (ms)" for side in SIDES), *speeds]
    report.add(
        "## Steps\n\nMedian (minimum to maximum) of the turns; DDP's speed is 1.\n\n"
        + table(steps, rows)
    )
    wires = [*head, *(f"{side} (MB)" for side in SIDES), "wire alone (ms)"]
    report.add(
        "## The wire\n\nWhat a step sends by the busiest cable in its busier direction, by the "
        "counters of the device; the time in which a cable of that speed carries what the exact "
        "side sends; and how many times that of its own bytes a step takes.\n\n"
        + table([*wires, *(f"{side}, times the wire" for side in SIDES)], costs)
    )
    notes = []
    for (network, split, mbit), sides in found.items():
        limit = "unlimited" if mbit is None else f"{mbit / 1000:g} Gbit/s"
        cpu = [
            spread([1000 * side.processor for side in sides[side]]) if side in sides else "–"
            for side in SIDES
        ]
        count = split.count("+") + 1
        master = [
            f"{statistics.median(1000 * side.master / count for side in sides[s]):.2f}"
            if s in sides
            else "–"
            for s in SIDES[1:]
        ]
        notes.append([network, split, limit, *cpu, *master])
    heads = [*head, *(f"{side} (ms)" for side in SIDES)]
    report.add(
        "## Processor time\n\nOf all processes, for a step, on all cores together; and of the "
        "master, for a step and host.\n\n"
        + table([*heads, *(f"master, {side}" for side in SIDES[1:])], notes)
    )


def _of(values: Mapping[str, T], side: str, show: Callable[[T], str]) -> str:
    return show(values[side]) if side in values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, once, and no report")
    parser.add_argument("--network", choices=NETWORKS, help="only this one, and no report")
    parser.add_argument("--hosts", type=int, help="only on so many hosts, and no report")
    parser.add_argument("--gbit", type=float, help="only this cable (0: no limit), and no report")
    parser.add_argument("--side", choices=SIDES, action="append", help="only this; no report")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report = Report(BENCHMARK, "A step over a network", seed=0)
    cables: list[int | None] = [None, 1000]
    if arguments.gbit is not None:
        cables = [round(1000 * arguments.gbit) or None]
    found: dict[Key, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(1 if arguments.quick else arguments.rounds):
        for split in (split for split in SPLITS if arguments.hosts in (None, len(split))):
            sides = [
                side for side in sides_on(split) if not arguments.side or side in arguments.side
            ]
            for mbit in cables if len(split) > 1 else [None]:
                with hosts(len(split), mbit=mbit) as places:
                    for name, network in NETWORKS.items():
                        if arguments.network not in (None, name):
                            continue
                        if arguments.quick:
                            network = Network(network.file, network.batch, 1.5, 4)
                        # another begins each time, so that none always runs behind the same other
                        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                            report.say(f"turn {turn + 1}: {name}, {name_of(split)}, {mbit}, {side}")
                            measured_now = report.attempt(measure, side, places, split, network)
                            report.say(str(measured_now))
                            if tuple(measured_now.hosts) != tuple(split):
                                raise RuntimeError(f"workers stood {measured_now.hosts}")
                            found[name, name_of(split), mbit][side].append(measured_now)
    if arguments.side is None:
        tell(report, found)
    if not (
        arguments.quick
        or arguments.network
        or arguments.hosts
        or arguments.gbit is not None
        or arguments.side
    ):
        cells = [
            {
                "network": network,
                "workers": split,
                "mbit": mbit,
                "sides": {
                    side: [asdict(measurement) for measurement in measurements]
                    for side, measurements in sides_.items()
                },
            }
            for (network, split, mbit), sides_ in found.items()
        ]
        master_rows = master.rows([2, 4, 16], seconds=3.0, turns=3)
        report.add(
            "## The master's processor time, by hosts\n\nWith hosts that compute nothing "
            "([master.py](master.py)), two workers each, as many steps a second as come about.\n\n"
            + table(master.HEAD, master_rows)
        )
        report.write({"cells": cells, "master": master_rows})


if __name__ == "__main__":
    main()
