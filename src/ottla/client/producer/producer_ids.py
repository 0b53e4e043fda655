"""Requests the producer id of an idempotent producer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.errors import ClientError, refused
from ottla.client.metadata import PASSING_FAILURES
from ottla.client.producer.batches import Identity
from ottla.client.producer.settings import ProducerSettings
from ottla.net.apis import INIT_PRODUCER_ID, call

_NO_TRANSACTIONS = timedelta(milliseconds=2**31 - 1)
"""The timeout of a producer without transactions, as the Java client sends it."""


async def get_identity(brokers: Brokers, settings: ProducerSettings) -> Identity:
    """Returns a new producer id and epoch. Retries until the request timeout."""
    body = {
        "transactional_id": None,
        "transaction_timeout": _NO_TRANSACTIONS,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    what = "requesting a producer id"
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + settings.request_timeout_ms / 1000
    backoff = new_backoff()
    while True:
        failure: ClientError
        try:
            reply = await call(await brokers.any_connection(), INIT_PRODUCER_ID, body, what=what)
            if not reply.error_code:
                return Identity(int(reply.producer_id), int(reply.producer_epoch))
            failure = refused(reply.error_code, what)
            if not reply.error_code.retriable:
                raise failure
        except PASSING_FAILURES as cause:
            failure = cause
        if loop.time() >= deadline_s:
            raise failure
        await asyncio.sleep(backoff.next_s())
