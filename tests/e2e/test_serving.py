"""`brim serve` in a process of its own: requests are answered while versions come, for any
client.
"""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from brim.serving.bundle import changed, open_bundle
from brim.serving.export import Exporter
from brim.serving.inputs import ColumnReader
from brim.wire.authority import Authority
from brim_lab.driver import Driver
from e2e.running import DEADLINE, train, until
from e2e.test_using_a_model import use
from serving.trained import TRACED, WITH_FUNCTION, as_before, run_of

pytestmark = pytest.mark.e2e

ROW = {"color": "c3", "word": "w5", "size": "4", "price": "2.5"}
_JSON = {"Content-Type": "application/json"}
ROWS = {"rows": [ROW]}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with as_before():
        yield


@dataclass
class Server:
    """A server under way, and its output."""

    process: subprocess.Popen[str]
    log: Path
    port: int

    def ask(
        self,
        path: str = "/predict",
        body: Any = None,
        *,
        connection: http.client.HTTPConnection | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Status, content of the body, and headers."""
        call = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        content = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        call.request("GET" if body is None else "POST", path, content, {**_JSON, **(headers or {})})
        answer = call.getresponse()
        text = answer.read().decode()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if connection is None:
            call.close()
        return answer.status, json.loads(text) if text.startswith("{") else {"text": text}, found

    @property
    def version(self) -> str:
        found: str = self.ask("/version")[1]["version"]
        return found

    def said(self) -> str:
        return self.log.read_text()


@contextlib.contextmanager
def serving(bundle: Path, log: Path, *options: str) -> Iterator[Server]:
    with log.open("wb") as file:
        process = Driver().start("serve", str(bundle), *options, stdout=file, stderr=file)
    try:
        until(
            lambda: "serving version" in log.read_text() or process.poll() is not None, "the server"
        )
        assert process.poll() is None, log.read_text()
        line = next(
            splitline
            for splitline in log.read_text().splitlines()
            if splitline.startswith("serving version")
        )
        yield Server(process, log, int(line.rpartition(":")[2]))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        sys.stderr.write(log.read_text())  # shown where a test fails


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of step 1 and deltas to steps 2 to 21, one after the other."""
    folder = tmp_path_factory.mktemp("versions")
    with as_before():
        exporter = Exporter(
            run_of(tmp_path_factory.mktemp("run"), TRACED, steps=tuple(range(1, 22)))
        )
        base_version = exporter.bundle(folder / "1", step=1).manifest.version
        for step in range(2, 22):
            base_version = exporter.delta(
                folder / str(step), base_version=base_version, step=step
            ).manifest.version
        exporter.bundle(folder / "21-whole", step=21)
    return folder


def put(version: Path, watched: Path) -> None:
    """Have a version appear in a directory, whole."""
    shutil.copytree(version, watched / f".{version.name}")
    (watched / f".{version.name}").rename(watched / version.name)


def expected(versions: Path) -> dict[str, list[float]]:
    """The answers of each version to `ROWS`, computed here."""
    model = open_bundle(versions / "1")
    found = {}
    for step in range(1, 22):
        if step > 1:
            model = changed(model, versions / str(step))
        assert isinstance(model.reader, ColumnReader)
        inputs = model.reader.read({name: [cell] for name, cell in ROW.items()})
        found[model.version] = model.predict(*inputs)["sold"].tolist()
    return found


def test_twenty_versions_take_over_without_a_lost_request(versions: Path, tmp_path: Path) -> None:
    """Requests never pause; each answer is that of the version in its header, to the bit."""
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    put(versions / "1", watched)
    expected_answers = expected(versions)
    assert len({tuple(values) for values in expected_answers.values()}) == 21
    answers: list[tuple[int, str, Any]] = []
    stop = threading.Event()

    def call(server: Server) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
        while not stop.is_set():
            try:
                status, body, headers = server.ask(body=ROWS, connection=connection)
                assert headers["brim-version"] == body["version"]
                answers.append((status, body["version"], body["predictions"]["sold"]))
            except Exception as error:  # noqa: BLE001 - whatever it is, a request was lost
                answers.append((0, repr(error), None))
                return
        connection.close()

    def is_given(name: str) -> bool:
        return any(version == name for _, version, _ in answers[-20:])

    with serving(watched, tmp_path / "log", "--batch-rows", "0") as server:
        clients = [threading.Thread(target=call, args=(server,)) for _ in range(4)]
        for client in clients:
            client.start()
        for step in range(2, 22):
            put(versions / str(step), watched)
            name = list(expected_answers)[step - 1]
            until(partial(is_given, name), f"an answer of {name}")
        stop.set()
        for client in clients:
            client.join(DEADLINE)
        until(
            lambda: f"version {list(expected_answers)[-1]} has taken over" in server.said(),
            "a word about it",
        )
    assert {status for status, _, _ in answers} == {200}
    assert [
        version
        for version in expected_answers
        if version not in {version_answered for _, version_answered, _ in answers}
    ] == []
    assert all(values == expected_answers[version] for _, version, values in answers)


def test_serving_starts_newest_and_follows_bundles(versions: Path, tmp_path: Path) -> None:
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    for name in ("1", "2", "3"):
        put(versions / name, watched)
    with serving(watched, tmp_path / "log") as server:
        until(lambda: server.version.startswith("00000003"), "the deltas that were there")
        put(versions / "21-whole", watched)
        until(lambda: server.version.startswith("00000021"), "the later bundle")
        metrics = server.ask("/metrics")[1]["text"]
        assert "brim_versions_loaded_total 3" in metrics


def test_an_unservable_version_is_reported(versions: Path, tmp_path: Path) -> None:
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    put(versions / "1", watched)
    with serving(watched, tmp_path / "log") as server:
        answer_before = server.ask(body=ROWS)[1]
        put(versions / "3", watched)  # a delta for step 2
        damaged = tmp_path / "5-damaged"
        shutil.copytree(versions / "21-whole", damaged)
        (damaged / "dense.safetensors").write_bytes(b"nothing")
        put(damaged, watched)
        (watched / "nonsense").mkdir()
        (watched / "nonsense" / "manifest.json").write_text("{")
        (watched / "other").mkdir()
        (watched / "a-file").write_text("x")
        until(
            lambda: len(server.ask("/version")[1]["not_served"]) == 3, "three that are not served"
        )
        problems = "\n".join(server.ask("/version")[1]["not_served"])
        assert "dense.safetensors is damaged" in problems
        assert "nonsense/manifest.json is damaged" in problems
        assert "changes version 00000002-" in problems
        until(lambda: server.said().count("not served:") >= 3, "words about them")
        assert server.said().count("not served:") == 3, "once each"
        assert server.ask(body=ROWS)[1] == answer_before
        put(versions / "2", watched)
        until(lambda: server.version.startswith("00000003"), "the delta that waited")


@pytest.mark.long
def test_slowly_copied_versions_are_served_when_whole(versions: Path, tmp_path: Path) -> None:
    """A bundle may be copied under its own name, file by file, the manifest first."""
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    put(versions / "1", watched)
    with serving(watched, tmp_path / "log") as server:
        (watched / "2").mkdir()
        files = sorted((versions / "2").iterdir())
        for path in files:
            content = path.read_bytes()
            (watched / "2" / path.name).write_bytes(content[: len(content) // 2])
        shutil.copy(versions / "2" / "manifest.json", watched / "2" / "manifest.json")
        until(
            lambda: len(server.ask("/version")[1]["not_served"]) == 1, "a word about half a version"
        )
        for path in files:
            if path.name != "manifest.json":
                shutil.copy(path, watched / "2" / path.name)
        until(lambda: server.version.startswith("00000002"), "the whole version")
        assert server.ask("/version")[1]["not_served"] == []
        assert server.said().count("not served") == 1


@pytest.mark.long
def test_skipping_an_earlier_step_is_reported(versions: Path, tmp_path: Path) -> None:
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    put(versions / "21-whole", watched)
    with serving(watched, tmp_path / "log") as server:
        put(versions / "1", watched)
        until(lambda: "is of step 1, and 21 is served" in server.said(), "a word about it")
        assert len(server.ask("/version")[1]["not_served"]) == 1
        assert server.version.startswith("00000021")


@pytest.mark.long
def test_files_of_served_versions_may_be_overwritten(versions: Path, tmp_path: Path) -> None:
    """By `cp`, or a copy to a disk that is full: a process that maps a file that is cut dies of SIGBUS."""
    watched = tmp_path / "versions"
    watched.mkdir(mode=0o755)
    put(versions / "1", watched)
    with serving(watched, tmp_path / "log") as server:
        answer_before = server.ask(body=ROWS)
        for path in (watched / "1").iterdir():
            os.truncate(path, 0)
        assert server.ask(body=ROWS)[:2] == answer_before[:2]
        put(versions / "2", watched)
        until(lambda: server.version.startswith("00000002"), "the delta")
        for path in (watched / "2").iterdir():
            os.truncate(path, 0)
        put(versions / "3", watched)
        until(lambda: server.version.startswith("00000003"), "the next one")
        answer = server.ask(body=ROWS)[1]
        assert answer["predictions"]["sold"] == expected(versions)[answer["version"]]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"rows": [{**ROW, "size": "far"}]},
            422,
            "column 'size' of row 0: got 'far', not a number",
        ),
        (
            {"rows": [ROW, {**ROW, "price": None}]},
            422,
            "column 'price' of row 1: got an empty cell",
        ),
        ({"rows": [{"color": "c3"}]}, 422, "column 'word': got nothing"),
        ({"rows": [{**ROW, "colour": "c3"}]}, 422, "did you mean 'color'"),
        ({"rows": []}, 422, "rows: got none"),
        ({"rows": [ROW], "columns": {}}, 422, "got rows and columns"),
        ({"row": [ROW]}, 400, "unknown field `row`; GET / shows an example"),
        ({"inputs": [1]}, 422, "need rows, or columns"),
        ('{"rows": [{"size": NaN}]}', 400, "JSON is malformed"),
        ('{"rows": [{"size": [[1]]}]}', 400, "got `array`"),
        ({"rows": [{**ROW, "size": [1]}]}, 422, "column 'size' of row 0: got a list"),
        ("[" * 100_000, 400, "the body is not a request"),
        (b"\xff\xfe", 400, "the body is not a request"),
        ({"columns": {"color": ["c"] * 70_000}}, 422, "70,000 rows, need 65,536 at most"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_requests(bad: Server, body: Any, status: int, message: str) -> None:
    answer_status, answer, _ = bad.ask(body=body)
    assert (answer_status, message in answer["detail"]) == (status, True), answer
    assert bad.ask(body=ROWS)[0] == 200


@pytest.fixture(scope="module")
def bad(versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(versions / "1", tmp_path_factory.mktemp("bad") / "log") as server:
        yield server


def test_other_paths_kinds_and_methods(bad: Server) -> None:
    assert bad.ask("/nothing")[0] == 404
    status, answer, _ = bad.ask("/predict")
    assert (status, "POST it" in answer["detail"]) == (405, True)
    assert bad.ask(body="rows", headers={"Content-Type": "text/plain"})[0] == 415
    assert bad.ask("/health")[1] == {"text": "ok\n"}


def test_only_those_who_know_the_token_are_heard(versions: Path, tmp_path: Path) -> None:
    with serving(versions / "1", tmp_path / "log", "--token-file", token_in(tmp_path)) as server:
        right = {"Authorization": "Bearer secret"}
        assert server.ask(body=ROWS, headers=right)[0] == 200
        wrong_headers: list[dict[str, str]] = [
            {},
            {"Authorization": "Bearer Secret"},
            {"Authorization": "Basic secret"},
        ]
        for wrong in wrong_headers:
            assert server.ask(body=b"\xff", headers=wrong)[0] == 401, "it is not looked at"
            for path in ("/", "/openapi.json", "/version", "/metrics"):
                assert server.ask(path, headers=wrong)[0] == 401
        example = server.ask("/", headers=right)[1]["example"]
        assert server.ask(body=example, headers=right)[0] == 200
        assert "/predict" in server.ask("/openapi.json", headers=right)[1]["paths"]
        assert server.ask("/health")[0] == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as stranger:
            stranger.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
            )
            assert stranger.recv(1000).startswith(b"HTTP/1.1 401"), "no body is waited for"


@pytest.mark.parametrize("framing", [b"Content-Length: 99999999", b"Transfer-Encoding: chunked"])
def test_a_body_has_an_end(bad: Server, framing: bytes) -> None:
    with socket.create_connection(("127.0.0.1", bad.port), timeout=DEADLINE) as endless:
        endless.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + framing
            + b"\r\n\r\n"
        )
        if b"chunked" in framing:
            with contextlib.suppress(OSError):  # it listens no more
                for _ in range(40):
                    endless.sendall(b"80000\r\n" + b" " * (1 << 19) + b"\r\n")
        else:
            assert endless.recv(1000).startswith(b"HTTP/1.1 413")
    assert bad.ask(body=ROWS)[0] == 200
    assert 'status="413"' in bad.ask("/metrics")[1]["text"]


def test_a_body_that_stops_coming_holds_up_nobody(bad: Server) -> None:
    with socket.create_connection(("127.0.0.1", bad.port), timeout=DEADLINE) as slow:
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: "
            b"application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert bad.ask(body=ROWS)[0] == 200
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_a_stopping_server_answers_received_requests(versions: Path, tmp_path: Path) -> None:
    with serving(
        versions / "1", tmp_path / "log", "--batch-wait", "1000", "--batch-rows", "2"
    ) as server:
        found: list[int] = []
        is_sent = threading.Event()

        def ask() -> None:
            call = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
            with contextlib.closing(call):
                call.request("POST", "/predict", json.dumps(ROWS), _JSON)
                is_sent.set()
                found.append(call.getresponse().status)

        client = threading.Thread(target=ask)
        client.start()
        assert is_sent.wait(DEADLINE)
        server.ask("/health")  # which is read behind it
        server.process.send_signal(signal.SIGTERM)
        client.join(DEADLINE)
        assert server.process.wait(DEADLINE) == 0, server.said()
        assert found == [200]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "need a token for requests from other hosts"),
        (["--listen", "0.0.0.0:0", "--token-file", "TOKEN"], "need a certificate to show clients"),
        (["--insecure"], "no other host can reach"),
        (["--key", "key.pem"], "need its certificate"),
        (["--certificate", "nowhere.pem"], "nowhere.pem: No such file"),
        (["--certificate", "TOKEN"], "no certificate with its key"),
        (["--listen", "here"], "need HOST:PORT"),
        (["--token-file", "nowhere"], "need a file with a token"),
        (["--batch-rows", "-1"], "--batch-rows"),
    ],
)
def test_options_that_cannot_be(
    versions: Path, options: list[str], message: str, tmp_path: Path
) -> None:
    token = token_in(tmp_path)
    words = [token if option == "TOKEN" else option for option in options]
    done = Driver().call("serve", str(versions / "1"), *words, codes=(1, 2))
    assert message in done.stderr
    assert "serving" not in done.stderr


def token_in(folder: Path) -> str:
    token = folder / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    return str(token)


def certificate_in(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate with its key, and a context that trusts it."""
    identity = Authority.make("cluster").issue("server", addresses=("127.0.0.1",))
    (folder / "new.pem").write_bytes(identity.pem)
    (folder / "new.pem").replace(folder / "server.pem")
    return folder / "server.pem", ssl.create_default_context(cadata=identity.authority.decode())


def test_other_hosts_get_https_with_the_renewed_certificate(versions: Path, tmp_path: Path) -> None:
    """At an address of all: this host is one of those that reach it."""
    right = {"Authorization": "Bearer secret"}
    path, trusts = certificate_in(tmp_path)
    options = ("--listen", "0.0.0.0:0", "--token-file", token_in(tmp_path))
    with serving(versions / "1", tmp_path / "log", *options, "--certificate", str(path)) as server:
        assert f"at https://0.0.0.0:{server.port}" in server.said()

        def ask(trusts: ssl.SSLContext) -> int:
            call = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusts)
            with contextlib.closing(call):
                return server.ask(body=ROWS, headers=right, connection=call)[0]

        def is_shown(trusts: ssl.SSLContext) -> bool:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                return ask(trusts) == 200
            return False

        assert ask(trusts) == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            server.ask(body=ROWS, headers=right)  # plain
        path.write_text("half of one")
        until(lambda: "still the one of before" in server.said(), "a word about it")
        assert ask(trusts) == 200
        _, trusts_next = certificate_in(tmp_path)
        until(lambda: is_shown(trusts_next), "the next certificate")
        assert not is_shown(trusts)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0, server.said()


def test_plain_http_is_served_on_request(versions: Path, tmp_path: Path) -> None:
    options = ("--listen", "0.0.0.0:0", "--token-file", token_in(tmp_path), "--insecure")
    with serving(versions / "1", tmp_path / "log", *options) as server:
        assert server.ask(body=ROWS, headers={"Authorization": "Bearer secret"})[0] == 200


def test_predictions_equal_brim_predict_exactly(tmp_path: Path) -> None:
    """Of the same rows computed together: a file of them is one chunk there and one
    request here.
    """
    file = tmp_path / "file.py"
    file.write_text(
        WITH_FUNCTION + "\n\ndef loss(output, target):\n"
        "    return nn.functional.binary_cross_entropy_with_logits(output, target)\n\n\n"
        "def optimizer(model):\n    return torch.optim.Adagrad(model.parameters(), lr=0.1)\n"
    )
    run_of(tmp_path / "data", WITH_FUNCTION, steps=(1,))
    rows, run = tmp_path / "data" / "rows.csv", tmp_path / "run"
    train(run, str(file), "--set", f"path={rows}", "--workers", "1")
    output = tmp_path / "out.parquet"
    use(tmp_path / "job", "predict", str(run), "--input", str(rows), "--output", str(output))
    bundle = tmp_path / "bundle"
    done = Driver().call("export", str(run), "--output", str(bundle), "--format", "bundle")
    assert "not in the bundle: packages that the training file imports" in done.stderr
    assert "0 rows" not in done.stderr, "its tables are small, and among the other weights"
    with rows.open() as lines:
        sent = [
            {name: cell for name, cell in row.items() if name != "sold"}
            for row in csv.DictReader(lines)
        ]
    with serving(bundle, tmp_path / "log") as server:
        answer = server.ask(body={"rows": sent})[1]
    predictions = np.array(answer["predictions"]["sold"], np.float32)
    assert np.array_equal(predictions, pq.read_table(output).column("sold").to_numpy())
    assert len(set(predictions.tolist())) > 100
