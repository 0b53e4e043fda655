"""SCRAM (RFC 5802): its calculations, its messages, and the client's side of an exchange.

As in Kafka, names and passwords are UTF-8 without further preparation, and there is no channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, field

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""The range that Kafka permits for credentials."""
CLIENT_ITERATIONS_MAX = 1_000_000
"""A server that demands more would keep the client busy for minutes."""
NONCE_BYTES = 18
_NO_BINDING = b"n,,"


class ScramError(Exception):
    """The exchange failed. The message is written for a person, without secrets."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The credential that a server stores in place of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Derives a key from a password; slow on purpose."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns what a server stores for a salted password."""
    stored_key = hashlib.new(HASHES[mechanism], keyed(mechanism, salted, b"Client Key")).digest()
    return ScramCredential(salt, stored_key, keyed(mechanism, salted, b"Server Key"), iterations)


def new_credential(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS_MIN) -> ScramCredential:
    """Returns what a server stores for a password."""
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def keyed(mechanism: str, key: bytes, message: bytes) -> bytes:
    """Returns the HMAC of a message."""
    return hmac.digest(key, message, HASHES[mechanism])


def digest(mechanism: str, message: bytes) -> bytes:
    """Returns the hash of a message."""
    return hashlib.new(HASHES[mechanism], message).digest()


def exclusive_or(left: bytes, right: bytes) -> bytes:
    """Returns the bitwise exclusive or of two byte strings of the same length."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def attributes(message: bytes) -> dict[str, str]:
    """Splits a message into its attributes. Raises ScramError."""
    try:
        pairs = [part.partition("=") for part in message.decode("utf-8").split(",")]
    except UnicodeDecodeError as cause:
        raise ScramError("a SCRAM message is not UTF-8") from cause
    found: dict[str, str] = {}
    for name, equals, value in pairs:
        if not equals or not name.isascii() or not name.isalpha() or name in found:
            raise ScramError("a SCRAM message is malformed")
        found[name] = value
    return found


def decoded(text: str) -> bytes:
    """Decodes base64. Raises ScramError."""
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as cause:
        raise ScramError("a SCRAM message has invalid base64") from cause


def encoded(data: bytes) -> str:
    """Encodes base64."""
    return b64encode(data).decode("ascii")


def escape_name(name: str) -> str:
    """Escapes the characters of a name that separate attributes."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """Reverses `escape_name`. Raises ScramError for an equals sign that begins no escape."""
    parts = text.split("=")
    for part in parts[1:]:
        if part[:2] not in ("2C", "3D"):
            raise ScramError("a SCRAM message has an invalid user name")
    return parts[0] + "".join((("," if part[:2] == "2C" else "=") + part[2:]) for part in parts[1:])


class ScramClient:
    """The client's side. Call `first`, then `final` with the server's reply, then `verify` with the last one."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: bytes) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = encoded(nonce)
        self._first_bare = f"n={escape_name(username)},r={self._nonce}".encode()
        self._expected = b""

    def first(self) -> bytes:
        """Returns the first message."""
        return _NO_BINDING + self._first_bare

    def final(self, challenge: bytes) -> bytes:
        """Returns the proof for the server's challenge. Raises ScramError."""
        found = attributes(challenge)
        nonce, salt_text, count = found.get("r", ""), found.get("s"), found.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or salt_text is None or not count.isdecimal():
            raise ScramError("the server sent an invalid SCRAM challenge")
        iterations = int(count) if len(count) < 10 else CLIENT_ITERATIONS_MAX + 1
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramError("the server demands a number of SCRAM iterations that is too low or too high")
        salted = salted_password(self._mechanism, self._password, decoded(salt_text), iterations)
        without_proof = f"c={encoded(_NO_BINDING)},r={nonce}".encode()
        signed = b",".join([self._first_bare, challenge, without_proof])
        client_key = keyed(self._mechanism, salted, b"Client Key")
        signature = keyed(self._mechanism, digest(self._mechanism, client_key), signed)
        self._expected = keyed(self._mechanism, keyed(self._mechanism, salted, b"Server Key"), signed)
        return without_proof + b",p=" + encoded(exclusive_or(client_key, signature)).encode()

    def verify(self, reply: bytes) -> None:
        """Checks that the server knows the credential too. Raises ScramError."""
        found = attributes(reply)
        if "e" in found:
            raise ScramError(f"the server rejected the SCRAM exchange: {found['e']}")
        if not hmac.compare_digest(decoded(found.get("v", "")), self._expected):
            raise ScramError("the server does not know this user's credential; it may be an impostor")
