"""Which names a topic may have, by Kafka's rules."""

from __future__ import annotations

import re

from ottla.model.errors import ErrorCode, Refused

NAME_LENGTH_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> Refused | None:
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if problem is None:
        return None
    return Refused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {problem}")


def metric_name(name: str) -> str:
    """'.' and '_' are one character in metric names: two topics that differ in them alone would share theirs."""
    return name.replace(".", "_")
