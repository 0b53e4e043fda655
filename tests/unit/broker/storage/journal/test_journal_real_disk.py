"""The journal on the real disk adapter: real alignment, gathered writes and background growth."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.broker.adapters.clock import RealClock
from ottla.broker.adapters.disk import RealDisk
from ottla.broker.storage.journal import Journal, JournalLimits, recover
from ottla.protocol.records.batch import read_header
from tests.unit.broker.storage.journal.test_journal import JOURNAL_ID, Log, make_batch

LIMITS = JournalLimits(ring_bytes_max=1 << 20, file_bytes_max=128 << 10, group_bytes_max=64 << 10)


class WaitedLog(Log):
    """Sends its next batch when the previous one is durable."""

    def __init__(self, partition: int, journal: Journal, batches: int, finished: asyncio.Event) -> None:
        super().__init__(partition)
        self.sent: list[bytes] = []
        self._journal = journal
        self._left = batches
        self._finished = finished

    def send(self) -> None:
        batch = make_batch(self.end, bytes([self.end % 251]) * (1000 + 2000 * self.end % 9000))
        self.sent.append(bytes(batch))
        self._journal.append_batch(self, read_header(batch), batch)
        self.end += 1

    def on_journaled(self, end_offset: int) -> None:
        super().on_journaled(end_offset)
        self._left -= 1
        if self._left:
            self.send()
        else:
            self._finished.set()


async def test_what_is_acknowledged_is_in_the_files(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    directory = f"{tmp_path}/journal"
    disk = RealDisk(loop)
    journal = Journal.open(disk, RealClock(loop), directory, JOURNAL_ID, released=0, limits=LIMITS)
    events = [asyncio.Event() for _ in range(5)]
    logs = [WaitedLog(partition, journal, 8, event) for partition, event in enumerate(events)]
    for log in logs:
        log.send()
    for event in events:
        await event.wait()
    assert journal.idle
    assert journal.total_bytes > LIMITS.file_bytes_max, "it grew in the background"
    recovered = recover(disk.files, directory, JOURNAL_ID, 0)
    assert recovered.damage == ()
    assert recovered.torn_end is None
    entries = [(entry.key, bytes(entry.batch)) for entry in recovered.entries()]
    for log in logs:
        assert [batch for key, batch in entries if key == log.key] == log.sent

    released = recovered.last_sequence
    journal.release(released)
    journal.close()
    again = Journal.open(disk, RealClock(loop), directory, JOURNAL_ID, released=released, limits=LIMITS)
    done = asyncio.Event()
    log = WaitedLog(7, again, 1, done)
    log.send()
    await done.wait()
    again.close()
    [entry] = recover(disk.files, directory, JOURNAL_ID, released).entries()
    assert entry.sequence == released + 1
    disk.close()
