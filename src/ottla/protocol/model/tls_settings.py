"""The TLS settings of a listener or of a client, parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.protocol.model.config_keys import parse_value
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.principal_rules import PrincipalRules
from ottla.protocol.model.security_keys import TLS_KEYS


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A file or a text with keys or certificates."""

    type: str
    location: str | None
    password: str | None = field(repr=False)
    text: str | None = field(repr=False)

    @property
    def is_given(self) -> bool:
        """Whether there is a file or a text."""
        return bool(self.location or self.text)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates, keys and the permitted protocols."""

    keystore: StoreSettings
    truststore: StoreSettings
    key: str | None = field(repr=False)
    """The private key, if it is not in the key store."""
    key_password: str | None = field(repr=False)
    client_auth: str
    protocols: frozenset[str]
    ciphers: str | None
    principal_rules: str
    checks_host: bool


def parse_tls(given: Callable[[str], str | None]) -> TlsSettings | Refused:
    """Parses the TLS settings. `given` returns the value of a setting by its name, or None."""
    values: dict[str, str | None] = {}
    for key in TLS_KEYS:
        text = given(key.name)
        parsed = None if text is None else parse_value(key, text)
        if isinstance(parsed, Refused):
            return parsed
        values[key.name] = key.default if text is None else text.strip()
    try:
        PrincipalRules(values["ssl.principal.mapping.rules"] or "")
    except ValueError as failure:
        return Refused(ErrorCode.invalid_config, f"ssl.principal.mapping.rules: {failure}.")
    chain, key_text = values["ssl.keystore.certificate.chain"], values["ssl.keystore.key"]
    if bool(chain) != bool(key_text):
        return Refused(ErrorCode.invalid_config, "ssl.keystore.certificate.chain and ssl.keystore.key need each other.")
    if chain and values["ssl.keystore.location"]:
        return Refused(
            ErrorCode.invalid_config, "set ssl.keystore.location or ssl.keystore.certificate.chain, not both."
        )
    protocols = values["ssl.enabled.protocols"] or ""
    return TlsSettings(
        keystore=_store(values, "ssl.keystore", chain),
        truststore=_store(values, "ssl.truststore", values["ssl.truststore.certificates"]),
        key=key_text,
        key_password=values["ssl.key.password"],
        client_auth=values["ssl.client.auth"] or "none",
        protocols=frozenset(word.strip() for word in protocols.split(",")),
        ciphers=values["ssl.cipher.suites"] or None,
        principal_rules=values["ssl.principal.mapping.rules"] or "DEFAULT",
        checks_host=values["ssl.endpoint.identification.algorithm"] == "https",
    )


def _store(values: dict[str, str | None], prefix: str, text: str | None) -> StoreSettings:
    return StoreSettings(
        values[f"{prefix}.type"] or "PEM", values[f"{prefix}.location"], values[f"{prefix}.password"], text
    )
