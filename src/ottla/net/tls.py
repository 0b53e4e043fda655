"""Builds TLS contexts from settings with Kafka's names, and replaces them when files change.

PEM files and texts need the standard library only. PKCS#12 needs `cryptography` (the extra `security`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ottla.protocol.model.tls_settings import StoreSettings, TlsSettings
from ottla.protocol.model.x509 import Certificate, MalformedCertificateError, read_certificate

log = logging.getLogger("ottla.tls")

CHECK_INTERVAL_S = 1.0
"""How often files are checked for changes, at most."""
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_PEM_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class BadTlsError(Exception):
    """A key, certificate or TLS setting cannot be used. The message says which, without its content."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Builds the context of a listener. Raises BadTlsError."""
    if not settings.keystore.is_given:
        raise BadTlsError("a listener with TLS needs a certificate: set ssl.keystore.location")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE and not settings.truststore.is_given:
        raise BadTlsError(
            f"ssl.client.auth={settings.client_auth} needs the authorities of the clients: set ssl.truststore.location"
        )
    _restrict(context, settings)
    _load_keys(context, settings)
    if settings.truststore.is_given:
        context.load_verify_locations(cadata=_certificates(settings.truststore))
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Builds the context of a client. Without a trust store, the authorities of the system count. Raises
    BadTlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host
    _restrict(context, settings)
    if settings.truststore.is_given:
        context.load_verify_locations(cadata=_certificates(settings.truststore))
    else:
        context.load_default_certs()
    if settings.keystore.is_given:
        _load_keys(context, settings)
    return context


def own_certificate(settings: TlsSettings) -> Certificate | None:
    """Returns the certificate that this side presents, or None if it has none. Raises BadTlsError."""
    if not settings.keystore.is_given:
        return None
    chain, _ = _key_pair(settings)
    found = _PEM_CERTIFICATE.search(chain)
    if found is None:
        raise BadTlsError(f"{_place(settings.keystore)} has no certificate")
    try:
        return read_certificate(ssl.PEM_cert_to_DER_cert(found.group()))
    except MalformedCertificateError as cause:
        raise BadTlsError(f"{_place(settings.keystore)}: {cause}") from cause


class ReloadingContext:
    """A TLS context that follows its files. If a new file cannot be used, the last good one stays in use."""

    def __init__(self, settings: TlsSettings, build: Callable[[TlsSettings], ssl.SSLContext], purpose: str) -> None:
        """Loads the files. Raises BadTlsError."""
        self._settings = settings
        self._build = build
        self._purpose = purpose
        self._state = self._files_state()
        self._checked_s = time.monotonic()
        self._context = build(settings)
        self._certificate = own_certificate(settings)

    @property
    def certificate(self) -> Certificate | None:
        """The certificate that new connections present."""
        return self._certificate

    def context(self) -> ssl.SSLContext:
        """Returns the context with the newest files."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            self.reload_if_changed()
        return self._context

    def reload_if_changed(self) -> bool:
        """Loads the files again if they changed. Returns whether the context is a new one."""
        state = self._files_state()
        if state == self._state:
            return False
        self._state = state
        try:
            context, certificate = self._build(self._settings), own_certificate(self._settings)
        except BadTlsError as failure:
            log.error("%s: the changed certificates are not used: %s", self._purpose, failure)
            return False
        self._context, self._certificate = context, certificate
        log.info("%s: new connections use the changed certificates", self._purpose)
        return True

    def _files_state(self) -> tuple[object, ...]:
        return tuple(_file_state(store.location) for store in (self._settings.keystore, self._settings.truststore))


def _file_state(path: str | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.ciphers is not None:
        try:
            context.set_ciphers(settings.ciphers.replace(",", ":"))
        except ssl.SSLError as cause:
            raise BadTlsError(f"ssl.cipher.suites={settings.ciphers}: OpenSSL knows none of these suites") from cause


def _load_keys(context: ssl.SSLContext, settings: TlsSettings) -> None:
    store = settings.keystore
    password = settings.key_password or store.password or ""  # None would let OpenSSL ask at the terminal
    with _key_file(settings) as path:
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError) as cause:
            reason = getattr(cause, "reason", None) or "the password is wrong (ssl.key.password)"
            raise BadTlsError(f"{_place(store)} cannot be used: {reason}") from cause


def _key_pair(settings: TlsSettings) -> tuple[str, str]:
    """Returns the certificate chain and the key as PEM texts; the first has both if they come from one PEM file."""
    store = settings.keystore
    if store.text:
        return store.text, settings.key or ""
    if store.type == "PKCS12":
        return _pkcs12(store, wants_key=True)
    return _read(store).decode("utf-8", "replace"), ""


def _certificates(store: StoreSettings) -> str:
    if store.text:
        text = store.text
    elif store.type == "PKCS12":
        text, _ = _pkcs12(store, wants_key=False)
    else:
        text = _read(store).decode("utf-8", "replace")
    found = _PEM_CERTIFICATE.findall(text)
    if not found:
        raise BadTlsError(f"{_place(store)} has no certificate in PEM format")
    return "\n".join(found)


def _pkcs12(store: StoreSettings, *, wants_key: bool) -> tuple[str, str]:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as cause:
        raise BadTlsError(
            f"{_place(store)} is a PKCS12 store, for which 'cryptography' is needed: pip install 'ottla[security]'; or "
            "use PEM files"
        ) from cause
    password = store.password.encode() if store.password else None
    try:
        loaded = pkcs12.load_pkcs12(_read(store), password)
    except ValueError as cause:
        raise BadTlsError(f"{_place(store)} cannot be read: it is no PKCS12 store, or its password is wrong") from cause
    entries = [*([loaded.cert] if loaded.cert else []), *loaded.additional_certs]
    chain = "\n".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in entries)
    if not wants_key:
        return chain, ""
    if loaded.key is None or loaded.cert is None:
        raise BadTlsError(f"{_place(store)} has no private key with a certificate")
    return chain, loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _read(store: StoreSettings) -> bytes:
    assert store.location is not None
    try:
        data = Path(store.location).read_bytes()
    except OSError as cause:
        raise BadTlsError(f"{store.location} cannot be read: {(cause.strerror or str(cause)).lower()}") from cause
    if data[:4] == b"\xfe\xed\xfe\xed":
        raise BadTlsError(
            f"{store.location} is a Java key store (JKS); convert it: keytool -importkeystore -srckeystore "
            f"{store.location} -destkeystore new.p12 -deststoretype PKCS12"
        )
    return data


def _place(store: StoreSettings) -> str:
    return store.location or "ssl.keystore.certificate.chain or ssl.truststore.certificates"


@contextlib.contextmanager
def _key_file(settings: TlsSettings) -> Iterator[str]:
    """Yields the path of a PEM file with chain and key, because OpenSSL loads them from files only. A key that is not
    in such a file is written to one in memory or, without memory files (macOS), to one that only this user can read."""
    store = settings.keystore
    chain, key = _key_pair(settings)
    if store.location and store.type == "PEM":
        yield store.location
        return
    pem = f"{key}\n{chain}".encode()
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("ottla-key"), "wb", buffering=0) as memory:
            memory.write(pem)
            yield f"/proc/self/fd/{memory.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="ottla-", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        yield file.name
