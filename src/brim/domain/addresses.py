"""Addresses of hosts, as opposed to their names. Pure."""

from __future__ import annotations

from ipaddress import ip_address


def is_address(host: str) -> bool:
    """Return whether this is an address, which leads to one host, and no name.

    >>> is_address("10.0.0.7"), is_address("fd77::1"), is_address("job-7-master")
    (True, True, False)
    """
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
