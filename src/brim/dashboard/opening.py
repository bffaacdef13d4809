"""Opening an address in a browser without showing it to other accounts of this host.

Every account can read the command line of a browser, and the first to use the code in the address
gets in. So the browser is handed the name of a private file, which leads there.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from brim.host.account import home
from brim.storage.files import write_whole

_FILE = "open-dashboard.html"


def open_privately(url: str, browse: Callable[[str], object]) -> None:
    """Have a browser open an address.

    Args:
        browse: opens the address of a file in a browser.

    Raises:
        OSError: the file cannot be written.
    """
    folder = home(field="HOME") / ".cache" / "brim"
    folder.mkdir(parents=True, exist_ok=True)
    path: Path = folder / _FILE
    page = (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url='
        f'{escape(url)}"><title>brim</title><a href="{escape(url)}">Open the dashboard</a>'
    )
    write_whole(path, page.encode(), mode=0o600, is_sole_writer=True)
    browse(path.as_uri())
