"""The security of a client from properties with Kafka's names.

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/ottla/ca.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=alice
    sasl.password=...

`sasl.jaas.config` may hold the name and the password instead, as in files for Kafka's Java clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.net.security import ConnectionSecurity, SaslLogin
from ottla.net.tls import BadTlsError
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.jaas import parse_jaas
from ottla.protocol.model.listeners import SecurityProtocol
from ottla.protocol.model.security_keys import JAAS, MECHANISMS, TLS_KEYS
from ottla.protocol.model.tls_settings import parse_tls

PROTOCOL, MECHANISM = "security.protocol", "sasl.mechanism"
USERNAME, PASSWORD = "sasl.username", "sasl.password"
_KNOWN = frozenset({PROTOCOL, MECHANISM, USERNAME, PASSWORD, JAAS, *(key.name for key in TLS_KEYS)})
_PREFIXES = ("security.", "sasl.", "ssl.")


class BadClientPropertiesError(ValueError):
    """The properties cannot be used. The message names the property, never its value if that is secret."""


def security_from(properties: Mapping[str, str]) -> ConnectionSecurity:
    """Returns the security that the properties describe. Properties that do not concern it are ignored. Raises
    BadClientPropertiesError."""
    unknown = [name for name in properties if name.startswith(_PREFIXES) and name not in _KNOWN]
    if unknown:
        raise BadClientPropertiesError(f"{unknown[0]} is not supported by this client")
    protocol = properties.get(PROTOCOL, SecurityProtocol.PLAINTEXT.value).strip().upper()
    if protocol not in SecurityProtocol.__members__:
        raise BadClientPropertiesError(f"{PROTOCOL}={protocol} is not one of {', '.join(SecurityProtocol)}")
    tls = parse_tls(properties.get)
    if isinstance(tls, Refused):
        raise BadClientPropertiesError(tls.message)
    chosen = SecurityProtocol(protocol)
    try:
        return ConnectionSecurity(chosen, tls, _login(properties) if chosen.uses_sasl else None)
    except BadTlsError as failure:
        raise BadClientPropertiesError(str(failure)) from failure


def _login(properties: Mapping[str, str]) -> SaslLogin:
    mechanism = properties.get(MECHANISM, "").strip().upper()
    if mechanism not in MECHANISMS:
        raise BadClientPropertiesError(f"{MECHANISM}={mechanism} is not one of {', '.join(MECHANISMS)}")
    name, password = properties.get(USERNAME), properties.get(PASSWORD)
    text = properties.get(JAAS)
    if text and name is None:
        try:
            login = parse_jaas(text).login
        except ValueError as failure:
            raise BadClientPropertiesError(f"{JAAS} cannot be read: {failure}") from failure
        name, password = login or (None, None)
    if not name or password is None:
        raise BadClientPropertiesError(f"{MECHANISM}={mechanism} needs {USERNAME} and {PASSWORD}, or {JAAS}")
    return SaslLogin(mechanism, name, password)
