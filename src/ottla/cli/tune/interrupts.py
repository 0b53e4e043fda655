"""Settings of the interrupts of network cards and disks: which processor handles them, and how cards coalesce them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ottla.cli.doctor.checks import read_text
from ottla.cli.tune.coalescing import adaptive_path, rx_delay_us
from ottla.cli.tune.settings import Setting, at, read_value


def interrupt_settings(root: Path) -> Iterator[Setting]:
    """Yields the settings that spread interrupts over the processors, and those of coalescing on network cards."""
    if not is_balanced_by_daemon(root):
        yield from _affinities(root)
    yield from _coalescing(root)


def is_balanced_by_daemon(root: Path) -> bool:
    """Returns whether irqbalance runs. It distributes interrupts itself and would undo other choices."""
    names = at(root, "/proc").glob("[0-9]*/comm")
    return any(read_text(name) == "irqbalance" for name in names)


def _affinities(root: Path) -> Iterator[Setting]:
    """The queues of each device, one after another on all processors. A device with one queue stays where it is: moving
    it gains nothing."""
    processors = _processors(root)
    if len(processors) < 2:
        return
    reason = "one processor would handle all interrupts of the device, and delay the broker that runs on it"
    for numbers in _device_interrupts(root):
        paths = [f"/proc/irq/{number}/smp_affinity_list" for number in numbers]
        values = {path: value for path in paths if (value := read_value(root, path)) is not None}
        # Spread already, by the driver or by somebody else: leave it.
        if len(values) < 2 or len(set(values.values())) > 1:
            continue
        for place, (path, value) in enumerate(values.items()):
            yield Setting("interrupts", path, value, str(processors[place % len(processors)]), reason)


def _processors(root: Path) -> list[int]:
    names = [path.name for path in at(root, "/sys/devices/system/cpu").glob("cpu[0-9]*")]
    return sorted(int(name[3:]) for name in names if name[3:].isdigit())


def _device_interrupts(root: Path) -> Iterator[list[int]]:
    """Yields the interrupt numbers of each network card and each disk that has several."""
    seen: set[Path] = set()
    for kind in ("net", "block"):
        for device in sorted(at(root, f"/sys/class/{kind}").glob("*/device")):
            directory = _interrupt_directory(device.resolve())
            if directory is None or directory in seen:
                continue
            seen.add(directory)
            numbers = sorted(int(each.name) for each in directory.iterdir() if each.name.isdigit())
            if len(numbers) > 1:
                yield numbers


def _interrupt_directory(device: Path) -> Path | None:
    """Returns the list of interrupts of a device. Those of virtual devices and NVMe disks belong to a parent."""
    for place in (device, device.parent):
        if (place / "msi_irqs").is_dir():
            return place / "msi_irqs"
    return None


def _coalescing(root: Path) -> Iterator[Setting]:
    """Cards that always wait before they interrupt. One that interrupts at once has nothing to adapt."""
    reason = "the card waits for more packets before it reports the first; adapting, it does so under load only"
    for device in sorted(at(root, "/sys/class/net").glob("*/device")):
        path = adaptive_path(device.parent.name)
        value = read_value(root, path)
        if value == "1" or (value == "0" and rx_delay_us(device.parent.name)):
            yield Setting("interrupts", path, value, "1", reason)
