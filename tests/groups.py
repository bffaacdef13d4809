"""Whether control groups can be made here: root can on most hosts, and users with delegated
ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from brim.host.control_groups import make_group


def groups_can_be_made() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        group = make_group(Path(folder))
        return group is not None and group.end()


needs_groups = pytest.mark.skipif(
    not groups_can_be_made(), reason="no control groups can be made here"
)
