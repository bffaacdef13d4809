"""Memory that processes share by a descriptor alone."""

from __future__ import annotations

import os
import tempfile


def anonymous_file(name: str) -> int:
    """Return a descriptor of memory without a place in any folder.

    Nothing is left of it once its processes are gone.

    Args:
        name: that the system shows for it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
