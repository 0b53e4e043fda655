"""The part of the composition root that prepares listeners: their certificates and their settings of SASL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.server.listener_kind import ListenerKind
from ottla.net.security import ConnectionSecurity, SaslLogin
from ottla.net.tls import BadTlsError, ReloadingContext, server_context
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.listener_security import ListenerSecurity, misnamed_overrides, parse_security
from ottla.protocol.model.listeners import ListenerAddress
from ottla.protocol.model.security_keys import ENABLED_MECHANISMS, INTER_BROKER_MECHANISM, JAAS, SCRAM_512


class BadSettingsError(Exception):
    """A setting is unknown or has an invalid value. The message is written for a person."""


@dataclass(frozen=True, slots=True)
class PreparedListeners:
    """Every listener by name: its security settings, and its kind with the certificates loaded."""

    securities: Mapping[str, ListenerSecurity]
    kinds: Mapping[str, ListenerKind]
    peer_security: ConnectionSecurity
    """How this broker connects to others, at their inter-broker listeners."""


def prepare_listeners(
    listeners: Sequence[ListenerAddress], inter_broker: str, config: BrokerConfig
) -> PreparedListeners:
    """Parses the security settings of all listeners and loads their certificates. Raises BadSettingsError."""
    unknown = misnamed_overrides(config.given, (each.name for each in listeners))
    if unknown:
        raise BadSettingsError(f"{unknown[0]} is for a listener that this broker does not have")
    securities = {each.name: _security(each, config) for each in listeners}
    kinds = {name: _kind(security) for name, security in securities.items()}
    return PreparedListeners(securities, kinds, _peer_security(securities[inter_broker], config))


def _peer_security(security: ListenerSecurity, config: BrokerConfig) -> ConnectionSecurity:
    login = None
    if security.sasl is not None:
        mechanism = config.given.get(INTER_BROKER_MECHANISM, SCRAM_512)
        name_and_password = security.sasl.logins.get(mechanism)
        if mechanism not in security.sasl.mechanisms or name_and_password is None:
            raise BadSettingsError(_without_login(security.name, mechanism))
        login = SaslLogin(mechanism, *name_and_password)
    try:
        return ConnectionSecurity(security.protocol, security.tls, login)
    except BadTlsError as failure:
        raise BadSettingsError(f"listener {security.name}: {failure}") from failure


def _security(listener: ListenerAddress, config: BrokerConfig) -> ListenerSecurity:
    security = parse_security(listener, config.given)
    if isinstance(security, Refused):
        raise BadSettingsError(security.message or "invalid setting")
    return security


def _kind(security: ListenerSecurity) -> ListenerKind:
    if security.tls is None:
        return ListenerKind(security.name, security.protocol)
    try:
        context = ReloadingContext(security.tls, server_context, f"listener {security.name}")
    except BadTlsError as failure:
        raise BadSettingsError(f"listener {security.name}: {failure}") from failure
    return ListenerKind(security.name, security.protocol, context)


def _without_login(listener: str, mechanism: str) -> str:
    prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}"
    return (
        f"the other brokers use the listener {listener} with {INTER_BROKER_MECHANISM}={mechanism}; enable it with "
        f"{ENABLED_MECHANISMS}, and give this broker a login with {prefix}.{JAAS}=... required "
        'username="NAME" password="PASSWORD";'
    )
