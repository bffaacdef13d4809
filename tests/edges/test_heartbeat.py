"""The file by which a service manager sees that a process lives."""

from __future__ import annotations

import os
from pathlib import Path

from brim.storage.heartbeat import HeartbeatFile


def test_foreign_links_are_not_written_through(tmp_path: Path) -> None:
    """In a directory of all, such as /tmp, where a process's number is no secret."""
    own_file, path = tmp_path / "ours", tmp_path / "heart"
    own_file.write_text("of value")
    (tmp_path / f".heart.{os.getpid()}").symlink_to(own_file)
    heartbeat = HeartbeatFile(path)
    heartbeat.beat(ready=True)
    assert path.read_text() == "ready\n"
    assert own_file.read_text() == "of value"
    heartbeat.end()
    assert not path.exists()
