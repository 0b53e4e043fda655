"""Kafka's rules for topic names."""

from __future__ import annotations

import re

from ottla.protocol.model.errors import ErrorCode, Refused

NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> Refused | None:
    """Returns why a name is invalid, or None."""
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
    """Returns the name as metrics show it. '.' and '_' are the same character there, so two topics that differ only in
    them would collide."""
    return name.replace(".", "_")
