"""One end of a conversation that outlives its connection: every message arrives once and in order.

Pure.

Each end numbers its messages from 1, keeps them until the other end has acknowledged them, and
says them again from there on a new connection. So neither a broken connection nor the restart of an
end with a record of the messages loses one or hands one over twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from brim.errors import ProtocolError

T = TypeVar("T")


@dataclass(slots=True)
class Outbox(Generic[T]):
    """Messages that were sent and may have to be sent again.

    Args:
        acknowledged: the number of the last message that the other end has.
        unacknowledged: the messages behind it.

    >>> outbox = Outbox[str]()
    >>> outbox.put("a"), outbox.put("b"), outbox.messages_after(0)
    (1, 2, [(1, 'a'), (2, 'b')])
    >>> outbox.acknowledge(1)
    >>> outbox.messages_after(0), outbox.messages_after(2)
    ([(2, 'b')], [])
    """

    acknowledged: int = 0
    unacknowledged: list[T] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The number of the last message; 0 where nothing was said yet."""
        return self.acknowledged + len(self.unacknowledged)

    def put(self, message: T) -> int:
        """Say something more; its number."""
        self.unacknowledged.append(message)
        return self.last

    def take_back(self, last: int) -> None:
        """Forget messages behind this number, none of which has been sent."""
        del self.unacknowledged[last - self.acknowledged :]

    def acknowledge(self, number: int) -> None:
        """The other end has everything up to this number; an old acknowledgement says nothing new.

        Raises:
            ProtocolError: it claims unsent messages.
        """
        if number > self.last:
            raise ProtocolError(f"message {number} was acknowledged, the last one is {self.last}")
        if number > self.acknowledged:
            del self.unacknowledged[: number - self.acknowledged]
            self.acknowledged = number

    def messages_after(self, number: int) -> list[tuple[int, T]]:
        """Return the messages for an end that was sent everything up to this number."""
        first = max(number, self.acknowledged)
        fresh = self.unacknowledged[first - self.acknowledged :]
        return [(first + 1 + index, message) for index, message in enumerate(fresh)]


def is_new(number: int, *, last_number: int) -> bool:
    """Return whether a message directly follows the last one received.

    A message that was received before does not.

    Raises:
        ProtocolError: there is a gap.
    """
    if number > last_number + 1:
        raise ProtocolError(f"message {number} came after message {last_number}")
    return number == last_number + 1
