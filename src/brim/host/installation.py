"""The origin of this brim, and so what to type for more of it.

No command names brim alone: it is on no package index, and an owner of its name on one could run
code on the host of each reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

_CLONE = "{} in a clone of brim"


def command_for(*extras: str) -> str:
    """Return the command that installs extras of this brim.

    It names the clone or the wheel that this brim was installed from, as long as that is there.
    """
    options, place = _origin()
    words = f"pip install {options}'{place or '.'}[{','.join(extras)}]'"
    return words if place else _CLONE.format(words)


def command_for_laboratory() -> str:
    """Return the command that installs brim-lab, which a clone has and a wheel of brim has not."""
    options, place = _origin()
    if place and Path(place, "lab").is_dir():
        return f"pip install {options}'{place}' {options}'{place}/lab'"
    return _CLONE.format("pip install -e . -e lab")


def _origin() -> tuple[str, str]:
    """The options of pip and the folder or wheel that brim was installed by; no place if it is gone."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and for errors alone

    try:
        text = distribution("brim").read_text("direct_url.json")  # PEP 610
    except PackageNotFoundError:
        text = None
    origin = json.loads(text) if text else {}
    url = urlsplit(origin.get("url", ""))
    place = unquote(url.path)
    if url.scheme != "file" or "'" in place or not Path(place).exists():
        return "-e ", ""
    return "-e " if origin.get("dir_info", {}).get("editable") else "", place
