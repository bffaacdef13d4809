"""The status server of Kubeflow Trainer, for the progress in the status of a TrainJob.

Source: `trainer.kubeflow.org/v1alpha1`, `UpdateTrainJobStatusRequest`.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import brim
from brim.errors import EnvironmentFault

_TO_ANSWER = 3.0  # seconds that the server may be silent
_LARGEST_FILE = 64 << 10  # bytes of a token
_LARGEST_ANSWER = 64 << 10  # bytes that are read, so that the connection ends in order


def post_status(url: str, body: bytes, *, token: Path, authority: Path) -> None:
    """Post a status, by no proxy, and without going where an answer points to.

    Args:
        token: the file of it, read for each status: its content changes every hour.
        authority: the file of the certificate behind the server's.

    Raises:
        EnvironmentFault: the server did not take it, or did not answer.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise EnvironmentFault("the address of the status server is no https:// URL")
    try:
        headers = {
            "Authorization": f"Bearer {_content(token)}",
            "Content-Type": "application/json",
            "User-Agent": f"brim/{brim.__version__}",
            "Connection": "close",
        }
        context = ssl.create_default_context(cafile=str(authority))
        with contextlib.closing(
            http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_TO_ANSWER, context=context
            )
        ) as connection:
            connection.request("POST", parts.path or "/", body, headers)
            answer = connection.getresponse()
            answer.read(_LARGEST_ANSWER)
    except (OSError, ValueError, http.client.HTTPException) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise EnvironmentFault(f"the status server cannot be asked: {words}") from error
    if not 200 <= answer.status < 300:
        raise EnvironmentFault(f"the status server answered {answer.status}")


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LARGEST_FILE).decode().strip()
