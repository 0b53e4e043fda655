"""The codec that a client was told to use is the one that its batches have in the log.

A client that takes the broker for an old one falls back to no compression without a word: only the stored batches
tell.
"""

from __future__ import annotations

import socket
from struct import Struct

import pytest

from ottla.records.batch import split_batches
from ottla.records.codecs import Compression
from ottla.wire.fetch import FetchPartition, FetchRequest
from ottla.wire.fetch_client import encode_fetch_request, parse_fetch_response
from ottla.wire.headers import request_header
from tests.conformance.clients.interface import CODECS, Ability
from tests.conformance.conftest import NAMES, ClientOf, TopicOf
from tests.conformance.records import sample

FETCH, VERSION = 1, 11
_SIZE = Struct(">i")


def stored_codecs(bootstrap: str, topic: str) -> set[str]:
    partition = FetchPartition(0, -1, 0, -1, -1, 1 << 20)
    request = FetchRequest(-1, 500, 1, 1 << 20, 0, 0, -1, [(topic, [partition])], [])
    frame = request_header(FETCH, VERSION, 1, "test") + encode_fetch_request(VERSION, request)
    host, port = bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(_SIZE.pack(len(frame)) + frame)
        (size,) = _SIZE.unpack(connection.recv(_SIZE.size, socket.MSG_WAITALL))
        reply = memoryview(connection.recv(size, socket.MSG_WAITALL))
    fetched = parse_fetch_response(reply[4:], VERSION).topics[0][1][0]
    assert fetched.records is not None
    return {Compression(batch.header.compression).name for batch in split_batches(fetched.records)}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", NAMES)
def test_batches_have_the_codec_that_was_asked_for(
    bootstrap: str, client_of: ClientOf, fresh_topic: TopicOf, writer: str, codec: str
) -> None:
    client = client_of(writer)
    topic = fresh_topic(f"stored-{writer}-{codec}")
    client.create_topic(topic)
    client.write(topic, sample(client), codec=codec, idempotent=Ability.IDEMPOTENCE in client.abilities)
    stored = stored_codecs(bootstrap, topic)
    # librdkafka leaves a batch alone that its codec would not make smaller: single records among the sample's.
    assert codec in stored
    assert stored <= {codec, "none"}
