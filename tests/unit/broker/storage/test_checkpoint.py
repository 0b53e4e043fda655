"""The checkpoint file is complete, or ignored altogether."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.broker.storage.startup.checkpoint import (
    Checkpoint,
    CheckpointDamagedError,
    RecoveryPoint,
    decode_checkpoint,
    encode_checkpoint,
)
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId

CHECKPOINT = Checkpoint(
    released_sequence=2**40 + 3,
    points={
        LogKey(TopicId(UUID(int=2**100 + 7)), PartitionIndex(3), 2): RecoveryPoint(2**50, 2**49, 2**31, 17),
        LogKey(TopicId(UUID(int=5)), PartitionIndex(0)): RecoveryPoint(0, 0, 0, 0),
    },
)


def test_what_is_written_reads_back() -> None:
    assert decode_checkpoint(encode_checkpoint(CHECKPOINT)) == CHECKPOINT
    assert decode_checkpoint(encode_checkpoint(Checkpoint())) == Checkpoint()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_is_noticed(bit: int) -> None:
    whole = encode_checkpoint(CHECKPOINT)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        with pytest.raises(CheckpointDamagedError):
            decode_checkpoint(bytes(damaged))


def test_a_part_is_not_the_whole() -> None:
    whole = encode_checkpoint(CHECKPOINT)
    for length in range(len(whole)):
        with pytest.raises(CheckpointDamagedError):
            decode_checkpoint(whole[:length])
    with pytest.raises(CheckpointDamagedError):
        decode_checkpoint(whole + b"\0")
