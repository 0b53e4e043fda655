"""The public names of `ottla.client`: every error, and blocking clients with everything that the asyncio ones have."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import ottla.client
from ottla.client import errors
from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.producer.producer import Producer
from ottla.client.sync import SyncAdmin, SyncConsumer, SyncProducer, SyncTransaction
from ottla.client.transactions.transaction import Transaction

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "client.md"
ERRORS = sorted(
    name for name, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.ClientError)
)
ASYNCIO_ONLY = {
    "send_nowait",  # `enqueue` returns a future too, and waits for space
    "commit_nowait",  # returns a task
    "progress",  # used by transactions on a consumer
    "rewind",
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_public_and_documented(name: str) -> None:
    assert name in ottla.client.__all__
    assert getattr(ottla.client, name) is getattr(errors, name)
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ottla.client.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ottla.client, name) is not None


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("ours", "asyncio_one"),
    [(SyncProducer, Producer), (SyncConsumer, Consumer), (SyncAdmin, Admin), (SyncTransaction, Transaction)],
)
def test_a_blocking_client_has_the_methods_and_arguments_of_the_asyncio_one(ours: Any, asyncio_one: Any) -> None:
    assert public(asyncio_one) - public(ours) <= ASYNCIO_ONLY
    if ours is not SyncTransaction:
        assert inspect.signature(ours).parameters == inspect.signature(asyncio_one).parameters
    for name in public(ours) & public(asyncio_one):
        method = getattr(ours, name)
        if callable(method):
            named = list(inspect.signature(method).parameters)
            assert named == list(inspect.signature(getattr(asyncio_one, name)).parameters), name
            assert method.__doc__ or not getattr(asyncio_one, name).__doc__, name
