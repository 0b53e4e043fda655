"""The server's side of PLAIN (RFC 4616): one message with a name and a password."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ottla.machines.sasl.outcomes import Authenticated, Outcome, Rejected

_NOBODY = "\0"
"""A password that no client can send, because a zero byte separates the parts of the message."""


def check_plain(message: bytes, users: Mapping[str, str]) -> Outcome:
    """Checks a message against the passwords of all users, in a time that does not depend on the user."""
    try:
        authorization_id, user, password = message.decode("utf-8").split("\0")
    except ValueError:  # also if it is not UTF-8
        return Rejected("its PLAIN message is malformed")
    expected = users.get(user, _NOBODY)
    is_right = hmac.compare_digest(password.encode(), expected.encode())
    if not is_right or not user:
        return Rejected("the user name or the password is wrong")
    if authorization_id not in ("", user):
        return Rejected("it asks to act as another user")
    return Authenticated(user, b"")
