"""Settings for encryption and authentication, under Kafka's names.

Each applies to all listeners; `listener.name.NAME.SETTING` overrides it for one of them. Settings of a SASL mechanism
have its name in between: `listener.name.client.scram-sha-512.sasl.jaas.config`.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.protocol.model.config_keys import ConfigKey, ConfigType, OneOf, Range

LISTENER_PREFIX = "listener.name."
JAAS = "sasl.jaas.config"
ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
INTER_BROKER_MECHANISM = "sasl.mechanism.inter.broker.protocol"
REAUTHENTICATION = "connections.max.reauth.ms"

PLAIN, SCRAM_256, SCRAM_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_256, SCRAM_512)

STORE_TYPES = ("PEM", "PKCS12")
TLS_PROTOCOLS = ("TLSv1.2", "TLSv1.3")


def _key(name: str, type_: ConfigType, default: str | None, doc: str, check: OneOf | Range | None = None) -> ConfigKey:
    return ConfigKey(name, type_, default, doc, check, dynamic=False)


_STRING, _PASSWORD = ConfigType.STRING, ConfigType.PASSWORD

TLS_KEYS = (
    _key(
        "ssl.keystore.type",
        _STRING,
        "PEM",
        "The format of the file in ssl.keystore.location. PKCS12 needs the extra `ottla[security]`.",
        OneOf(STORE_TYPES),
    ),
    _key(
        "ssl.keystore.location",
        _STRING,
        None,
        "The file with the certificate chain and the private key. When it changes, new connections use the new one.",
    ),
    _key("ssl.keystore.password", _PASSWORD, None, "The password of a PKCS12 key store."),
    _key(
        "ssl.keystore.certificate.chain",
        _PASSWORD,
        None,
        "The certificate chain in PEM format, instead of ssl.keystore.location.",
    ),
    _key("ssl.keystore.key", _PASSWORD, None, "The private key in PEM format, instead of ssl.keystore.location."),
    _key("ssl.key.password", _PASSWORD, None, "The password of the private key, if it is encrypted."),
    _key(
        "ssl.truststore.type",
        _STRING,
        "PEM",
        "The format of the file in ssl.truststore.location. PKCS12 needs the extra `ottla[security]`.",
        OneOf(STORE_TYPES),
    ),
    _key(
        "ssl.truststore.location",
        _STRING,
        None,
        "The file with the certificates of the authorities that sign the certificates of clients and brokers. When it "
        "changes, new connections use the new one.",
    ),
    _key("ssl.truststore.password", _PASSWORD, None, "The password of a PKCS12 trust store."),
    _key(
        "ssl.truststore.certificates",
        _PASSWORD,
        None,
        "The certificates of the authorities in PEM format, instead of ssl.truststore.location.",
    ),
    _key(
        "ssl.client.auth",
        _STRING,
        "none",
        "Whether clients must present a certificate. With `requested` they may. A client without one is "
        "User:ANONYMOUS.",
        OneOf(("none", "requested", "required")),
    ),
    _key(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that may be used.",
        OneOf(TLS_PROTOCOLS),
    ),
    _key(
        "ssl.cipher.suites",
        _STRING,
        None,
        "The cipher suites for TLS 1.2, in OpenSSL's notation. The default is OpenSSL's choice. The suites of TLS 1.3 "
        "are fixed.",
    ),
    _key(
        "ssl.principal.mapping.rules",
        _STRING,
        "DEFAULT",
        "How a user name is formed from the distinguished name of a client's certificate: a list of "
        "RULE:PATTERN/REPLACEMENT/[LU] and DEFAULT, which is the whole name. The first match counts.",
    ),
    _key(
        "ssl.endpoint.identification.algorithm",
        _STRING,
        "https",
        "Whether brokers check that the certificate of another broker names its host: https, or empty for no check.",
        OneOf(("https", "")),
    ),
)

SASL_KEYS = (
    _key(
        ENABLED_MECHANISMS,
        ConfigType.LIST,
        f"{SCRAM_256},{SCRAM_512}",
        "The SASL mechanisms of listeners with SASL.",
        OneOf(MECHANISMS),
    ),
    _key(
        INTER_BROKER_MECHANISM,
        _STRING,
        SCRAM_512,
        "The mechanism with which brokers authenticate to one another, if their listener has SASL.",
        OneOf((PLAIN, SCRAM_256, SCRAM_512)),
    ),
    _key(
        REAUTHENTICATION,
        ConfigType.LONG,
        "0",
        "How long a client with SASL may use a connection before it must authenticate again; 0 means without limit. A "
        "connection that is used later is closed.",
        Range(0),
    ),
)

SECURITY_KEYS = (*TLS_KEYS, *SASL_KEYS)

SERVER_KEYS = (
    _key(
        "ottla.authentication.timeout.ms",
        ConfigType.LONG,
        "10000",
        "A connection that has not finished its TLS handshake and SASL authentication after this time is closed.",
        Range(1),
    ),
    _key(
        "ottla.unauthenticated.connections.max",
        ConfigType.INT,
        "1000",
        "Maximum number of connections that are in a TLS handshake or not authenticated yet; above it, the oldest of "
        "them is closed.",
        Range(1),
    ),
    _key(
        "sasl.server.max.receive.size",
        ConfigType.INT,
        "524288",
        "Maximum size of a request before authentication; a connection that sends a larger one is closed.",
        Range(256),
    ),
)

_BY_NAME = {key.name: key for key in SECURITY_KEYS}
_JAAS_KEY = _key(JAAS, _PASSWORD, None, "The users of PLAIN, and the name and password of this broker.")
_OF_MECHANISM = {JAAS: _JAAS_KEY, REAUTHENTICATION: _BY_NAME[REAUTHENTICATION]}


def listener_key(name: str) -> ConfigKey | None:
    """Returns the definition of a setting of one listener, under its full name; None if there is no such setting."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    found = _BY_NAME.get(setting)
    if found is None:
        mechanism, _, of_mechanism = setting.partition(".")
        found = _OF_MECHANISM.get(of_mechanism) if mechanism.upper() in MECHANISMS else None
    return None if found is None else replace(found, name=name)
