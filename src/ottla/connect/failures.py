"""What goes wrong in a connector, by what is to be done about it."""

from __future__ import annotations


class ConnectorError(Exception):
    """Something outside failed: the database went away, the network broke. Whoever supervises it tries again."""


class NeedsHelpError(ConnectorError):
    """Trying again changes nothing: a person has to do something. The message says what to type."""
