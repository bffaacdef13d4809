"""Holds a Lease, and says when: python holds_lease.py NAMESPACE IDENTITY, by $KUBECONFIG.

Each line is a word and the time of the host's monotonic clock, which is one for all processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from brim.kubernetes.client.access import find_access
from brim.kubernetes.client.holder import LeaseHolder, LeaseLost
from brim.kubernetes.client.lease import LeaseTerms

TERMS = LeaseTerms(duration=3.0, renew_within=2.0, retry=0.4)


def say(word: str, when_said: float) -> None:
    sys.stdout.write(f"{word} {when_said}\n")
    sys.stdout.flush()


async def main(namespace: str, identity: str) -> None:
    holder = LeaseHolder(
        find_access(os.environ), namespace=namespace, name="one", identity=identity, terms=TERMS
    )

    async def work() -> None:
        say("begins", time.monotonic())
        try:
            while True:
                moment = (
                    time.monotonic()
                )  # before it asks: stopped in between, it would say it late
                if holder.holds():
                    say("holds", moment)
                await asyncio.sleep(0.01)
        finally:
            say("ends", time.monotonic())

    async def look() -> None:
        while not holder.holder:
            await asyncio.sleep(0.01)
        say("sees", time.monotonic())

    looking = asyncio.create_task(look())
    running = asyncio.create_task(holder.run(work))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except LeaseLost as error:
        say("lost", time.monotonic())
        sys.stderr.write(f"{error}\n")
    except asyncio.CancelledError:
        say("released", time.monotonic())
    finally:
        looking.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
