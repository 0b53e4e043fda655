"""The headers of consecutive journal blocks. Each names the place of the block before it, so a reader can follow them
through the files of the ring."""

from __future__ import annotations

from ottla.broker.storage.journal.format import JOURNAL_ID_BYTES, BlockHeader
from ottla.broker.storage.journal.ring_files import RingFile


class BlockChain:
    """The chain of blocks that one journal has written since it was opened."""

    __slots__ = ("_journal_id", "_previous_place")

    def __init__(self, journal_id: bytes) -> None:
        if len(journal_id) != JOURNAL_ID_BYTES:
            raise ValueError(f"a journal id has {JOURNAL_ID_BYTES} bytes")
        self._journal_id = journal_id
        self._previous_place = 0, 0
        """File number and offset of the last block; zeros if there is none."""

    def next_header(
        self, file: RingFile, offset: int, sequence: int, block_bytes: int, entry_count: int
    ) -> BlockHeader:
        """Returns the header of the next block, with everything but the CRC of its entries."""
        previous_file_number, previous_offset = self._previous_place
        self._previous_place = file.number, offset
        return BlockHeader(
            journal_id=self._journal_id,
            file_number=file.number,
            offset=offset,
            lap=file.lap,
            sequence=sequence,
            durable_sequence=sequence - 1,
            previous_file_number=previous_file_number,
            previous_offset=previous_offset,
            block_bytes=block_bytes,
            entry_count=entry_count,
            entries_crc=0,
        )
