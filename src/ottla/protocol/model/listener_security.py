"""The security of one listener: its settings of TLS and SASL, with the overrides of this listener applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.jaas import JaasEntry, parse_jaas
from ottla.protocol.model.listeners import ListenerAddress, SecurityProtocol
from ottla.protocol.model.security_keys import (
    ENABLED_MECHANISMS,
    JAAS,
    LISTENER_PREFIX,
    MECHANISMS,
    PLAIN,
    REAUTHENTICATION,
    SASL_KEYS,
)
from ottla.protocol.model.tls_settings import TlsSettings, parse_tls

_DEFAULTS = {key.name: key.default for key in SASL_KEYS}


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The SASL settings of one listener."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str] = field(repr=False)
    """The users of PLAIN, with their passwords."""
    logins: Mapping[str, tuple[str, str]] = field(repr=False)
    """The name and password of this broker, by mechanism."""
    session_ms: Mapping[str, int]
    """By mechanism, how long an authentication is valid; 0 means without limit."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How a listener encrypts and authenticates."""

    name: str
    protocol: SecurityProtocol
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None


def parse_security(listener: ListenerAddress, given: Mapping[str, str]) -> ListenerSecurity | Refused:
    """Parses the settings that apply to a listener. All values were checked before."""
    prefix = f"{LISTENER_PREFIX}{listener.name.lower()}."
    settings = {_folded(name, prefix): value for name, value in given.items()}

    def value_of(name: str) -> str | None:
        return settings.get(prefix + name, settings.get(name))

    tls = parse_tls(value_of) if listener.protocol.uses_tls else None
    if isinstance(tls, Refused):
        return _at(listener, tls)
    sasl = _parse_sasl(prefix, value_of) if listener.protocol.uses_sasl else None
    if isinstance(sasl, Refused):
        return _at(listener, sasl)
    return ListenerSecurity(listener.name, listener.protocol, tls, sasl)


def misnamed_overrides(given: Iterable[str], listeners: Iterable[str]) -> list[str]:
    """Returns the settings of listeners that do not exist."""
    known = {name.lower() for name in listeners}
    found = [name for name in given if name.startswith(LISTENER_PREFIX)]
    return [name for name in found if name.removeprefix(LISTENER_PREFIX).partition(".")[0].lower() not in known]


def _folded(name: str, prefix: str) -> str:
    """Returns the name in lower case if it belongs to this listener, because listener names have no case."""
    return name.lower() if name.lower().startswith(prefix) else name


def _at(listener: ListenerAddress, refused: Refused) -> Refused:
    return Refused(refused.error, f"listener {listener.name}: {refused.message}")


def _parse_sasl(prefix: str, value_of: Callable[[str], str | None]) -> SaslSettings | Refused:
    words = value_of(ENABLED_MECHANISMS) or _DEFAULTS[ENABLED_MECHANISMS] or ""
    mechanisms = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    entries: dict[str, JaasEntry] = {}
    session_ms: dict[str, int] = {}
    for mechanism in MECHANISMS:
        text = value_of(f"{mechanism.lower()}.{JAAS}")
        if text:
            try:
                entries[mechanism] = parse_jaas(text)
            except ValueError as failure:
                name = f"{prefix}{mechanism.lower()}.{JAAS}"
                return Refused(ErrorCode.invalid_config, f"{name} cannot be read: {failure}.")
        own = value_of(f"{mechanism.lower()}.{REAUTHENTICATION}")
        session_ms[mechanism] = int(own or value_of(REAUTHENTICATION) or 0)
    plain_users = entries[PLAIN].users if PLAIN in entries else {}
    if PLAIN in mechanisms and not plain_users:
        return Refused(
            ErrorCode.invalid_config,
            f'PLAIN needs users: set {prefix}plain.{JAAS}=... required user_NAME="PASSWORD";',
        )
    logins = {mechanism: entry.login for mechanism, entry in entries.items() if entry.login is not None}
    return SaslSettings(mechanisms, plain_users, logins, session_ms)
