"""The copy of a master's journal and records with an agent, so that another master can take over."""

from __future__ import annotations

from collections.abc import Iterator

from brim.storage.copies import JOURNAL, CopiedFiles
from brim.wire.messages import CopyData, CopyOffer, CopyPart, JournalPlace


class JournalCopy:
    """The copy of one agent.

    Args:
        files: its own.

    Attributes:
        problem: why there is none; empty where there is, or may be.
    """

    def __init__(self, files: CopiedFiles) -> None:
        self._files = files
        self._number = self._holders = 0
        self.problem = ""

    def take(self, part: CopyPart) -> None:
        """Add a part of the journal; a disk that refuses it ends the copy.

        The run needs none as long as its master lives.
        """
        if self.problem and not part.begins:
            return
        try:
            self._take(part)
            self.problem = ""
        except OSError as error:
            self.problem, self._number = str(error), 0

    def _take(self, part: CopyPart) -> None:
        if part.begins:
            self._number = 0
            self._files.clear()
        for record in part.records:
            self._files.put(record.file, record.place, record.data)
        if part.restates:
            self._files.restate(part.entries)
        else:
            self._files.add(part.entries)
        self._number, self._holders = part.number, part.holders

    def offer(self, origin: str) -> CopyOffer | None:
        """Return the description of this copy for a master; None where it is not whole.

        Args:
            origin: of the part of the journal that its end is of.
        """
        if not self._number or self.problem:
            return None
        return CopyOffer(place=JournalPlace(origin, self._number), holders=self._holders)

    def content(self) -> Iterator[CopyData]:
        """Yield the whole copy. Raises OSError."""
        for name, data in self._files.content():
            yield CopyData(file=name, data=data)
        yield CopyData(file=JOURNAL, data=b"", last=True)

    def close(self) -> None:
        """Leave the files."""
        self._files.close()
