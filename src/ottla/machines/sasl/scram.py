"""The server's side of SCRAM (RFC 5802).

An unknown user gets a challenge with a salt that is derived from its name and a secret of the cluster. It is the same
each time and on every broker, as a real one would be, so a client cannot find out which users exist.
"""

from __future__ import annotations

import hmac
from enum import Enum, auto

from ottla.machines.sasl.outcomes import Authenticated, Challenge, Outcome, Rejected
from ottla.protocol.sasl.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramError,
    attributes,
    decoded,
    digest,
    encoded,
    exclusive_or,
    keyed,
    unescape_name,
)

MESSAGE_BYTES_MAX = 4096
FAKE_SALT_BYTES = 24


class _State(Enum):
    FIRST = auto()
    CREDENTIAL = auto()
    FINAL = auto()
    OVER = auto()


class ScramServer:
    """One exchange: `receive_first`, then `challenge` with the user's credential, then `receive_final`."""

    def __init__(self, mechanism: str, nonce: bytes) -> None:
        """`nonce` is random and never used twice."""
        self._mechanism = mechanism
        self._server_nonce = encoded(nonce)
        self._state = _State.FIRST
        self._binding = b""
        self._first_bare = b""
        self._client_nonce = ""
        self._challenge = b""
        self._credential: ScramCredential | None = None
        self._user = ""

    @property
    def expects_first(self) -> bool:
        """Whether the exchange has not begun."""
        return self._state is _State.FIRST

    def receive_first(self, message: bytes) -> str | Rejected:
        """Takes the client's first message and returns the name of the user whose credential is needed."""
        if self._state is not _State.FIRST or len(message) > MESSAGE_BYTES_MAX:
            return self._reject("its first SCRAM message is too long or out of order")
        parts = message.split(b",", 2)
        if len(parts) != 3 or parts[0] not in (b"n", b"y"):
            return self._reject("it demands channel binding, or its SCRAM message is malformed")
        self._binding = parts[0] + b"," + parts[1] + b","
        self._first_bare = parts[2]
        try:
            found = attributes(parts[2])
            self._user = unescape_name(found.get("n", ""))
            self._client_nonce = found.get("r", "")
            authorization_id = unescape_name(parts[1].decode().removeprefix("a="))
        except (ScramError, UnicodeDecodeError):
            return self._reject("its first SCRAM message is malformed")
        if "m" in found or not self._user or not self._client_nonce:
            return self._reject("its first SCRAM message lacks a part or demands an extension")
        if authorization_id not in ("", self._user):
            return self._reject("it asks to act as another user")
        self._state = _State.CREDENTIAL
        return self._user

    def challenge(self, credential: ScramCredential | None, secret: bytes) -> Challenge:
        """Returns the challenge. Without a credential, one that nobody can meet."""
        assert self._state is _State.CREDENTIAL, "the first message was received"
        self._credential = credential
        salt = keyed(self._mechanism, secret, self._user.encode())[:FAKE_SALT_BYTES]
        iterations = ITERATIONS_MIN
        if credential is not None:
            salt, iterations = credential.salt, credential.iterations
        nonce = self._client_nonce + self._server_nonce
        self._challenge = f"r={nonce},s={encoded(salt)},i={iterations}".encode()
        self._state = _State.FINAL
        return Challenge(self._challenge)

    def receive_final(self, message: bytes) -> Outcome:
        """Checks the client's proof."""
        if self._state is not _State.FINAL or len(message) > MESSAGE_BYTES_MAX:
            return self._reject("its last SCRAM message is too long or out of order")
        self._state = _State.OVER
        without_proof, _, proof_text = message.rpartition(b",p=")
        try:
            found = attributes(without_proof)
            binding, proof = decoded(found.get("c", "")), decoded(proof_text.decode("ascii", "replace"))
        except ScramError as error:
            return self._reject(str(error))
        if binding != self._binding or found.get("r") != self._client_nonce + self._server_nonce:
            return self._reject("its last SCRAM message does not belong to the first one")
        return self._check(without_proof, proof)

    def _check(self, without_proof: bytes, proof: bytes) -> Outcome:
        mechanism, credential = self._mechanism, self._credential
        nobody = digest(mechanism, b"")
        stored_key = nobody if credential is None else credential.stored_key
        signed = b",".join([self._first_bare, self._challenge, without_proof])
        signature = keyed(mechanism, stored_key, signed)
        if len(proof) != len(signature):
            return self._reject("its proof has the wrong length")
        client_key = exclusive_or(proof, signature)
        is_right = hmac.compare_digest(digest(mechanism, client_key), stored_key)
        if credential is None or not is_right:
            return self._reject("the user name or the password is wrong")
        return Authenticated(self._user, b"v=" + encoded(keyed(mechanism, credential.server_key, signed)).encode())

    def _reject(self, why: str) -> Rejected:
        self._state = _State.OVER
        return Rejected(why)
