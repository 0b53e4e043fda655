"""Detects leader epochs corrupted by bit flips. No CRC covers the leader epoch of a batch, but a log knows the start of
each epoch, and epochs never decrease.

The log stores its own epochs with a checksum. A batch that disagrees with them is served with the stored epoch; its
records are covered by the CRC and intact. Only epochs that a start-up learned from the batches themselves can be wrong
unnoticed. They are reported as damage when a neighbouring batch or the cluster contradicts them.
"""

from __future__ import annotations

from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.contract import Damage
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.startup.batch_walk import WalkedBatch
from ottla.broker.storage.startup.state_file import LogState


def name_wrong_epoch(path: str, found: WalkedBatch, previous_offset: int, state: LogState) -> Damage:
    """Returns the damage for a batch whose epoch is lower than that of the batch before. The wrong batch is the
    previous one if the later epoch begins with it, and otherwise this one."""
    header, latest = found.header, state.epochs.latest
    reason = f"a batch of leader epoch {header.leader_epoch} follows one of epoch {latest}"
    if state.epochs.start_of(latest) != previous_offset:
        return Damage(path, found.position, header.base_offset, header.next_offset, reason)
    state.epochs.truncate_from(previous_offset)
    return Damage(path, found.position, previous_offset, header.base_offset, reason)


def distrust_epochs_above(log: AnyLog, leader_epoch: int) -> None:
    """Drops learned epochs above `leader_epoch`, the latest one that any leader has had, and records the damage. A log
    in memory has learned none."""
    if isinstance(log, MemoryLog) or log.epochs.latest <= leader_epoch:
        return
    reason = f"leader epoch {log.epochs.latest} is in the future; the current one is {leader_epoch}"
    begin = log.end_offset
    while log.epochs.latest > leader_epoch:
        begin = log.epochs.start_of(log.epochs.latest)
        log.epochs.truncate_from(begin)
    if begin < log.end_offset:
        log.damages.record(Damage(log.active.path, log.active.appended_end, begin, log.end_offset, reason))
