"""How transactions were ended, and who decided it: counted for those who watch the broker."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    PRODUCER = "producer"
    """By EndTxn."""
    TIMEOUT = "timeout"
    NEW_PRODUCER = "new_producer"
    """Another one began with the transactional id, or an operator fenced the one that had it."""
    RESTART = "restart"
    """The producer itself began anew after an error, in the middle of its transaction."""
    OPERATOR = "operator"


class Decision(NamedTuple):
    is_commit: bool
    cause: Cause


Decisions = Counter[Decision]

POSSIBLE = (Decision(True, Cause.PRODUCER), *(Decision(False, cause) for cause in Cause))
"""So that what has not happened yet is told as 0."""
