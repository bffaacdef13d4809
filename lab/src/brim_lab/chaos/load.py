"""The load of a service that is being broken: asks all the time, checks each answer, asks again."""

from __future__ import annotations

import asyncio
import math
import threading

from brim.interfaces import Clock
from brim_lab.chaos.answering import answer_to
from brim_lab.chaos.answers import Attempt, TryOutcome

_FIRST_RATE = 5.0  # requests a second
_TO_ANSWER = 30.0  # seconds for one try: three times as long as a front has it wait
_BETWEEN_TRIES = 0.2  # seconds
_MOST_AT_ONCE = 200  # requests that wait; meanwhile there are no others
_TO_END = 20.0  # seconds for the last answers


class ServiceLoad:
    """GET requests to the port of a service, each by a connection of its own, until `close`.

    Args:
        port: on loopback.

    Attributes:
        rate: requests a second, which may be changed.
        rests: there are as few as at first, whatever the rate is.
        attempts: all tries that have come to an end.
    """

    def __init__(self, port: int, clock: Clock) -> None:
        self.port, self.rate, self.rests = port, _FIRST_RATE, False
        self.attempts: list[Attempt] = []
        self._clock = clock
        self._over = threading.Event()
        self._last_try = math.inf  # on the monotonic clock
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self._thread.start()

    def close(self, *, patience: float = _TO_END) -> None:
        """Make no more requests, and have those that are left tried again for so many seconds."""
        self._last_try = self._clock.now() + patience
        self._over.set()
        self._thread.join()

    def replicas_since(self, moment: float) -> set[str]:
        """Return the replicas that answered requests which began at a time or later."""
        return {
            attempt.note
            for attempt in self.attempts[:]
            if attempt.begin >= moment and attempt.outcome is TryOutcome.RIGHT
        }

    async def _run(self) -> None:
        number, waiting = 0, set[asyncio.Task[None]]()
        due = self._clock.now()
        while not self._over.is_set():
            if len(waiting) < _MOST_AT_ONCE:
                number += 1
                task = asyncio.create_task(self._request(number))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            rate = _FIRST_RATE if self.rests else self.rate
            due = max(due + 1.0 / rate, self._clock.now() - 1.0)
            await asyncio.sleep(max(0.0, due - self._clock.now()))
        await asyncio.gather(*waiting)

    async def _request(self, number: int) -> None:
        """Try until there is an answer."""
        while True:
            begin, note = self._clock.wall(), ""
            try:
                async with asyncio.timeout(_TO_ANSWER):
                    outcome, note = await self._ask(number)
            except TimeoutError:
                outcome = TryOutcome.SILENT
            except OSError:
                outcome = TryOutcome.CUT
            self.attempts.append(Attempt(number, begin, self._clock.wall(), outcome, note))
            if outcome is TryOutcome.RIGHT or self._clock.now() > self._last_try:
                return
            await asyncio.sleep(_BETWEEN_TRIES)

    async def _ask(self, number: int) -> tuple[TryOutcome, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            lines = (f"GET /{number} HTTP/1.1", "Host: localhost", "Connection: close", "", "")
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
            head, _, body = (await reader.read()).decode(errors="replace").partition("\r\n\r\n")
        finally:
            writer.close()
        if not head:
            return TryOutcome.CUT, ""
        status = head.split(maxsplit=2)[1:2]
        replica, _, text = body.partition(" ")
        if status == ["200"] and text == answer_to(number):
            return TryOutcome.RIGHT, replica
        if status == ["503"]:
            return TryOutcome.UNAVAILABLE, ""
        return TryOutcome.WRONG, f"{head.splitlines()[0]}: {body[:40]!r}"
