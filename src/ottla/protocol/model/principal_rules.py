"""Forms user names from the distinguished names of certificates: `ssl.principal.mapping.rules`.

    RULE:^CN=([^,]+),OU=brokers.*$/broker-$1/L,DEFAULT

Each rule has a pattern for the whole name, a replacement with `$1` for groups, and L or U for lower or upper case. The
first rule that matches counts. DEFAULT matches every name and leaves it as it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(,|\n|$)")
_GROUP = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None for DEFAULT."""
    replacement: str = ""
    case: str = ""


class PrincipalRules:
    """Parsed rules. The constructor raises ValueError with the part that is not a rule."""

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(f"{text[at:]!r} is not RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT")
            self._rules.append(_parse(found))
            at = found.end()

    def user_of(self, distinguished_name: str) -> str | None:
        """Returns the user name, or None if no rule matches."""
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished_name
            if pattern.fullmatch(distinguished_name):
                name = pattern.sub(replacement, distinguished_name, count=1)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        return None


def _parse(found: re.Match[str]) -> _Rule:
    is_default, pattern, replacement, case, _ = found.groups()
    if is_default:
        return _Rule(None)
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
        substitute = _GROUP.sub(r"\\g<\1>", replacement.replace("\\", "\\\\"))
        used = [int(number) for number in _GROUP.findall(replacement)]
    except re.error as cause:
        raise ValueError(f"{pattern!r} is not a regular expression: {cause}") from cause
    if used and max(used) > compiled.groups:
        raise ValueError(f"{replacement!r} refers to group {max(used)}, and {pattern!r} has {compiled.groups}")
    return _Rule(compiled, substitute, case)
