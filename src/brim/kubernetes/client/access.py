"""The address of an API server, the certificates to trust there, and own credentials.

A kubeconfig says so, as for kubectl: the files that `$KUBECONFIG` names, where the first one that
says something is right, or else `~/.kube/config`. In a pod, where there are none, the files of its
service account do.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import msgspec

from brim.errors import EnvironmentFault, SpecError, did_you_mean
from brim.host.anonymous import anonymous_file
from brim.kubernetes.client.credentials import (
    Credentials,
    ExecPlugin,
    FixedProof,
    PluginProof,
    Proof,
    TokenFromFile,
    basic,
    bearer,
)
from brim.storage.yaml_file import read_yaml
from brim.wire.listening import is_loopback

KUBECONFIG = "KUBECONFIG"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An API server, and how to be heard there.

    Args:
        url: `https://HOST:PORT`, maybe with a path.
        namespace: in which objects are meant that say nothing else.
        credentials: to show.
        authority: certificates to trust, PEM; empty: those that this host trusts.
        server_name: that its certificate must have; empty: the host of the URL.
        insecure: no certificate is checked, as a kubeconfig may say.
        proxy: URL of an HTTP proxy on the way; empty: none.
        source: where this was found, for errors.
    """

    url: str
    namespace: str
    credentials: Credentials
    authority: str = ""
    server_name: str = ""
    insecure: bool = False
    proxy: str = ""
    source: str = ""

    def tls(self, proof: Proof) -> ssl.SSLContext | None:
        """Return a connection's trust and certificate; None: it is not encrypted.

        Raises:
            SpecError: a certificate or a key makes no sense.
        """
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
        except (ssl.SSLError, ValueError) as error:
            raise SpecError(
                f"certificate-authority of {self.source}", got=str(error), need="certificates, PEM"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if proof.certificate:
            try:
                _show(context, proof)
            except (ssl.SSLError, ValueError) as error:
                raise SpecError(
                    f"client-certificate of {self.source}",
                    got=str(error),
                    need="a certificate and its key, PEM, without a password",
                ) from None
        return context


def find_access(
    environment: Mapping[str, str],
    *,
    context: str = "",
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """Find out where the API server is, and how to be heard there.

    Args:
        environment: of this process.
        context: of the kubeconfig; empty: its `current-context`.
        home: the folder of the user, which `.kube/config` is in; None: as `environment` has it.
        service_account: the folder with the files of a pod's.

    Raises:
        SpecError: a kubeconfig has impossible values; or there is none.
        EnvironmentFault: a file that it names cannot be read.
    """
    named = [
        Path(path_text)
        for path_text in environment.get(KUBECONFIG, "").split(os.pathsep)
        if path_text
    ]
    folder = home or Path(environment.get("HOME") or Path.home())
    files = [path for path in named or [folder / ".kube" / "config"] if path.exists()]
    if files:
        return _from_files(files, context, environment)
    if named:
        raise SpecError(
            KUBECONFIG,
            got=environment[KUBECONFIG],
            need="at least one file that exists",
            hint=f"unset {KUBECONFIG} to use {folder / '.kube' / 'config'}",
        )
    if environment.get(_HOST) and not context:
        return _in_cluster(environment, service_account)
    raise SpecError(
        KUBECONFIG,
        got="no file, and this is no pod of a cluster",
        need="a kubeconfig that names an API server",
        hint=f"export {KUBECONFIG}=FILE, where `kubectl --kubeconfig FILE version` works",
    )


def _in_cluster(environment: Mapping[str, str], folder: Path) -> Access:
    host, port = environment[_HOST], environment.get(_PORT) or "443"
    token, authority = folder / "token", folder / "ca.crt"
    for file in (token, authority):
        if not file.exists():
            raise EnvironmentFault(
                f"{file} is missing: the pod must have a service account, and not "
                "automountServiceAccountToken: false"
            )
    namespace = folder / "namespace"
    return Access(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=_read(namespace).decode().strip() if namespace.exists() else "default",
        credentials=TokenFromFile(token),
        authority=_read(authority).decode(),
        source=str(folder),
    )


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec_plugin: ExecPlugin | None = msgspec.field(default=None, name="exec")
    auth_provider: dict[str, Any] | None = None
    as_user: str = msgspec.field(default="", name="as")


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context | None = None


class _Kubeconfig(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(frozen=True, slots=True)
class _Placed(Generic[_T]):
    """A part of a kubeconfig, and the file that it is in."""

    part: _T
    file: Path

    def path(self, name: str) -> Path:
        return self.file.parent / name


class _Merged:
    """Several kubeconfigs as one: of parts of the same name the first counts."""

    def __init__(self, files: list[Path]) -> None:
        self.current = ""
        self.clusters: dict[str, _Placed[_Cluster]] = {}
        self.users: dict[str, _Placed[_User]] = {}
        self.contexts: dict[str, _Placed[_Context]] = {}
        for file in files:
            config = _parsed(file)
            self.current = self.current or config.current_context or ""
            for cluster in config.clusters or ():
                found = _Placed(cluster.cluster or _Cluster(), file)
                self.clusters.setdefault(cluster.name, found)
            for user in config.users or ():
                self.users.setdefault(user.name, _Placed(user.user or _User(), file))
            for context in config.contexts or ():
                self.contexts.setdefault(context.name, _Placed(context.context or _Context(), file))


def _parsed(file: Path) -> _Kubeconfig:
    content = read_yaml(file)
    try:
        return msgspec.convert(content if content is not None else {}, _Kubeconfig)
    except msgspec.ValidationError as error:
        raise SpecError(str(file), got=str(error), need="a kubeconfig") from None


def _from_files(files: list[Path], context: str, environment: Mapping[str, str]) -> Access:
    merged, source = _Merged(files), os.pathsep.join(map(str, files))
    name = context or merged.current
    if not name:
        raise SpecError(
            f"current-context of {source}",
            got="none",
            need="the name of a context",
            hint="kubectl config use-context NAME",
        )
    chosen = _entry_of(merged.contexts, name, "context", source).part
    cluster = _entry_of(merged.clusters, chosen.cluster, f"cluster of context {name!r}", source)
    user: _Placed[_User] = (
        _entry_of(merged.users, chosen.user, f"user of context {name!r}", source)
        if chosen.user
        else _Placed(_User(), cluster.file)
    )
    url = cluster.part.server
    if not _is_safe(url):  # a token that passes through a network as it is is everybody's
        raise SpecError(
            f"server of cluster {chosen.cluster!r} in {cluster.file}",
            got=repr(url) if "@" not in url else "a URL with '@' in it",  # maybe behind a password
            need="https://HOST:PORT, or http://HOST:PORT of this host",
        )
    authority = _content(cluster, "certificate-authority")
    return Access(
        url=url,
        namespace=chosen.namespace or "default",
        credentials=_credentials(user, cluster, authority, environment),
        authority=authority.decode(errors="replace"),
        server_name=cluster.part.tls_server_name,
        insecure=cluster.part.insecure_skip_tls_verify,
        proxy=_proxy(cluster),
        source=source,
    )


def _is_safe(url: str) -> bool:
    """Return whether a URL is one of HTTPS, or of this host, to which paths can be added.

    >>> [_is_safe(url) for url in ("https://a", "http://127.0.0.1:8001", "http://a", "a:6443")]
    [True, True, False, False]
    >>> [_is_safe(url) for url in ("https://me:secret@a", "https://a/?x", "https://a/#x")]
    [False, False, False]
    """
    if any(sign in url for sign in "@?#"):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )


def _entry_of(
    named: Mapping[str, _Placed[_T]], name: str, subject: str, source: str
) -> _Placed[_T]:
    if name not in named:
        raise SpecError(
            f"{subject} in {source}",
            got=repr(name),
            need="the name of one that is there",
            hint=did_you_mean(name, named),
        )
    return named[name]


def _credentials(
    user: _Placed[_User],
    cluster: _Placed[_Cluster],
    authority: bytes,
    environment: Mapping[str, str],
) -> Credentials:
    part = user.part
    for field, value in (("as", part.as_user), ("auth-provider", part.auth_provider)):
        if value:
            raise SpecError(
                f"{field} of a user in {user.file}",
                got=str(value) if isinstance(value, str) else "a plugin of kubectl before 1.26",
                need="a token, a certificate, a password or exec",
                hint="use a service account's token: kubectl create token NAME",
            )
    certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
    if bool(certificate) != bool(key):
        lacks = "client-key" if certificate else "client-certificate"
        raise SpecError(f"{lacks} of a user in {user.file}", got="none", need="both or neither")
    proof = Proof("", certificate, key)
    if part.token_file:
        return TokenFromFile(user.path(part.token_file), proof)
    if part.token:
        return FixedProof(Proof(bearer(part.token), certificate, key))
    if part.username:
        return FixedProof(Proof(basic(part.username, part.password), certificate, key))
    if part.exec_plugin and not certificate:
        exec_fields = {
            "server": cluster.part.server,
            "certificate-authority-data": base64.b64encode(authority).decode(),
            "insecure-skip-tls-verify": cluster.part.insecure_skip_tls_verify,
        }
        return PluginProof(
            _with_path(part.exec_plugin, user), cluster=exec_fields, environment=environment
        )
    return FixedProof(proof)


def _with_path(plugin: ExecPlugin, user: _Placed[_User]) -> ExecPlugin:
    """A command with a slash in it is a path from the folder of its kubeconfig."""
    if os.sep not in plugin.command:
        return plugin
    return msgspec.structs.replace(plugin, command=str(user.path(plugin.command)))


def _content(placed: _Placed[Any], field: str) -> bytes:
    """Return a field's data, or else the content of the file that it names."""
    attribute = field.replace("-", "_")
    data, name = getattr(placed.part, f"{attribute}_data"), getattr(placed.part, attribute)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise SpecError(
                f"{field}-data in {placed.file}", got="something else", need="base64"
            ) from None
    return _read(placed.path(name)) if name else b""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror}") from error


def _proxy(cluster: _Placed[_Cluster]) -> str:
    """Return the proxy that the kubeconfig names, or else this process's environment."""
    named, url = cluster.part.proxy_url, urlsplit(cluster.part.server)
    if not named and not proxy_bypass(url.hostname or ""):
        named = getproxies_environment().get(url.scheme, "")
    if named and not named.startswith(("http://", "https://")):
        raise SpecError(
            f"proxy-url of a cluster in {cluster.file}", got=named, need="the URL of an HTTP proxy"
        )
    return named


def _show(context: ssl.SSLContext, proof: Proof) -> None:
    """Have a connection show a certificate: Python takes it from a file alone."""
    descriptor = anonymous_file("brim-kubernetes")
    try:
        os.write(descriptor, proof.certificate + b"\n" + proof.key)  # into memory: all of it
        context.load_cert_chain(f"/dev/fd/{descriptor}", password=_no_password)
    finally:
        os.close(descriptor)


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # else OpenSSL would ask on the terminal
