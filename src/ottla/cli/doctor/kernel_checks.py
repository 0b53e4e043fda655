"""Checks memory, network, clock and processors in /proc and /sys. Skips whatever is missing there."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from ottla.cli.doctor.checks import Check, bad, chosen_option, ok, read_number, read_text, warn
from ottla.cli.output import size_text

OPEN_FILES_GOOD = 16384
OPEN_FILES_MIN = 4096
DIRTY_BYTES_GOOD = 1 << 30
MEMORY_GOOD_BYTES = 2 << 30
SOMAXCONN_GOOD = 1024
SOCKET_BUFFER_GOOD = 2 << 20
_GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"})


def kernel_checks() -> Iterator[Check]:
    """Yields the checks of kernel settings and resource limits."""
    yield ok("kernel", f"{platform.system()} {platform.release()} on {platform.machine()}")
    yield _open_files()
    yield from _memory()
    yield from _dirty_pages()
    yield from _huge_pages()
    yield from _network()
    yield from _processors()
    yield from _clock()


def _open_files() -> Check:
    """Checks the hard limit, because `ottla up` raises its own soft limit up to it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = OPEN_FILES_GOOD if hard == resource.RLIM_INFINITY else hard
    shown = (
        f"{'unlimited' if hard == resource.RLIM_INFINITY else hard} (soft limit {soft}, which the broker raises itself)"
    )
    advice = f"each connection and open segment needs one; set LimitNOFILE={OPEN_FILES_GOOD} in systemd, or ulimit -Hn"
    if top < OPEN_FILES_MIN:
        return bad("open files", shown, advice)
    return ok("open files", shown) if top >= OPEN_FILES_GOOD else warn("open files", shown, advice)


def memory_limit_bytes() -> int | None:
    """Returns how much memory this process may use: the machine's, or less in a container."""
    lines = (read_text("/proc/meminfo") or "").splitlines()
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read_number(path)
        if limit is not None:
            limits.append(limit)
    return min(limits, default=None)


def _memory() -> Iterator[Check]:
    limit = memory_limit_bytes()
    if limit is not None:
        advice = "lower ottla.tail.cache.bytes and ottla.memory.max.bytes, which add up to 1.25 GiB by default"
        good = limit >= MEMORY_GOOD_BYTES
        yield ok("memory", size_text(limit)) if good else warn("memory", size_text(limit), advice)
    swappiness = read_number("/proc/sys/vm/swappiness")
    if swappiness is None:
        return
    has_swap = len((read_text("/proc/swaps") or "").splitlines()) > 1
    if not has_swap:
        yield ok("swap", "none")
    elif swappiness > 10:
        advice = "a broker stalls when its memory is swapped out; run: sysctl vm.swappiness=1"
        yield warn("swap", f"on, swappiness {swappiness}", advice)
    else:
        yield ok("swap", f"on, swappiness {swappiness}")


def _dirty_pages() -> Iterator[Check]:
    """Checks how much dirty data may accumulate in the page cache before the kernel writes it back in one go."""
    root = Path("/proc/sys/vm")
    background = read_number(root / "dirty_background_bytes")
    ratio = read_number(root / "dirty_background_ratio")
    if background is None or ratio is None:
        return
    waiting = background or (memory_limit_bytes() or 0) * ratio // 100
    shown = f"write-back begins at {size_text(waiting)}, expires after {_centiseconds(root / 'dirty_expire_centisecs')}"
    if waiting > DIRTY_BYTES_GOOD:
        advice = "write-back in large bursts delays syncs; run: sysctl vm.dirty_background_bytes=268435456"
        yield warn("dirty pages", shown, advice)
    else:
        yield ok("dirty pages", shown)


def _centiseconds(path: Path) -> str:
    number = read_number(path)
    return "an unknown time" if number is None else f"{number / 100:.0f} s"


def _huge_pages() -> Iterator[Check]:
    text = read_text("/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return
    choice = chosen_option(text)
    if choice == "always":
        advice = "the kernel may stop a process to build huge pages; set transparent_hugepage to madvise"
        yield warn("huge pages", choice, advice)
    else:
        yield ok("huge pages", choice)


def _network() -> Iterator[Check]:
    backlog = read_number("/proc/sys/net/core/somaxconn")
    if backlog is not None:
        advice = f"clients that reconnect all at once are rejected; run: sysctl net.core.somaxconn={SOMAXCONN_GOOD * 4}"
        good = backlog >= SOMAXCONN_GOOD
        yield ok("listen backlog", str(backlog)) if good else warn("listen backlog", str(backlog), advice)
    largest = read_text("/proc/sys/net/ipv4/tcp_wmem")
    if largest is not None and len(largest.split()) == 3:
        size = int(largest.split()[2])
        advice = (
            "this limits the throughput of a connection with a high latency; run: sysctl "
            "net.ipv4.tcp_wmem='4096 65536 16777216'"
        )
        shown = f"up to {size_text(size)}"
        good = size >= SOCKET_BUFFER_GOOD
        yield ok("socket buffers", shown) if good else warn("socket buffers", shown, advice)
    if read_number("/proc/sys/net/ipv4/tcp_slow_start_after_idle") == 1:
        hint = "optional: sysctl net.ipv4.tcp_slow_start_after_idle=0 keeps idle replication links fast"
        yield ok("TCP after idle", "starts slowly", hint)


def _processors() -> Iterator[Check]:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = "the event loop and the disk threads share one core"
    yield ok("processors", str(count)) if count > 1 else warn("processors", str(count), advice)
    governor = read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor in ("powersave", "conservative"):
        yield warn(
            "CPU governor", governor, "short bursts of work run slowly; run: cpupower frequency-set -g performance"
        )
    elif governor is not None:
        yield ok("CPU governor", governor)
    yield from _interrupts(read_text("/proc/interrupts"))


def _interrupts(text: str | None) -> Iterator[Check]:
    """Checks whether a single processor handles all interrupts of disks and network cards."""
    totals = device_interrupts(text or "")
    if len(totals) < 2 or sum(totals) < 100_000:
        return
    share = max(totals) / sum(totals)
    busiest = totals.index(max(totals))
    shown = f"{share:.0%} of the devices' interrupts on CPU {busiest}"
    if share > 0.9 and len(totals) > 2:
        advice = f"distribute them (irqbalance), or keep the broker off CPU {busiest}: taskset -c"
        yield warn("interrupts", shown, advice)
    else:
        yield ok("interrupts", shown)


def device_interrupts(text: str) -> list[int]:
    """Returns the interrupt count of each processor, over the lines of real devices, which are numbered."""
    lines = text.splitlines()
    processors = len(lines[0].split()) if lines else 0
    totals = [0] * processors
    for line in lines[1:]:
        number, _, rest = line.partition(":")
        counts = rest.split()[:processors]
        if number.strip().isdigit() and len(counts) == processors and all(each.isdigit() for each in counts):
            totals = [total + int(each) for total, each in zip(totals, counts, strict=True)]
    return totals


def _clock() -> Iterator[Check]:
    source = read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source is None:
        return
    if source in _GOOD_CLOCKS:
        yield ok("clock", source)
    else:
        yield warn("clock", source, "reading the time needs a system call with this source; prefer tsc or kvm-clock")
