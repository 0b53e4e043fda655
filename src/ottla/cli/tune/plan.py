"""Lists the kernel settings that matter to a broker on this machine, with the values that suit it.

The groups are those that Redpanda's tuner has: disks, interrupts, limits, memory, processors and the network. A setting
that the system does not have is left out. A limit that is already higher stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ottla.cli.doctor.checks import read_number, read_text
from ottla.cli.tune.interrupts import interrupt_settings
from ottla.cli.tune.settings import Setting, at, read_value

AIO_EVENTS = 1_048_576
OPEN_FILES = 1_048_576
SWAPPINESS = 1
DIRTY_BACKGROUND_BYTES = 256 << 20
DIRTY_BYTES = 1 << 30
LISTEN_BACKLOG = 4096
RECEIVE_BACKLOG = 5000
SOCKET_BUFFER_BYTES = 16 << 20

GROUPS = ("disk", "interrupts", "limits", "swap", "dirty-pages", "huge-pages", "governor", "network")
"""The names that `--only` takes, in the order of the output."""


def plan(root: Path, queue: Path | None) -> list[Setting]:
    """Returns all settings of this machine, tuned or not. `queue` is the directory with the queue settings of the data
    disk, below the root; None if the disk is not visible."""
    return [
        *_disk(root, queue),
        *interrupt_settings(root),
        *_limits(root),
        *_swap(root),
        *_dirty_pages(root),
        *_huge_pages(root),
        *_governors(root),
        *_network(root),
    ]


def _disk(root: Path, queue: Path | None) -> Iterator[Setting]:
    spins = None if queue is None else read_number(queue / "rotational")
    if queue is None or spins is None:
        return
    path = "/" + str(queue.relative_to(root))
    scheduler = read_value(root, f"{path}/scheduler")
    options = (read_text(queue / "scheduler") or "").replace("[", "").replace("]", "").split()
    if scheduler is not None:
        # A disk that turns gains from an order by deadline. Many virtual disks claim to turn; it costs them little.
        good = ("mq-deadline", "deadline", "none", "noop") if spins else ("none", "noop")
        wanted = scheduler if scheduler in good else next((each for each in good if each in options), scheduler)
        reason = "this scheduler reorders requests for fairness, and the journal waits for every write"
        yield Setting("disk", f"{path}/scheduler", scheduler, wanted, reason)
    if not spins:
        reason = "looking for requests to merge costs time on each write, and the journal's writes never merge"
        yield from _setting(root, "disk", f"{path}/nomerges", "2", reason)


def _limits(root: Path) -> Iterator[Setting]:
    reason = "each connection and each open segment needs a file; 1,048,576 is what the systemd unit asks for"
    yield from _at_least(root, "limits", "/proc/sys/fs/nr_open", OPEN_FILES, reason)
    yield from _at_least(root, "limits", "/proc/sys/fs/file-max", OPEN_FILES, reason)
    reason = "databases on this machine that use asynchronous I/O share this limit; Ottla itself needs none of it"
    yield from _at_least(root, "limits", "/proc/sys/fs/aio-max-nr", AIO_EVENTS, reason)


def _swap(root: Path) -> Iterator[Setting]:
    path = "/proc/sys/vm/swappiness"
    value = read_number(at(root, path))
    if value is not None:
        reason = "a broker stalls while its memory is swapped in; the kernel should drop cached files first"
        yield Setting("swap", path, str(value), str(min(value, SWAPPINESS)), reason)


def _dirty_pages(root: Path) -> Iterator[Setting]:
    reason = "write-back starts early and runs evenly; in large bursts it delays the journal's syncs"
    yield from _at_most(root, "dirty-pages", "/proc/sys/vm/dirty_background_bytes", DIRTY_BACKGROUND_BYTES, reason)
    reason = "above this, every write waits for the disk: with a share of all memory, that takes long to happen and end"
    yield from _at_most(root, "dirty-pages", "/proc/sys/vm/dirty_bytes", DIRTY_BYTES, reason)


def _huge_pages(root: Path) -> Iterator[Setting]:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    value = read_value(root, path)
    if value is not None:
        reason = "the kernel may stop a process to build huge pages; programs that gain from them ask for them"
        yield Setting("huge-pages", path, value, "madvise" if value == "always" else value, reason)


def _governors(root: Path) -> Iterator[Setting]:
    reason = "a broker works in bursts of microseconds, which are over before a governor raises the clock rate"
    directory = at(root, "/sys/devices/system/cpu")
    for file in sorted(directory.glob("cpu[0-9]*/cpufreq/scaling_governor")):
        offered = (read_text(file.with_name("scaling_available_governors")) or "performance").split()
        if "performance" in offered:
            yield from _setting(root, "governor", "/" + str(file.relative_to(root)), "performance", reason)


def _network(root: Path) -> Iterator[Setting]:
    reason = "clients that reconnect all at once, as after a failover, are rejected beyond this number"
    yield from _at_least(root, "network", "/proc/sys/net/core/somaxconn", LISTEN_BACKLOG, reason)
    yield from _at_least(root, "network", "/proc/sys/net/ipv4/tcp_max_syn_backlog", LISTEN_BACKLOG, reason)
    reason = "packets that arrive faster than they are processed are dropped beyond this number"
    yield from _at_least(root, "network", "/proc/sys/net/core/netdev_max_backlog", RECEIVE_BACKLOG, reason)
    reason = "a replication link that was idle keeps its rate"
    yield from _setting(root, "network", "/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0", reason)
    reason = "the third number limits the throughput of a connection with a high latency"
    for path in ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"):
        sizes = (read_value(root, path) or "").split()
        if len(sizes) == 3 and all(each.isdigit() for each in sizes):
            wanted = " ".join([*sizes[:2], str(max(int(sizes[2]), SOCKET_BUFFER_BYTES))])
            yield Setting("network", path, " ".join(sizes), wanted, reason)


def _setting(root: Path, group: str, path: str, wanted: str, reason: str) -> Iterator[Setting]:
    value = read_value(root, path)
    if value is not None:
        yield Setting(group, path, value, wanted, reason)


def _at_least(root: Path, group: str, path: str, least: int, reason: str) -> Iterator[Setting]:
    value = read_number(at(root, path))
    if value is not None:
        yield Setting(group, path, str(value), str(max(value, least)), reason)


def _at_most(root: Path, group: str, path: str, most: int, reason: str) -> Iterator[Setting]:
    """A limit in bytes, for which 0 means that a ratio applies instead."""
    value = read_number(at(root, path))
    if value is not None:
        yield Setting(group, path, str(value), str(most if value == 0 else min(value, most)), reason)
