"""Whether a user wrote to a table is asked without a look at its other mapping, which is as large
as the table.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from brim.embeddings.tables import memory
from brim.embeddings.tables.memory import TableMemory
from brim.embeddings.tables.table import Table


def test_nothing_is_read_behind_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = TableMemory([Table("rows", (1000, 16), torch.float32, ())], None)
    questions = []

    class Maps(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(-1 if size is None else size)
            questions.append(len(found))
            return found

    class Place:
        def open(self, mode: str, buffering: int) -> io.FileIO:
            assert (mode, buffering) == ("rb", 0)
            return Maps(tmp_path / "maps")

    own_mapping = f"{tables._seen.data_ptr():x}-ff rw-p\nAnonymous:         4 kB\n"
    (tmp_path / "maps").write_text(
        "00-10 r--p\nAnonymous:         0 kB\n" + own_mapping + "Rss: 9 kB\n" * 1000
    )
    monkeypatch.setattr(memory, "_MAPS", Place())
    assert tables.is_written_to
    assert sum(questions) < 1000
