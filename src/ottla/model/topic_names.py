"""Which names a topic may have, by Kafka's rules."""

from __future__ import annotations

import re

from ottla.model.errors import ErrorCode, Refused

NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> Refused | None:
    problem = None
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = "it cannot be '.' or '..'"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"it is longer than {NAME_LENGTH_MAX} characters"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = "it contains characters other than ASCII letters and digits, '.', '_' and '-'"
    if problem is None:
        return None
    return Refused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {problem}")


def metric_name(name: str) -> str:
    """'.' and '_' are one character in metric names: two topics that differ in them alone would share theirs."""
    return name.replace(".", "_")
