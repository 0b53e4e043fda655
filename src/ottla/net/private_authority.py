"""A private certificate authority, for tests and for small clusters. Needs `cryptography` (the extra `security`).

Keys are on the curve P-256. Files that contain a key are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397
BACKDATED = timedelta(hours=1)
"""Certificates are valid a little before they are issued, because clocks differ."""
CERTIFICATE_FILE, KEY_FILE = "ca.pem", "ca.key"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its private key, as PEM texts."""

    certificate: str
    key: str

    @property
    def pem(self) -> str:
        """Both in one text, the form of a PEM key store."""
        return self.key + self.certificate


class PrivateAuthority:
    """A certificate authority that exists as two files in a directory, `ca.pem` and `ca.key`."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def new(cls, name: str = "Ottla private CA", days: int = AUTHORITY_DAYS) -> PrivateAuthority:
        """Creates an authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key, days).add_extension(x509.BasicConstraints(True, 0), critical=True)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, directory: Path) -> PrivateAuthority:
        """Loads an authority. Raises OSError or ValueError."""
        certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE_FILE).read_bytes())
        key = load_pem_private_key((directory / KEY_FILE).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{directory / KEY_FILE} is not a key of a private authority")
        return cls(certificate, key)

    def save(self, directory: Path) -> None:
        """Writes the files of the authority. Raises FileExistsError rather than replace a key."""
        directory.mkdir(parents=True, exist_ok=True)
        write_private(directory / KEY_FILE, _key_text(self._key), replaces=False)
        (directory / CERTIFICATE_FILE).write_text(self.certificate)

    @property
    def certificate(self) -> str:
        """The certificate of the authority as PEM text, the content of a trust store."""
        return self._certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS, unit: str = "") -> KeyPair:
        """Issues a certificate for a broker, with its host names and addresses, or for a client, without."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._certificate.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return KeyPair(signed.public_bytes(Encoding.PEM).decode(), _key_text(key))


def write_private(path: Path, text: str, *, replaces: bool = True) -> None:
    """Writes a file that only its owner can read, atomically if it replaces another."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    target = path.with_name(f".{path.name}.{os.getpid()}") if replaces else path
    with os.fdopen(os.open(target, flags, 0o600), "w") as file:
        file.write(text)
    if replaces:
        target.replace(path)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
