"""Counters of how transactions ended and who decided it, for monitoring."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Who decided how a transaction ends."""

    PRODUCER = "producer"
    """The producer sent EndTxn."""
    TIMEOUT = "timeout"
    NEW_PRODUCER = "new_producer"
    """A new producer started with the transactional id, or an operator fenced the current one."""
    RESTART = "restart"
    """The producer itself restarted after an error, in the middle of its transaction."""
    OPERATOR = "operator"


class Decision(NamedTuple):
    """The outcome of a transaction and its cause."""

    is_commit: bool
    cause: Cause


Decisions = Counter[Decision]

POSSIBLE = (Decision(True, Cause.PRODUCER), *(Decision(False, cause) for cause in Cause))
"""Every decision that can occur, so that those that have not happened yet are reported as 0."""
