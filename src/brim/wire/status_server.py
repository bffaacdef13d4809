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
from brim.wire.measure import hung_up_after

_TO_ANSWER = 3.0  # seconds that the server may be silent
_TO_BE_READ = 10.0  # seconds for a whole answer
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
    try:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise EnvironmentFault("the address of the status server is no https:// URL")
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
            connection.connect()
            with hung_up_after(connection.sock, _TO_BE_READ):
                connection.request("POST", parts.path or "/", body, headers)
                answer = connection.getresponse()
                answer.read(_LARGEST_ANSWER)
    except (OSError, ValueError, http.client.HTTPException) as error:
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise EnvironmentFault(f"the status server cannot be asked: {words}") from error
    if not 200 <= answer.status < 300:
        raise EnvironmentFault(f"the status server answered {answer.status}")


def _content(path: Path) -> str:
    """Return a token; what is none is quoted in no error.

    Raises OSError where it cannot be read, EnvironmentFault where it fits in no header.
    """
    with path.open("rb") as file:
        token = file.read(_LARGEST_FILE).decode(errors="replace").strip()
    if not (token.isascii() and token.isprintable()):
        raise EnvironmentFault("the token for the status server is no line of printable ASCII")
    return token
