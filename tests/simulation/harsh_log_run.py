"""`LogRun` on a worse disk: it fills up, segments and the journal fail for good, the ring of the journal is too small
for all appends, and index and state files are exchanged or damaged while the broker is down.

None of that may cost anything acknowledged: indexes and states can be rebuilt from segments, and a log that has failed
keeps what the journal has.
"""

from __future__ import annotations

import errno

from ottla.broker.storage.segment import INDEX_SUFFIX
from ottla.broker.storage.startup.state_file import STATE_FILE
from ottla.sim.disk_fault_plan import DATA_DIR, files_under
from tests.simulation.log_run import LogRun
from tests.simulation.log_world import LogModel

FAULT_SHARE = 0.04
SPACE_BYTES = 300_000
BURST = 60
BURST_BYTES = 6000


class HarshLogRun(LogRun):
    """One seed."""

    def _act(self, place: int) -> None:
        if self.random.random() < FAULT_SHARE:
            self._strike(place)
        else:
            super()._act(place)

    def _strike(self, place: int) -> None:
        world, random, model = self.world, self.random, self.world.models[place]
        what = random.choice(("full disk", "full disk", "space", "space", "segments fail", "journal fails", "burst"))
        self.fault_counts[what] += 1
        match what:
            case "full disk":
                world.disk.capacity_bytes = world.disk.used_bytes + random.randrange(SPACE_BYTES)
            case "space":
                world.disk.capacity_bytes = None
                world.have_space()
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
