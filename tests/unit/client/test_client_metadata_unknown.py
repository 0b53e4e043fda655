"""How a client handles metadata without a topic (simulation, seed 414)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client import metadata as module
from ottla.client.brokers import Brokers
from ottla.client.errors import UnknownTopicError
from ottla.client.metadata import ClusterView, Metadata, TopicView
from ottla.protocol.model.errors import ErrorCode

VIEW = TopicView("orders", None, {}, ())


class SlowAnswers:
    """Replaces the connection: a broker that knows `orders` and whose first reply takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_s: float, unknown: int = 0) -> None:
        self.asked: list[list[str]] = []
        self.is_asked = asyncio.Event()
        self._first_s, self._unknown = first_s, unknown
        monkeypatch.setattr(module, "call", self._call)
        monkeypatch.setattr(module, "read_view", self._read)

    async def any_connection(self) -> None: ...

    def update_nodes(self, nodes: object) -> None: ...

    async def _call(self, _: object, __: object, body: dict[str, Any], *, what: str) -> list[str]:
        self.asked.append([topic["name"] for topic in body["topics"]])
        self.is_asked.set()
        if len(self.asked) == 1:
            await asyncio.sleep(self._first_s)
        return self.asked[-1]

    def _read(self, names: list[str]) -> tuple[ClusterView, dict[str, ErrorCode]]:
        if len(self.asked) <= self._unknown:
            return ClusterView(), dict.fromkeys(names, ErrorCode.unknown_topic_or_partition)
        return ClusterView(topics=dict.fromkeys(names, VIEW)), {}


def metadata_of(answers: SlowAnswers) -> Metadata:
    brokers: Brokers = answers  # type: ignore[assignment] # only what Metadata uses
    return Metadata(brokers, allow_auto_create=False)


async def test_an_answer_about_other_topics_says_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = SlowAnswers(monkeypatch, first_s=0.05)
    metadata = metadata_of(answers)
    metadata.want(["payments"])
    others = asyncio.create_task(metadata.refresh())
    await answers.is_asked.wait()
    assert await metadata.topic("orders", timeout_ms=5000, unknown_for_ms=0) is VIEW
    assert answers.asked == [["payments"], ["orders", "payments"]]
    await others


async def test_the_time_before_the_first_answer_is_not_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """That time was spent on a broker that does not reply."""
    answers = SlowAnswers(monkeypatch, first_s=0.1, unknown=1)
    assert await metadata_of(answers).topic("orders", timeout_ms=5000, unknown_for_ms=90) is VIEW


async def test_a_topic_that_stays_unknown_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownTopicError):
        await metadata_of(SlowAnswers(monkeypatch, 0, unknown=1000)).topic("orders", timeout_ms=5000, unknown_for_ms=20)
