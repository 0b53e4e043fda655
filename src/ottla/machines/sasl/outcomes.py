"""The outcomes of one step of a SASL exchange."""

from __future__ import annotations

from typing import NamedTuple


class Challenge(NamedTuple):
    """The exchange continues with the client's reply to this message."""

    message: bytes


class Authenticated(NamedTuple):
    """The client has proved its identity."""

    user: str
    message: bytes


class Rejected(NamedTuple):
    """The exchange failed."""

    why: str
    """For the log. The client is told only that its credentials are invalid."""


Outcome = Challenge | Authenticated | Rejected
