"""Other clients at secured listeners, with right and with wrong logins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import aiokafka.errors
import aiokafka.helpers
import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from ottla.client import Admin
from ottla.net.security import SaslLogin
from ottla.protocol.model.listeners import SecurityProtocol
from tests.unit.broker.security.secured import AUTHORITY, client_security, running, tls_properties

MODULE = "org.apache.kafka.common.security"
ROOT = SaslLogin("SCRAM-SHA-512", "broker", "of the broker")
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = "a password, with = and \u00fc"
WAIT_S = 60.0


class Secured(NamedTuple):
    """A broker with a listener SASL_SSL and a user alice."""

    bootstrap: str
    authority: str


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    properties = {
        **tls_properties(),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{MODULE}.plain.PlainLoginModule required user_alice="{PASSWORD}";'
        ),
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            f'{MODULE}.scram.ScramLoginModule required username="{ROOT.username}" password="{ROOT.password}";'
        ),
    }
    (tmp_path / "ca.pem").write_text(AUTHORITY.certificate)
    async with running(tmp_path / "data", "SASL_SSL://127.0.0.1:0", properties) as broker:
        root = client_security(SecurityProtocol.SASL_SSL, login=ROOT)
        async with Admin(broker.bootstrap, security=root) as admin:
            await admin.set_scram_password("alice", PASSWORD)
            await admin.create_topic("topic")
        yield Secured(broker.bootstrap, str(tmp_path / "ca.pem"))


def librdkafka(broker: Secured, mechanism: str, user: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": broker.authority,
    }


def librdkafka_round_trip(settings: dict[str, Any], group: str = "g") -> bytes | None:
    producer = confluent_kafka.Producer(settings)
    producer.produce("topic", b"value")
    assert producer.flush(WAIT_S) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["topic"])
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def librdkafka_failure(settings: dict[str, Any]) -> str:
    """Returns the code of the error that a client reports."""
    errors: list[Any] = []
    watched: dict[str, Any] = {**settings, "error_cb": errors.append}
    client = AdminClient(watched)
    for _ in range(int(WAIT_S * 10)):
        client.poll(0.1)
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
            break
    return str(errors)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_librdkafka(secured: Secured, mechanism: str) -> None:
    value = await asyncio.to_thread(librdkafka_round_trip, librdkafka(secured, mechanism))
    assert value == b"value"
    for wrong in (
        librdkafka(secured, mechanism, password="wrong"),
        librdkafka(secured, mechanism, user="nobody"),
    ):
        assert "_AUTHENTICATION" in await asyncio.to_thread(librdkafka_failure, wrong)


async def test_librdkafka_administers_users(secured: Secured) -> None:
    settings = librdkafka(secured, "SCRAM-SHA-512", ROOT.username, ROOT.password)

    def work() -> None:
        admin: Any = AdminClient(settings)
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
        upsertion = UserScramCredentialUpsertion("dave", info, b"of dave", b"a salt of dave")
        admin.alter_user_scram_credentials([upsertion])["dave"].result(WAIT_S)
        described = admin.describe_user_scram_credentials(["dave"])["dave"].result(WAIT_S)
        (found,) = described.scram_credential_infos
        assert (found.mechanism, found.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
        assert librdkafka_round_trip(librdkafka(secured, "SCRAM-SHA-256", "dave", "of dave")) == b"value"
        deletion = UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([deletion])["dave"].result(WAIT_S)
        with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
            admin.describe_user_scram_credentials(["dave"])["dave"].result(WAIT_S)

    await asyncio.to_thread(work)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka(secured: Secured, mechanism: str) -> None:
    context = aiokafka.helpers.create_ssl_context(cafile=secured.authority)

    def settings(password: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": secured.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
            "ssl_context": context,
        }

    async with asyncio.timeout(WAIT_S):
        async with aiokafka.AIOKafkaProducer(**settings(PASSWORD)) as producer:
            await producer.send_and_wait("topic", b"value")
        async with aiokafka.AIOKafkaConsumer(
            "topic", group_id="g", auto_offset_reset="earliest", **settings(PASSWORD)
        ) as consumer:
            assert (await consumer.getone()).value == b"value"
        rejected = aiokafka.AIOKafkaProducer(**settings("wrong"))
        with pytest.raises(aiokafka.errors.KafkaError):
            await rejected.start()
        await rejected.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_kafka_python(secured: Secured, mechanism: str) -> None:
    settings = {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "ssl_cafile": secured.authority,
    }

    def work() -> None:
        producer = kafka.KafkaProducer(sasl_plain_password=PASSWORD, **settings)
        producer.send("topic", b"value").get(WAIT_S)
        producer.close()
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaAdminClient(sasl_plain_password="wrong", bootstrap_timeout_ms=5000, **settings).list_topics()

    await asyncio.to_thread(work)
