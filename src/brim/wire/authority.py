"""Authorities: one for each run that other hosts can join, and one for each cluster.

An authority is a key and a certificate that it has signed itself. It signs the certificates by
which the processes of its run or cluster know each other, and nobody outside trusts it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from brim.errors import ProtocolError
from brim.host.clock import wall
from brim.wire.identity import LIFETIME, Identity, Subject, fingerprint_of, server_name

# Clocks of hosts differ: nothing is lost where a certificate seems to be older than its key.
_CLOCK_TOLERANCE = timedelta(days=1)
_OF_AUTHORITIES = timedelta(days=3650)
# What is raised for keys, certificates and requests that are none, or of kinds that nobody here knows.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
_CURVE = ec.SECP256R1()  # what OpenSSL and gRPC's BoringSSL both take
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of its group
_DERIVED = b"the authority of a brim run"  # the use of a secret that a key is derived from
_DERIVED_BYTES = 48  # so much more than the order has that no key is likelier than another
_LONGEST_COMMON_NAME = 64  # characters, by the standard


class Authority:
    """Signs certificates for the identities of a run or a cluster.

    Args:
        key: private.
        certificate: its own.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key, self._certificate = key, certificate
        self.certificate = certificate.public_bytes(Encoding.PEM)
        self.fingerprint = fingerprint_of(self.certificate)
        names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        self.scope = str(names[0].value) if names else ""

    @classmethod
    def make(cls, scope: str) -> Authority:
        """Make a new one.

        Args:
            scope: `cluster`, or `run/RUN_ID`.
        """
        return cls._self_signed(ec.generate_private_key(_CURVE), scope)

    @classmethod
    def derived_from(cls, secret: bytes) -> Authority:
        """Return the authority of those that have this secret, a run's.

        Each of them makes it for itself: with the same key and name, and a certificate of its own.
        """
        stream = HKDF(hashes.SHA256(), _DERIVED_BYTES, salt=None, info=_DERIVED).derive(secret)
        key = ec.derive_private_key(1 + int.from_bytes(stream) % (_ORDER - 1), _CURVE)
        name = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()
        return cls._self_signed(key, f"run/{name}")

    @classmethod
    def _self_signed(cls, key: ec.EllipticCurvePrivateKey, scope: str) -> Authority:
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, "brim authority"),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, scope),
            ]
        )
        now = _now()
        public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_TOLERANCE)
            .not_valid_after(now + _OF_AUTHORITIES)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(public, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @property
    def pem(self) -> bytes:
        """Key and certificate, as a file has them; only its owner may read that."""
        return _pem_of(self._key) + self.certificate

    @classmethod
    def from_pem(cls, pem: bytes) -> Authority:
        """Raises ValueError where this is no authority, or one that can sign nothing any more."""
        try:
            key = load_pem_private_key(pem, None)
            certificate = x509.load_pem_x509_certificate(pem)
            certified = certificate.public_key()
        except TypeError as error:
            raise ValueError("its key is encrypted; need a key without a password") from error
        except _UNREADABLE as error:
            raise ValueError(str(error)) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != _CURVE.name:
            raise ValueError("not the key of an authority")
        if key.public_key() != certified:
            raise ValueError("key and certificate do not belong together")
        if not _may_sign(certificate):
            raise ValueError("its certificate is not that of an authority")
        if certificate.not_valid_after_utc <= _now():
            raise ValueError(f"its certificate expired at {certificate.not_valid_after_utc}")
        return cls(key, certificate)

    def issue(
        self, role: str, name: str = "", *, addresses: tuple[str, ...] = (), for_s: float = LIFETIME
    ) -> Identity:
        """Make a key and its certificate, for a process of this host.

        Args:
            role, name: see `Subject`.
            addresses: names and addresses of this host, for callers that go by these.
            for_s: seconds for which it is good.
        """
        key = ec.generate_private_key(_CURVE)
        signed = self._sign(key.public_key(), Subject(self.scope, role, name), addresses, for_s)
        return Identity(_pem_of(key), signed, self.certificate)

    def sign(self, request: bytes, subject: Subject, *, for_s: float = LIFETIME) -> bytes:
        """Return the certificate for the key of a request.

        Nothing else of the request counts.

        Args:
            request: PEM, of `requested`.
            subject: whose key this is.
            for_s: seconds for which the certificate is good.

        Raises:
            ProtocolError: it is no request, or not for such a key.
        """
        try:
            csr = x509.load_pem_x509_csr(request)
            key = csr.public_key()
            is_ours = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVE.name
            if not is_ours or not csr.is_signature_valid:
                raise ProtocolError("a request for a certificate of another kind of key")
        except _UNREADABLE as error:
            raise ProtocolError(f"no request for a certificate: {error}") from error
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return self._sign(key, subject, (), for_s)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: Subject,
        addresses: tuple[str, ...],
        for_s: float,
    ) -> bytes:
        now = _now()
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(subject.uri),
            x509.DNSName(server_name(subject.role)),
            *map(_address, addresses),
        ]
        common = x509.NameAttribute(NameOID.COMMON_NAME, subject.role[:_LONGEST_COMMON_NAME])
        of_authority = self._certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        ).value
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([common]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_TOLERANCE)
            .not_valid_after(now + timedelta(seconds=for_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_authority),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)


def requested() -> tuple[bytes, bytes]:
    """Make a key, and the request for its certificate; both PEM."""
    key = ec.generate_private_key(_CURVE)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return _pem_of(key), request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        found = certificate.extensions
        found.get_extension_for_class(x509.SubjectKeyIdentifier)
        return found.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, x509.DuplicateExtension, *_UNREADABLE):
        return False


def _now() -> datetime:
    return datetime.fromtimestamp(wall(), UTC)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _address(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
