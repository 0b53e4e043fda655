"""Principals: the identities on whose behalf requests are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity: its kind, which is nearly always `User`, and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parses `User:alice`. The name may contain colons. Raises ValueError if the text has another form."""
        kind, colon, name = text.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"expected a principal of the form User:NAME, not {text!r}")
        return cls(kind, name)


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of a connection that has not authenticated."""
