"""The headers of consecutive journal blocks."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal.block_chain import BlockChain
from ottla.broker.storage.journal.format import JOURNAL_ID_BYTES
from ottla.broker.storage.journal.ring_files import RingFile
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

JOURNAL_ID = bytes(range(JOURNAL_ID_BYTES))


def ring_file(number: int) -> RingFile:
    files = SimDisk(SimClock(), seed=1).files
    return RingFile(number, files.open(f"journal-{number:04d}", create=True), 4096)


def test_each_block_names_the_place_of_the_one_before() -> None:
    chain = BlockChain(JOURNAL_ID)
    first, second = ring_file(3), ring_file(7)
    headers = [
        chain.next_header(first, 0, 11, 512, 1),
        chain.next_header(first, 512, 12, 512, 2),
        chain.next_header(second, 0, 13, 1024, 3),
    ]
    assert [(header.file_number, header.offset) for header in headers] == [(3, 0), (3, 512), (7, 0)]
    assert [(header.previous_file_number, header.previous_offset) for header in headers] == [(0, 0), (3, 0), (3, 512)]


def test_a_block_says_that_the_one_before_is_durable() -> None:
    header = BlockChain(JOURNAL_ID).next_header(ring_file(1), 0, 5, 512, 1)
    assert (header.sequence, header.durable_sequence) == (5, 4)


def test_a_journal_id_has_a_fixed_length() -> None:
    with pytest.raises(ValueError, match="journal id"):
        BlockChain(b"short")
