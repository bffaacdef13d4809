"""An S3-compatible server (moto's) for tests: one that can be away for a while, and comes back with
its objects.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest
import s3fs
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


class ObjectStore:
    """The server, in a thread of the test; `url` names a folder in its only bucket."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()
        self.url = f"s3://{BUCKET}/run"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def go_away(self) -> None:
        self._server.stop()

    def come_back(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def files(self) -> s3fs.S3FileSystem:
        return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    def clear(self) -> None:
        files = self.files()
        for name in files.find(BUCKET):
            files.rm_file(name)

    def names(self) -> list[str]:
        """The store, as seen from `url`."""
        prefix = f"{BUCKET}/run/"
        return sorted(name.removeprefix(prefix) for name in self.files().find(prefix))


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A server with a bucket, which this process and its children find by their environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = ObjectStore()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", store.endpoint),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # those of an earlier server
        with contextlib.suppress(
            FileExistsError
        ):  # moto keeps what an earlier server of this process had
            store.files().mkdir(BUCKET)
        try:
            yield store
        finally:
            store.go_away()
