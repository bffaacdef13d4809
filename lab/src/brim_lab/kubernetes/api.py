"""Requests to an API server, as far as the test cluster itself needs any."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import urllib3

from brim.errors import EnvironmentFault

PATCH = "application/merge-patch+json"


class Api:
    """An API server as its administrator sees it.

    Connections are kept: a handshake costs both sides more than most requests.

    Args:
        url: https://HOST:PORT
        authority: the file of the certificate that the server's is signed by.
        token: of the administrator.
    """

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self.url, self.authority, self.token = url, authority, token
        trust = ssl.create_default_context(cafile=str(authority))
        self._connections = urllib3.PoolManager(ssl_context=trust, retries=False, maxsize=8)

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        body: object = None,
        kind: str = "application/json",
        timeout: float = 10.0,
    ) -> Any:
        """Make one request.

        Args:
            path: from the first slash.
            body: to be sent as JSON; None for none.
            kind: the type of the body.
            timeout: seconds.

        Returns:
            What the server says, decoded; a text where it is no JSON.

        Raises:
            EnvironmentFault: the server cannot be reached, or says no; the message says why.
        """
        try:
            answer = self._connections.request(
                method,
                self.url + path,
                body=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind},
                timeout=timeout,
            )
        except urllib3.exceptions.HTTPError as error:
            raise EnvironmentFault(f"{method} {path}: {error}", retryable=True) from error
        content = answer.data.decode(errors="replace")
        if answer.status >= 400:
            raise EnvironmentFault(f"{method} {path}: {answer.status}: {content}")
        return json.loads(content) if "json" in answer.headers.get("Content-Type", "") else content

    def is_ready(self) -> bool:
        """Return whether the server is up, and has finished its start."""
        return bool(self._body_of("/readyz") == "ok")

    def can_read(self) -> bool:
        """Return whether the server has its store behind it: it is ready a while longer than that."""
        return bool(self._body_of("/api/v1/namespaces/default"))

    def _body_of(self, path: str) -> Any:
        try:
            return self.ask(path, timeout=2.0)
        except EnvironmentFault:
            return ""


def kubeconfig(url: str, authority: Path, token: str) -> bytes:
    """A file that kubectl and all other clients read: YAML, as all JSON is."""
    name = "brim"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority": str(authority)}}
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(content, indent=1).encode()
