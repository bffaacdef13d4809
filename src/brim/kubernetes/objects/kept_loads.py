"""The past loads of services as an operator keeps them for the next: two days of each, in minutes. Pure.

All are one value of a ConfigMap in the operator's own namespace, which takes a megabyte: each service
has at most six kilobytes of it.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Iterable, Mapping

import msgspec

from brim.decoding import UNDECODABLE
from brim.domain.demand import Past
from brim.errors import EnvironmentFault
from brim.kubernetes.objects.scaled_services import ServiceKey

MOST_SERVICES = 100  # for which there is room
_PER_DAY = 1_440  # loads that are kept of one
_DAYS = 2
_BEFORE = 30  # further ones, for the trend before the first of these days' loads
_SCALE = 65_534  # of the highest load; the number behind it says that nothing was measured
_LARGEST = 1 << 20  # bytes of all, unpacked


class KeptLoads(msgspec.Struct, frozen=True, array_like=True):
    """The past of one service.

    Args:
        url: at which its loads were read.
        day: in seconds.
        first: the number of the first bucket.
        highest: load.
        loads: of each bucket since then, as sixteen bits of the highest each.
        notices: seconds that its replicas took to come.
    """

    url: str
    day: float
    first: int
    highest: float
    loads: bytes
    notices: tuple[float, ...]


def coarse_past(day: float) -> Past:
    """Return an empty past whose buckets are as long as those that are kept."""
    return Past(season=day, width=max(Past(season=day).width, day / _PER_DAY))


def keep_loads(coarse: Past, *, url: str, day: float, notices: Iterable[float]) -> KeptLoads:
    """Return what is kept of a past.

    Args:
        coarse: as `coarse_past` makes it.
    """
    buckets = [(coarse.number_of(time + coarse.width / 2), load) for time, load in coarse.buckets()]
    newest = buckets[-1][0] if buckets else 0
    buckets = buckets[-(_DAYS * coarse.season + _BEFORE) :]
    first = max(buckets[0][0], newest - _DAYS * coarse.season - _BEFORE) if buckets else 0
    highest = max((load for _, load in buckets), default=0.0)
    loads = array("H", [_SCALE + 1] * (newest - first + 1 if buckets else 0))
    for number, load in buckets:
        if number >= first:
            loads[number - first] = round(load / highest * _SCALE) if highest else 0
    return KeptLoads(url, day, first, highest, loads.tobytes(), tuple(notices))


def remembered(kept: KeptLoads | None, *, url: str, day: float, wall: float) -> tuple[Past, Past]:
    """Return the past of a service, and the coarse one of which the next operator is told.

    Args:
        kept: by the last operator; None, and that of another URL or day: there is nothing.
        wall: now: nothing later is known.
    """
    past, coarse = Past(season=day), coarse_past(day)
    if kept is None or (kept.url, kept.day) != (url, day):
        return past, coarse
    for number, share in enumerate(array("H", kept.loads), kept.first):
        load = kept.highest * share / _SCALE
        if share > _SCALE:
            continue
        start = number * coarse.width
        if start < wall:
            coarse.add(start + coarse.width / 2, load)
        for step in range(max(1, round(coarse.width / past.width))):
            if start + step * past.width < wall - past.width:
                past.add(start + (step + 0.5) * past.width, load)
    return past, coarse


def pack(kept: Mapping[ServiceKey, KeptLoads]) -> str:
    """Return the pasts of services as a value of a ConfigMap."""
    content = msgspec.msgpack.encode([(tuple(key), loads) for key, loads in sorted(kept.items())])
    return base64.b64encode(zlib.compress(content)).decode()


def unpack(text: str) -> dict[ServiceKey, KeptLoads]:
    """Return the pasts that a value has.

    Raises:
        EnvironmentFault: it has none.
    """
    try:
        decompressing = zlib.decompressobj()
        content = decompressing.decompress(base64.b64decode(text, validate=True), _LARGEST)
        pairs = msgspec.msgpack.decode(content, type=list[tuple[ServiceKey, KeptLoads]])
    except (*UNDECODABLE, zlib.error) as error:
        raise EnvironmentFault(f"the past loads cannot be read: {error}") from error
    return {key: loads for key, loads in pairs if _is_sound(loads)}


def _is_sound(kept: KeptLoads) -> bool:
    numbers = (kept.day, kept.highest, *kept.notices)
    return len(kept.loads) % 2 == 0 and all(
        math.isfinite(number) and number >= 0.0 for number in numbers
    )
