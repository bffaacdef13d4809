"""Names of jobs, nodes and tenants.

A name is the name of a directory, and is shown to people. Pure.
"""

from __future__ import annotations

from brim.errors import SpecError

_MAX_NAME_BYTES = 200  # bytes: a number may come behind it


def check_name(name: str, *, field: str, hint: str = "") -> None:
    """Check that a directory can have this name, and a terminal show it.

    Args:
        field: of the text, for the error.

    Raises:
        SpecError: it cannot.

    >>> check_name("node-1", field="nodes")
    """
    odd = name in (".", "..") or "/" in name or not name.isprintable()
    if not name or odd or len(name.encode()) > _MAX_NAME_BYTES:
        need = f"1 to {_MAX_NAME_BYTES} printable characters without '/', and not '.' or '..'"
        raise SpecError(field, got=repr(name[:40]), need=need, hint=hint)
