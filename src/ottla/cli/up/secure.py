"""`ottla up --secure`: certificates, passwords and settings of a cluster with TLS and SCRAM on one machine.

They are created once, in DATA/security, and used again at later starts:

    DATA/security/ca.pem, ca.key        a private authority
    DATA/security/broker.pem            the certificate of the brokers, with its key
    DATA/security/passwords.json        the password of the user `broker`, which brokers and administrators use
    DATA/client.properties              the settings of a client that is logged in as that user
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.client_security import choose_file
from ottla.cli.failures import CommandError
from ottla.protocol.model.listeners import ListenerAddress, ListenerTable, SecurityProtocol
from ottla.protocol.model.security_keys import JAAS

if TYPE_CHECKING:
    from ottla.broker.app import BrokerSettings

LISTENER = SecurityProtocol.SASL_SSL
BROKER = "broker"
PASSWORD_BYTES = 32
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_ANY_ADDRESS = ("", "0.0.0.0", "::")


def secure(settings: BrokerSettings) -> Path:
    """Adds encryption and authentication to the settings. Returns the path of the client's properties."""
    try:
        from ottla.net.private_authority import PrivateAuthority, write_private
    except ImportError as cause:
        raise CommandError("--secure needs 'cryptography': pip install 'ottla[security]'") from cause
    data = Path(settings.data_dir).absolute()
    directory = data / "security"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (directory / "ca.key").exists():
        PrivateAuthority.new().save(directory)
    hosts = dict.fromkeys([*LOCAL_HOSTS, settings.host, settings.advertised_host or settings.host])
    names = [host for host in hosts if host not in _ANY_ADDRESS]
    write_private(directory / "broker.pem", PrivateAuthority.load(directory).issue(BROKER, names).pem)
    passwords = directory / "passwords.json"
    if not passwords.exists():
        write_private(passwords, json.dumps({BROKER: secrets.token_urlsafe(PASSWORD_BYTES)}))
    password = json.loads(passwords.read_text())[BROKER]
    client = data / "client.properties"
    write_private(client, _client_properties(directory / "ca.pem", password))
    settings.properties |= _broker_properties(directory, password)
    settings.listeners = ListenerTable(ListenerAddress(LISTENER.value, LISTENER), (), LISTENER.value)
    choose_file(client)
    return client


def _broker_properties(directory: Path, password: str) -> dict[str, str]:
    prefix = f"listener.name.{LISTENER.value.lower()}.scram-sha-512"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}.{JAAS}": f'{module} required username="{BROKER}" password="{password}";',
    }


def _client_properties(authority: Path, password: str) -> str:
    return (
        "# Written by `ottla up --secure`. It has a password: keep it secret.\n"
        f"security.protocol={LISTENER.value}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority}\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={BROKER}\nsasl.password={password}\n"
    )
