"""Checks the settings of a configuration file for `ottla doctor --config`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ottla.cli.doctor.checks import Check, bad, ok, warn
from ottla.cli.failures import CommandError
from ottla.cli.up.config_file import FileSettings, problems, read_config_file, read_settings
from ottla.net.tls import BadTlsError, own_certificate, server_context
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.listener_security import parse_security

RENEW_DAYS = 30


def settings_checks(path: Path) -> Iterator[Check]:
    """Yields the checks of a file: its rejected settings or, if there are none, those without effect."""
    settings = read_settings(path)
    refused = list(problems(settings))
    if refused:
        yield from (bad(f"{path.name}, line {line}", "refused", message) for line, message in refused)
        return
    try:
        found = read_config_file(path)
    except CommandError as failure:
        yield bad(path.name, "refused", str(failure))
        return
    yield ok(path.name, f"{len(settings)} settings, all valid")
    yield from (warn(path.name, "no effect", notice) for notice in found.notices)
    yield from _certificate_checks(found)


def _certificate_checks(found: FileSettings) -> Iterator[Check]:
    """Yields a check for the certificate of each listener with TLS."""
    for listener in found.listeners.all():
        security = parse_security(listener, found.properties)
        if isinstance(security, Refused) or security.tls is None:
            continue
        name = f"certificate of {listener.name}"
        try:
            server_context(security.tls)
            certificate = own_certificate(security.tls)
        except BadTlsError as failure:
            yield bad(name, "cannot be used", str(failure))
            continue
        assert certificate is not None
        left_days = (certificate.not_after - datetime.now(UTC)).days
        value = f"{certificate.subject}, until {certificate.not_after:%Y-%m-%d}"
        if left_days < 0:
            yield bad(name, value, "the certificate has expired; replace the file in ssl.keystore.location")
        elif left_days < RENEW_DAYS:
            yield warn(name, value, f"it expires in {left_days} days; replace the file in ssl.keystore.location")
        else:
            yield ok(name, value)
