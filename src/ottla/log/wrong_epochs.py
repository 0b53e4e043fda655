"""Leader epochs that bits fell over in. No CRC covers the epoch of a batch, but a log knows where its epochs begin, and
they never fall: that tells.

What the log knows is kept with a checksum of its own. A batch that disagrees with it is served with the epoch that the
log knows: its records are under the CRC, and right. Only what a start learned from the batches themselves can be wrong
unnoticed, and is named as damage when a neighbour or the cluster contradicts it.
"""

from __future__ import annotations

from ottla.log.contract import Damage
from ottla.log.file_log import FileLog
from ottla.log.state_file import LogState
from ottla.log.walk import Walked


def name_wrong_epoch(path: str, found: Walked, previous_offset: int, state: LogState) -> Damage:
    """Of a batch whose epoch is lower than that of the batches before. The wrong one is the batch right before it, if a
    later epoch seems to be of that one alone, or else this one."""
    header, latest = found.header, state.epochs.latest
    reason = f"a batch of leader epoch {header.leader_epoch} follows one of epoch {latest}"
    if state.epochs.start_of(latest) != previous_offset:
        return Damage(path, found.position, header.base_offset, header.next_offset, reason)
    state.epochs.truncate_from(previous_offset)
    return Damage(path, found.position, previous_offset, header.base_offset, reason)


def distrust_epochs_above(log: FileLog, leader_epoch: int) -> None:
    """Nobody has led in a later epoch than this: what was learned of one is wrong."""
    if log.epochs.latest <= leader_epoch:
        return
    reason = f"leader epoch {log.epochs.latest} has not come yet, it is {leader_epoch}"
    begin = log.end_offset
    while log.epochs.latest > leader_epoch:
        begin = log.epochs.start_of(log.epochs.latest)
        log.epochs.truncate_from(begin)
    if begin < log.end_offset:
        log.add_damage(Damage(log.active.path, log.active.appended_end, begin, log.end_offset, reason))
