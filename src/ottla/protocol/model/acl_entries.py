"""How ACLs are stored, in the coordination store of a cluster and in the catalog of a single broker.

Each ACL is an entry of its own. Its key is derived from its content, so the same ACL is stored once, however often it
is created, and ACLs that are changed at the same time do not conflict.
"""

from __future__ import annotations

import json
from hashlib import sha256

from ottla.protocol.model.acl_bindings import AclBinding

PREFIX = "acls/"
FORMAT = 1


def acl_key(binding: AclBinding) -> str:
    """Returns the key of an ACL."""
    text = json.dumps(list(binding.to_fields().values()))
    return PREFIX + sha256(text.encode()).hexdigest()[:32]


def encode_acl(binding: AclBinding) -> bytes:
    """Returns the value of an ACL's entry."""
    return json.dumps({**binding.to_fields(), "format": FORMAT}, separators=(",", ":")).encode()


def decode_acl(value: bytes) -> AclBinding:
    """Parses the value of an entry. Raises ValueError, with the reason, if this version cannot read it."""
    try:
        fields = json.loads(value)
        number = fields["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"it is not an ACL in JSON ({error})") from error
    if number != FORMAT:
        raise ValueError(f"its format is {number}, and this version reads format {FORMAT}")
    try:
        return AclBinding.from_fields(fields)
    except KeyError as error:
        raise ValueError(f"it has an unknown or missing field: {error}") from error
