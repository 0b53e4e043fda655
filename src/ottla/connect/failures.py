"""The errors of connectors, classified by how to handle them."""

from __future__ import annotations


class ConnectorError(Exception):
    """A failure outside the connector, such as a lost database or network connection. The supervisor retries."""


class NeedsHelpError(ConnectorError):
    """A failure that a retry cannot fix. The message tells the operator what to type."""
