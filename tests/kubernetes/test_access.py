"""Where an API server is and how to be heard there, as a kubeconfig or a pod says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import socket
import ssl
import stat
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brim.errors import EnvironmentFault, SpecError
from brim.kubernetes.client.access import KUBECONFIG, Access, find_access
from brim.kubernetes.client.api_server import ApiServer
from brim.kubernetes.client.credentials import (
    ExecEnvironment,
    ExecPlugin,
    FixedProof,
    PluginProof,
    Proof,
    TokenFromFile,
)
from brim.kubernetes.client.refusals import NoAnswer
from brim.kubernetes.client.resources import PlainObject, Resource


def certificate(owner: str = "someone") -> tuple[bytes, bytes]:
    """A certificate of its own for this host, and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, owner)])
    host_name = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(host_name, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return builder.public_bytes(serialization.Encoding.PEM), private


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def config(
    user: Mapping[str, object] | None = None,
    cluster: Mapping[str, object] | None = None,
    *,
    name: str = "here",
    current: str | None = "here",
    namespace: str = "",
) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "preferences": {},
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}:6443", **(cluster or {})}}
        ],
        "users": [{"name": name, "user": dict(user or {})}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}
        ],
    }


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def access(tmp_path: Path, content: object, **environment: str) -> Access:
    file = write(tmp_path / "config", content)
    return find_access({KUBECONFIG: str(file), **environment}, home=tmp_path)


def proof(found: Access) -> Proof:
    return asyncio.run(found.credentials.proof())


def refused(tmp_path: Path, content: object) -> str:
    try:
        found = access(tmp_path, content)
        found.tls(proof(found))
    except (SpecError, EnvironmentFault) as error:
        return str(error)
    pytest.fail("it was taken")


def test_a_kubeconfig_with_data(tmp_path: Path) -> None:
    certificate_pem, key = certificate()
    data = {"client-certificate-data": encoded(certificate_pem), "client-key-data": encoded(key)}
    trusted = {"certificate-authority-data": encoded(certificate_pem), "tls-server-name": "other"}
    found = access(tmp_path, config(data, trusted, namespace="team"))
    assert (found.url, found.namespace, found.server_name) == ("https://here:6443", "team", "other")
    assert proof(found) == Proof("", certificate_pem, key)
    tls = found.tls(proof(found))
    assert tls is not None
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert (
        tls.cert_store_stats()["x509"] == 1
    )  # it trusts that one alone, and not what the host does


def test_a_kubeconfig_with_files_beside_it(tmp_path: Path) -> None:
    certificate_pem, key = certificate()
    (tmp_path / "certs").mkdir()
    for name, content in (
        ("ca.crt", certificate_pem),
        ("me.crt", certificate_pem),
        ("me.key", key),
    ):
        (tmp_path / "certs" / name).write_bytes(content)
    user = {"client-certificate": "certs/me.crt", "client-key": "certs/me.key"}
    found = access(tmp_path, config(user, {"certificate-authority": "certs/ca.crt"}))
    assert proof(found) == Proof("", certificate_pem, key)
    assert found.authority == certificate_pem.decode()
    found.tls(proof(found))


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
        ({"token": "abc", "username": "u", "password": "p"}, "Bearer abc"),
        ({}, ""),
    ],
)
def test_a_user_is_known_by_a_header(tmp_path: Path, user: dict[str, object], header: str) -> None:
    assert proof(access(tmp_path, config(user))).authorization == header


def test_the_first_kubeconfig_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "1", config({"token": "first"}, name="a", current=None))
    second = config({"token": "second"}, {"server": "https://elsewhere"}, name="a", current="b")
    second["clusters"] = [*config(name="a")["clusters"], *config(name="b")["clusters"]]  # type: ignore[misc]
    second["contexts"] = config(name="b")["contexts"]
    second["users"] = [
        {"name": "b", "user": {"tokenFile": "token"}},
        {"name": "a", "user": {"token": "second"}},
    ]
    second_file = write(tmp_path / "deeper" / "2", second)
    (tmp_path / "deeper" / "token").write_text("of b\n")
    environment = {
        KUBECONFIG: os.pathsep.join(map(str, (tmp_path / "missing", first, second_file)))
    }
    assert proof(find_access(environment)).authorization == "Bearer of b"
    assert proof(find_access(environment, context="a")).authorization == "Bearer first"


def test_without_a_name_the_users_own_is_read(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", config())
    assert find_access({"HOME": str(tmp_path)}).url == "https://here:6443"


def test_in_a_pod_the_service_account_says_it(tmp_path: Path) -> None:
    certificate_pem, _ = certificate()
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "..data").mkdir()
    for name, content in (("token", b"one"), ("ca.crt", certificate_pem), ("namespace", b"brim\n")):
        (folder / "..data" / name).write_bytes(content)
        (folder / name).symlink_to(f"..data/{name}")  # as a kubelet has it
    pod = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = find_access(pod, home=tmp_path, service_account=folder)
    assert (found.url, found.namespace) == ("https://[fd00::1]:443", "brim")
    assert proof(found).authorization == "Bearer one"
    (folder / "token").unlink()
    with pytest.raises(EnvironmentFault, match="automountServiceAccountToken"):
        find_access(pod, home=tmp_path, service_account=folder)


def test_token_files_are_reread_each_minute(tmp_path: Path) -> None:
    now = 100.0
    file = tmp_path / "token"
    file.write_text("one\n")
    credentials = TokenFromFile(file, now=lambda: now)

    async def proof_shown(*, renewed: bool = False) -> str:
        return (await credentials.proof(renewed=renewed)).authorization

    assert asyncio.run(proof_shown()) == "Bearer one"
    file.write_text("two\n")
    assert asyncio.run(proof_shown()) == "Bearer one"
    now = 161.0
    assert asyncio.run(proof_shown()) == "Bearer two"
    file.write_text("three\n")
    assert asyncio.run(proof_shown(renewed=True)) == "Bearer three"  # the last one was refused
    file.write_text("fo\nur")
    now = 300.0
    assert asyncio.run(proof_shown()) == "Bearer three"
    file.unlink()
    now = 400.0
    assert asyncio.run(proof_shown()) == "Bearer three"
    with pytest.raises(EnvironmentFault, match="cannot read the token"):
        asyncio.run(TokenFromFile(file).proof())


def test_what_cannot_be_is_said_with_its_place(tmp_path: Path) -> None:
    certificate_pem, _ = certificate()
    assert "need a kubeconfig" in refused(tmp_path, {"clusters": "x"})
    assert "valid YAML" in refused(tmp_path, "a: [")
    assert "kubectl config use-context" in refused(tmp_path, config(current=None))
    assert "did you mean 'here'?" in refused(tmp_path, config(current="hare"))
    assert "https://HOST:PORT" in refused(tmp_path, config(cluster={"server": "here:6443"}))
    assert "of this host" in refused(tmp_path, config(cluster={"server": "http://10.0.0.1"}))
    assert "base64" in refused(tmp_path, config(cluster={"certificate-authority-data": "%"}))
    for url in ("https://me:secret@here", "https://here/#x", "https://here/?x"):
        message = refused(tmp_path, config(cluster={"server": url}))
        assert "https://HOST:PORT" in message
        assert "secret" not in message
    message = refused(tmp_path, config({"token": "secret\nX-Remote-User: root"}))
    assert "printable ASCII" in message
    assert "secret" not in message
    lost = {"certificate-authority": "lost.crt"}
    assert "lost.crt: No such file" in refused(tmp_path, config(cluster=lost))
    half = {"client-certificate-data": encoded(certificate_pem)}
    assert "client-key of a user" in refused(tmp_path, config(half))
    mismatched = {**half, "client-key-data": encoded(certificate()[1])}
    assert "a certificate and its key" in refused(tmp_path, config(mismatched))
    assert "certificates, PEM" in refused(
        tmp_path, config(cluster={"certificate-authority-data": encoded(b"nonsense")})
    )
    assert "before 1.26" in refused(tmp_path, config({"auth-provider": {"name": "gcp"}}))
    assert "kubectl create token" in refused(tmp_path, config({"as": "root", "token": "x"}))
    assert "HTTP proxy" in refused(tmp_path, config(cluster={"proxy-url": "socks5://x"}))
    asks = {"command": "x", "interactiveMode": "Always"}
    assert "cannot answer a prompt" in refused(tmp_path, config({"exec": asks}))


def test_encrypted_keys_do_not_prompt(tmp_path: Path) -> None:
    certificate_pem, _ = certificate()
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    user = {"client-certificate-data": encoded(certificate_pem), "client-key-data": encoded(locked)}
    assert "without a password" in refused(tmp_path, config(user))


def test_missing_configuration_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no file, and this is no pod[^\0]*export KUBECONFIG="):
        find_access({}, home=tmp_path)
    with pytest.raises(SpecError, match="at least one file that exists"):
        find_access({KUBECONFIG: str(tmp_path / "lost")}, home=tmp_path)


def test_a_proof_is_shown_to_nobody_else() -> None:
    assert "secret" not in repr(Proof("Bearer secret", b"x", b"secret"))


@contextlib.asynccontextmanager
async def who_calls(tmp_path: Path, *trusted: bytes) -> AsyncIterator[tuple[str, bytes]]:
    """A server that answers with the owner of the certificate that its caller shows.

    Yields its URL, and the certificate by which to know it.
    """
    certificate_pem, key = certificate("server")
    pair = tmp_path / "server.pem"
    pair.write_bytes(certificate_pem + key)
    tls = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata="".join(pem.decode() for pem in trusted)
    )
    tls.load_cert_chain(pair)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                subject = writer.get_extra_info("peercert")["subject"]
                body = json.dumps({"owner": subject[0][0][1]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", certificate_pem


def test_renewed_certificates_are_shown(tmp_path: Path) -> None:
    first, second = certificate("first"), certificate("second")

    to_show = [Proof("", *first), Proof("", *first), Proof("", *second)]

    class Renewed:
        async def proof(self, *, renewed: bool = False) -> Proof:
            return to_show.pop(0)

    async def call() -> list[str]:
        async with who_calls(tmp_path, first[0], second[0]) as (url, authority):
            access = Access(
                url=url, namespace="", credentials=Renewed(), authority=authority.decode()
            )
            async with ApiServer(access) as server:
                nodes = Resource("v1", "nodes", PlainObject, namespaced=False)
                return [(await server.get(nodes, "n"))["owner"] for _ in range(3)]

    assert asyncio.run(call()) == ["first", "first", "second"]


@contextlib.contextmanager
def who_says_no_farewell(tmp_path: Path, answer: bytes) -> Iterator[Access]:
    """A server that answers one request with these bytes, and from then on hears nothing."""
    certificate_pem, key = certificate("server")
    pair = tmp_path / "server.pem"
    pair.write_bytes(certificate_pem + key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair)
    is_over = threading.Event()

    def serve(listener: socket.socket) -> None:
        link, _ = listener.accept()
        # On a busy machine its caller may have given up before it says anything.
        with contextlib.suppress(OSError), tls.wrap_socket(link, server_side=True) as secured:
            secured.recv(1 << 16)
            secured.sendall(answer)
            is_over.wait(60.0)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,), daemon=True)
        serving.start()
        try:
            yield Access(
                url=f"https://127.0.0.1:{listener.getsockname()[1]}",
                namespace="",
                credentials=FixedProof(Proof("")),
                authority=certificate_pem.decode(),
            )
        finally:
            is_over.set()
            serving.join(60.0)


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
EVENT = b'{"type":"BOOKMARK","object":{}}\n'


@pytest.mark.parametrize(
    "answer", [b"", HEADERS, HEADERS + EVENT], ids=["nothing", "half", "an event"]
)
def test_useless_connections_close_without_farewell(tmp_path: Path, answer: bytes) -> None:
    """Or it would be there after the loop that used it has ended, until somebody collects it."""
    nodes = Resource("v1", "nodes", PlainObject, namespaced=False)

    async def call(access: Access) -> None:
        timeout = 60.0 if answer.endswith(EVENT) else 0.5  # for what comes, and for what does not
        async with ApiServer(access, timeout=timeout) as server:
            if answer.endswith(EVENT):
                async with server.watch(nodes, version="1", seconds=60.0, silence=60.0) as events:
                    await anext(events)
            else:
                with pytest.raises(NoAnswer):
                    await server.get(nodes, "n")

    with who_says_no_farewell(tmp_path, answer) as access:
        gc.collect()  # what others have left
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(call(access))
            gc.collect()
    assert [str(warning.message) for warning in caught] == []


# A plugin -----------------------------------------------------------------------------------------


def plugin(tmp_path: Path, body: str, **fields: object) -> PluginProof:
    """A plugin that runs this Python, which has `count`, the number of its runs so far."""
    program = tmp_path / "plugin.py"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, time, pathlib\n"
        f"counts = pathlib.Path({str(tmp_path / 'counts')!r})\n"
        "count = len(counts.read_text()) if counts.exists() else 0\n"
        "counts.write_text('x' * (count + 1))\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "def say(api='client.authentication.k8s.io/v1', **status):\n"
        "    print(json.dumps({'kind': 'ExecCredential', 'apiVersion': api, 'status': status}))\n"
        f"{body}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    settings = {"timeout": 20.0, **{key: fields.pop(key) for key in ("timeout",) if key in fields}}
    return PluginProof(
        ExecPlugin(command=str(program), **fields),  # type: ignore[arg-type]
        cluster={"server": "https://here:6443"},
        environment=dict(os.environ),
        **settings,  # type: ignore[arg-type]
    )


def proofs(credentials: PluginProof, *renewed: bool) -> list[str]:
    async def ask() -> list[str]:
        return [
            (await credentials.proof(renewed=is_renewed)).authorization for is_renewed in renewed
        ]

    return asyncio.run(ask())


def test_plugins_run_once_until_refused(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, "say(token=f'run {count}')")
    assert proofs(credentials, False, False, True, False) == [
        "Bearer run 0",
        "Bearer run 0",
        "Bearer run 1",
        "Bearer run 1",
    ]


def test_expired_tokens_run_the_plugin_again(tmp_path: Path) -> None:
    soon_text = (datetime.now(UTC) + timedelta(seconds=5)).isoformat().replace("+00:00", "Z")
    credentials = plugin(
        tmp_path, f"say(token=f'run {{count}}', expirationTimestamp='{soon_text}')"
    )
    assert proofs(credentials, False, False) == ["Bearer run 0", "Bearer run 1"]
    later_text = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    credentials = plugin(
        tmp_path, f"say(token=f'run {{count}}', expirationTimestamp='{later_text}')"
    )
    assert proofs(credentials, False, False) == ["Bearer run 2", "Bearer run 2"]


def test_many_requests_wait_for_one_run(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, "say(token=f'run {count}')")

    async def ask() -> set[str]:
        found = await asyncio.gather(*(credentials.proof() for _ in range(8)))
        second_proofs = await asyncio.gather(*(credentials.proof(renewed=True) for _ in range(8)))
        return {proof.authorization for proof in (*found, *second_proofs)}

    assert asyncio.run(ask()) == {"Bearer run 0", "Bearer run 1"}


def test_a_plugin_is_told_what_it_may_know(tmp_path: Path) -> None:
    words = "say(token=info['spec'].get('cluster', {}).get('server', 'nothing') + os.environ.get('X', ''))"
    assert proofs(plugin(tmp_path, words), False) == ["Bearer nothing"]
    env = (ExecEnvironment("X", "!"),)
    plugin_credentials = plugin(tmp_path, words, provide_cluster_info=True, env=env)
    assert proofs(plugin_credentials, False) == ["Bearer https://here:6443!"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('not logged in')", "ended with 1: not logged in"),
        ("print('hello')", "printed no ExecCredential"),
        ("print('x' * (3 << 20))", "printed more than 1 MiB"),
        ("sys.stderr.write('x' * (3 << 20) + 'not logged in'); sys.exit(1)", "1: x+not logged in"),
        (r"say(token='a\nb')", "a token with line breaks"),
        ("say()", "neither a token nor a certificate"),
        ("say('client.authentication.k8s.io/v1beta1', token='x')", "v1beta1, and not"),
        ("time.sleep(3600)", "did not end within"),
    ],
)
def test_a_plugin_that_gives_nothing_is_named(tmp_path: Path, body: str, says: str) -> None:
    timeout = 1.0 if "sleep" in body else 20.0
    with pytest.raises(EnvironmentFault, match=says) as error:
        proofs(plugin(tmp_path, body, timeout=timeout), False)
    assert "plugin.py" in str(error.value)
    assert error.value.retryable


def test_missing_plugins_are_explained(tmp_path: Path) -> None:
    described = {"command": "brim-no-such-plugin", "installHint": "apt install it"}
    found = access(
        tmp_path, config({"exec": {"apiVersion": "client.authentication.k8s.io/v1", **described}})
    )
    with pytest.raises(EnvironmentFault, match="apt install it"):
        proof(found)


def test_a_plugin_beside_its_kubeconfig_is_found(tmp_path: Path) -> None:
    plugin(tmp_path, "say(token='found')")
    found = access(
        tmp_path,
        config(
            {"exec": {"command": "./plugin.py", "apiVersion": "client.authentication.k8s.io/v1"}}
        ),
        **dict(os.environ),
    )
    assert proof(found).authorization == "Bearer found"
