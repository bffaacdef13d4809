"""Requests to an online service along a day's curve: when they are due, and how they were answered.

`python -m brim_lab.experiments.requests` makes them, in a process of its own: what else the experiment does
delays none. It is an open loop: a request is due at a time of its own, whatever became of those before, and
its latency counts from there.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

_PEAKS = 3  # of the day's curve
_PATIENCE = 20.0  # seconds for one request
_OK = b" 200 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day's curve of load, in minutes.

    Args:
        seconds: of the day.
        calm, busy: requests a second at its lowest and its highest.
        days: how many are made, one after the other.
        seed: of the times of requests.
    """

    seconds: float
    calm: float
    busy: float
    days: float = 1.0
    seed: int = 0

    def rate(self, moment: float) -> float:
        """Return the requests a second that are due on average at a time since the first day's begin.

        >>> day = Day(seconds=120.0, calm=10.0, busy=100.0)
        >>> round(day.rate(0.0)), round(day.rate(60.0)) > 50, max(day.rate(t / 10) for t in range(1200)) <= 100.0
        (10, True, True)
        """
        phase = moment / self.seconds % 1.0
        slow = 0.5 - 0.5 * math.cos(2.0 * math.pi * phase)
        quick = math.sin(_PEAKS * math.pi * phase) ** 2
        return self.calm + (self.busy - self.calm) * slow * (0.55 + 0.45 * quick)

    def due(self) -> Iterator[float]:
        """Yield when requests are due, in seconds since the begin: Poisson, by the rate of the moment."""
        rng, now, end = random.Random(self.seed), 0.0, self.days * self.seconds
        while True:
            now += rng.expovariate(self.busy)
            if now >= end:
                return
            if rng.random() * self.busy < self.rate(now):
                yield now


class TimedAnswer(msgspec.Struct, array_like=True, frozen=True):
    """The answer to one request.

    Args:
        due: seconds since the begin.
        latency: seconds from then to the last byte.
        problem: why it was lost; empty where it was answered with status 200.
    """

    due: float
    latency: float
    problem: str = ""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all values does not exceed; 0 for no values.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5), quantile([], 0.99)
    (2.0, 0.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


async def make_requests(host: str, port: int, day: Day) -> list[TimedAnswer]:
    """Make the requests of a day, and return their answers once all are there."""
    begin = time.monotonic()

    async def request(due: float) -> TimedAnswer:
        await asyncio.sleep(max(0.0, begin + due - time.monotonic()))
        problem = ""
        try:
            async with asyncio.timeout(_PATIENCE):
                problem = await _get(host, port)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            problem = str(error) or type(error).__name__
        return TimedAnswer(due, time.monotonic() - begin - due, problem)

    tasks: set[asyncio.Task[TimedAnswer]] = set()
    for due in day.due():  # those of the next second only: a day has many
        while due > time.monotonic() - begin + 1.0:
            await asyncio.sleep(0.2)
        tasks.add(asyncio.create_task(request(due)))
    return sorted(await asyncio.gather(*tasks), key=lambda answer: answer.due)


async def _get(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read(1 << 16)
        while chunk := await reader.read(1 << 16):
            answer += chunk
    finally:
        writer.close()
    status, _, _ = answer.partition(b"\r\n")
    if not status:
        return "no answer"
    return "" if _OK in status + b" " else status.decode(errors="replace")[:60]


def main() -> None:
    """Read host, port and day as JSON from standard input, and print the answers as JSON."""
    host, port, day = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, int, Day])
    answers = asyncio.run(make_requests(host, port, day))
    sys.stdout.buffer.write(msgspec.json.encode(answers))


if __name__ == "__main__":
    main()
