"""SCRAM credentials: in the coordination store of a cluster, or in the catalog of a single broker.

They are read for each authentication, so a changed password and a deleted user count at once on every broker.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from ottla.protocol.model.errors import Refused
from ottla.protocol.sasl.scram import HASHES, ScramCredential, decoded, encoded, new_credential

PREFIX = "scram/"
SECRET = "scram-secret"
SECRET_BYTES = 32
SALT_BYTES = 24


class Upsertion(NamedTuple):
    """A credential to create or to replace."""

    user: str
    mechanism: str
    credential: ScramCredential


class Entries(Protocol):
    """Durable entries by key: the part of a store that credentials need."""

    async def get_entry(self, key: str) -> bytes | None:
        """Returns a value, or None. Raises OSError if the store is not available."""
        ...

    async def entries_under(self, prefix: str) -> Mapping[str, bytes]:
        """Returns the entries whose keys begin with the prefix. Raises OSError."""
        ...

    async def add_entry(self, key: str, value: bytes) -> bytes:
        """Adds an entry unless there is one already, and returns the value that counts. Raises OSError."""
        ...

    async def change_entries(self, puts: Mapping[str, bytes], deletes: Sequence[str]) -> Refused | None:
        """Puts and deletes entries in one transaction."""
        ...


class ScramCredentials:
    """Finds and changes SCRAM credentials."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._secret: bytes | None = None

    async def find(self, user: str, mechanism: str) -> ScramCredential | None:
        """Returns a user's credential. Raises OSError if the store is not available."""
        found = await self._entries.get_entry(_key(user, mechanism))
        return None if found is None else _decode(found)

    async def secret(self) -> bytes:
        """Returns the secret of the cluster from which the salts of unknown users are derived. Raises OSError."""
        if self._secret is None:
            known = await self._entries.get_entry(SECRET)
            self._secret = known or await self._entries.add_entry(SECRET, secrets.token_bytes(SECRET_BYTES))
        return self._secret

    async def all(self) -> dict[str, dict[str, int]]:
        """Returns the iterations of every credential by user and mechanism. Raises OSError."""
        users: dict[str, dict[str, int]] = {}
        for key, value in (await self._entries.entries_under(PREFIX)).items():
            user, _, mechanism = key.removeprefix(PREFIX).rpartition("/")
            if mechanism in HASHES:
                users.setdefault(unquote(user), {})[mechanism] = _decode(value).iterations
        return users

    async def change(self, upsertions: Sequence[Upsertion], deletions: Sequence[tuple[str, str]]) -> Refused | None:
        """Changes credentials in one transaction."""
        puts = {_key(each.user, each.mechanism): _encode(each.credential) for each in upsertions}
        return await self._entries.change_entries(puts, [_key(*each) for each in deletions])

    async def ensure(self, user: str, mechanism: str, password: str) -> None:
        """Creates the credential of a broker's own login unless the user has one, so that the first broker of a cluster
        can authenticate and let others in. Raises OSError."""
        credential = new_credential(mechanism, password, secrets.token_bytes(SALT_BYTES))
        await self._entries.add_entry(_key(user, mechanism), _encode(credential))


def _key(user: str, mechanism: str) -> str:
    return f"{PREFIX}{quote(user, safe='')}/{mechanism}"


def _encode(credential: ScramCredential) -> bytes:
    fields = {
        "format": 1,
        "iterations": credential.iterations,
        "salt": encoded(credential.salt),
        "server_key": encoded(credential.server_key),
        "stored_key": encoded(credential.stored_key),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _decode(value: bytes) -> ScramCredential:
    fields = json.loads(value)
    return ScramCredential(
        decoded(fields["salt"]), decoded(fields["stored_key"]), decoded(fields["server_key"]), int(fields["iterations"])
    )
