"""A record of the scheduler's book that is none spoils no other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookkeeping import submit
from brim.storage.book import Book
from brim.storage.database import Database
from edges.test_fuzz import damaged
from edges.test_nonsense import plain_msgpack, twisted
from submissions import submission


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_record_that_is_none_spoils_no_other(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path: Path = tmp_path_factory.mktemp("book") / "db"
    database = Database(path)
    book = Book(database)
    good = submit(book, submission(), name="job", now=1.0)
    tree = {**msgspec.to_builtins(good), "number": 2, "id": "job-2"}
    harmed = data.draw(damaged(msgspec.msgpack.encode(tree)) | twisted(tree).map(plain_msgpack))
    database.put_job(2, "job-2", harmed)
    database.close()
    reopened = Book(Database(path))
    assert reopened.jobs["job-1"] == good
    assert next(record.id for record in reopened.unfinished()) == "job-1"
    reopened.jobs.get("job-2")
