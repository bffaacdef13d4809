"""Other accounts of this host, for the tests: processes that try forbidden things."""

from __future__ import annotations

import os
import subprocess
import sys

STRANGER = 65534
CAN_BE_ANOTHER = os.geteuid() == 0

# The interpreter may lie in a folder that only root can enter: everything is imported before.
_BECOME = f"""
import contextlib, ctypes, errno, http.client, json, os, pathlib, signal, socket, sys, time
if os.geteuid() == 0:
    os.chdir("/")
    os.setgroups([])
    os.setresgid({STRANGER}, {STRANGER}, {STRANGER})
    os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
"""


def stranger(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script as another account where that can be, else as this one; the standard modules
    are imported.
    """
    command = [sys.executable, "-c", _BECOME + script, *arguments]
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
