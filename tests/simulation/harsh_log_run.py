"""`LogRun` on a worse disk: it fills up, segments and the journal fail for good, the ring of the journal is too small
for all appends, and index and state files are exchanged or damaged while the broker is down.

None of that may cost anything acknowledged: indexes and states can be rebuilt from segments, and a log that has failed
keeps what the journal has. Some runs end with damage of the journal or of the checkpoint. Then acknowledged records may
be gone, but never without a report.
"""

from __future__ import annotations

import errno

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.journal import recover
from ottla.broker.storage.segment import INDEX_SUFFIX
from ottla.broker.storage.segment_writer import RETRY_FULL_DISK_MS
from ottla.broker.storage.startup.state_file import STATE_FILE
from ottla.protocol.records.batch import read_header
from ottla.sim.disk_fault_plan import DATA_DIR, files_under
from tests.simulation.committed import UnreadableLogError, read_batches
from tests.simulation.log_run import ACKNOWLEDGED, LogRun
from tests.simulation.log_world import JOURNAL_ID, LogModel
from tests.simulation.violations import Violation

FAULT_SHARE = 0.04
SPACE_BYTES = 300_000
BURST = 60
BURST_BYTES = 6000
STRIKES = (
    *("full disk", "full disk", "space", "space", "space"),
    *("no space for a write", "no space for an index", "segments fail", "journal fails", "burst"),
)
DAMAGE_SHARE = 0.08
JOURNAL_SHARE = 0.8


class HarshLogRun(LogRun):
    """One seed."""

    _is_damaged = False
    """Acknowledged data was destroyed: the logs must say so, and the run is over."""

    @property
    def _is_over(self) -> bool:
        return self._is_damaged

    def _act(self, place: int) -> None:
        if self.random.random() < FAULT_SHARE:
            self._strike(place)
        else:
            super()._act(place)

    def _strike(self, place: int) -> None:
        world, random, model = self.world, self.random, self.world.models[place]
        what = random.choice(STRIKES)
        self.fault_counts[what] += 1
        match what:
            case "full disk":
                world.disk.capacity_bytes = world.disk.used_bytes + random.randrange(SPACE_BYTES)
            case "space":
                world.disk.capacity_bytes = None
                world.disk.faults.clear()
                world.have_space()
                world.settle(RETRY_FULL_DISK_MS)
            case "no space for a write":
                world.disk.faults.fail_write(random.randint(1, 4), path=".log", count=2, error=errno.ENOSPC)
            case "no space for an index":
                world.disk.faults.fail_open(path=INDEX_SUFFIX, count=random.choice((3, None)), error=errno.ENOSPC)
            case "segments fail":
                path = world.store.directory_of(model.key)
                world.disk.faults.fail_sync(random.randint(1, 6), path=path, count=random.choice((2, None)))
            case "journal fails":
                world.disk.faults.fail_write(random.randint(1, 30), path="/journal/", count=None)
            case _:
                self._burst(place, model)

    def _burst(self, place: int, model: LogModel) -> None:
        """Appends more than the ring of the journal holds, without a flush in between."""
        for _ in range(BURST):
            if place not in self._cuts:
                self.world.append(model, BURST_BYTES)

    def _start(self) -> None:
        self._exchange_indexes()
        self._damage_a_state()
        if self.random.random() < DAMAGE_SHARE:
            is_journal = self.random.random() < JOURNAL_SHARE
            self._is_damaged = self._damage_the_journal() if is_journal else self._damage_the_checkpoint()
        try:
            self.world.start()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.fault_counts["no space to start"] += 1
            self.world.disk.capacity_bytes = None
            self.world.start()
        self.world.have_space()

    def _exchange_indexes(self) -> None:
        """Gives two segments the index of the other, as a misdirected write could."""
        disk = self.world.disk
        found = [path for path, size in files_under(disk, DATA_DIR) if path.endswith(INDEX_SUFFIX) and size]
        if len(found) < 2 or self.random.random() < 0.5:
            return
        self.fault_counts["indexes exchanged"] += 1
        one, other = self.random.sample(found, 2)
        contents = disk.files.read_file(one), disk.files.read_file(other)
        capacity_bytes, disk.capacity_bytes = disk.capacity_bytes, None
        for path, content in zip((other, one), contents, strict=True):
            disk.files.replace_file(path, content)
        disk.capacity_bytes = capacity_bytes

    def _damage_a_state(self) -> None:
        """Flips a bit in the state of a log that has acknowledged records, from which it can be rebuilt."""
        disk, model = self.world.disk, self.random.choice(self.world.models)
        path = f"{self.world.store.directory_of(model.key)}/{STATE_FILE}"
        log = self.world.log(model)
        if self.random.random() < 0.7 or not disk.files.exists(path) or log.start_offset >= log.acknowledged_end:
            return
        self.fault_counts["state damaged"] += 1
        disk.damage(path, self.random.randrange(len(disk.files.read_file(path))), 1 << self.random.randrange(8))

    def _damage_the_journal(self) -> bool:
        """Flips a bit of a block that a later one names as durable. Damage at the end of a journal cannot be told from
        a torn write."""
        world, store = self.world, self.world.store
        assert store.flusher is not None
        found = recover(world.disk.files, f"{DATA_DIR}/journal", JOURNAL_ID, store.flusher.released_sequence).blocks
        durable = max((block.header.durable_sequence for block in found), default=0)
        found = tuple(block for block in found if block.header.sequence <= durable)
        if not found:
            return False
        self.fault_counts["journal damaged"] += 1
        block = self.random.choice(found)
        at = block.header.offset + self.random.randrange(block.header.block_bytes)
        world.disk.damage(block.path, at, 1 << self.random.randrange(8))
        return True

    def _damage_the_checkpoint(self) -> bool:
        path = f"{DATA_DIR}/checkpoint"
        if not self.world.disk.files.exists(path):
            return False
        self.fault_counts["checkpoint damaged"] += 1
        size = len(self.world.disk.files.read_file(path))
        self.world.disk.damage(path, self.random.randrange(size), 1 << self.random.randrange(8))
        return True

    def _check(self, place: int, model: LogModel) -> None:
        if not self._is_damaged:
            super()._check(place, model)
            return
        log = self.world.log(model)
        if self.world.store.may_lack_entries:
            return  # every log counts as damaged
        for batch in model.batches:
            header = read_header(batch)
            is_kept = log.start_offset < header.next_offset <= model.acknowledged_end
            if is_kept and place not in self._cuts and log.damages.at(header.base_offset) is None:
                self._demand(place, log, batch)

    def _demand(self, place: int, log: FileLog, batch: bytes) -> None:
        offset, end = read_header(batch).base_offset, read_header(batch).next_offset
        try:
            found = next((content for _, content in read_batches(log, max(offset, log.start_offset), end)), None)
        except UnreadableLogError:
            found = None
        if found != batch:
            raise Violation(ACKNOWLEDGED, f"log {place}: offset {offset} is gone, and its log does not say so")
