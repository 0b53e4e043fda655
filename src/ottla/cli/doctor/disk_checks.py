"""Checks the disk under a data directory: its type, its features and its sync latency. The probe is short."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ottla.cli.doctor.checks import Check, bad, chosen_option, ok, read_number, read_text, warn
from ottla.cli.output import size_text

PROBE_BYTES = 4096
PROBE_FILE_BYTES = 1024 * 1024
PROBE_WRITES_MAX = 200
PROBE_SECONDS_MAX = 1.0
SYNC_GOOD_MS = 2.0
SYNC_BEARABLE_MS = 15.0
SYNC_TOO_FAST_MS = 0.01
FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.1
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "virtiofs"})
_STACKED = frozenset({"overlay", "aufs"})


def disk_checks(directory: Path) -> Iterator[Check]:
    """Yields the checks of the file system and the device under a directory."""
    place = nearest_existing(directory)
    yield _directory(directory, place)
    yield _file_system(place)
    latencies: list[float] = []
    yield from _probe(place, latencies)
    yield _free_space(place)
    yield from _device(place, slow=bool(latencies) and statistics.median(latencies) > SYNC_GOOD_MS)


def nearest_existing(path: Path) -> Path:
    """Returns the path itself or its nearest ancestor that is a directory."""
    path = path.expanduser().absolute()
    while not path.is_dir():
        path = path.parent
    return path


def _directory(directory: Path, place: Path) -> Check:
    shown = str(directory.expanduser().absolute())
    if not os.access(place, os.W_OK | os.X_OK):
        return bad("data directory", shown, f"this user cannot write to {place}; choose another directory with --data")
    return ok(
        "data directory", shown if place == directory.expanduser().absolute() else f"{shown} (does not exist yet)"
    )


class Mount(NamedTuple):
    """One entry of /proc/mounts."""

    point: str
    kind: str
    options: str


def mount_of(path: Path, mounts: str) -> Mount | None:
    """Returns the entry of /proc/mounts for the file system that contains the path."""
    best: Mount | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        point = fields[1].encode().decode("unicode_escape")
        inside = path == Path(point) or Path(point) in path.parents
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, fields[2], fields[3])
    return best


def _file_system(place: Path) -> Check:
    mounts = read_text("/proc/mounts")
    mount = None if mounts is None else mount_of(place, mounts)
    if mount is None:
        return ok("file system", "unknown on this system")
    shown = f"{mount.kind} at {mount.point}"
    if mount.kind in _IN_MEMORY:
        return bad("file system", shown, "it is in memory: `disk` topics on it do not survive a reboot")
    if mount.kind in _REMOTE:
        return warn(
            "file system", shown, "syncs go over the network; a local disk is faster and has simpler failure modes"
        )
    if mount.kind in _STACKED:
        return warn(
            "file system", shown, "the writable layer of a container is deleted with it; mount a volume for --data"
        )
    if "nobarrier" in mount.options.split(",") or "barrier=0" in mount.options.split(","):
        return bad("file system", f"{shown}, barriers off", "syncs do not reach the disk; mount with barriers")
    return ok("file system", shown)


def _probe(place: Path, latencies: list[float]) -> Iterator[Check]:
    """Writes a file of 1 MB and overwrites 4 KiB of it repeatedly, as the journal does.

    Appends the duration of each write, in milliseconds, to `latencies`.
    """
    path = place / f".ottla-doctor-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            yield _fallocate(file.fileno())
            file.write(bytes(PROBE_FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        direct = _measure(path, os.O_DSYNC | getattr(os, "O_DIRECT", 0)) if hasattr(os, "O_DIRECT") else None
        if direct is None:
            yield warn(
                "O_DIRECT with O_DSYNC", "refused", "the journal falls back to buffered writes, each with a sync"
            )
        else:
            yield ok("O_DIRECT with O_DSYNC", "taken")
        latencies += direct or _measure(path, os.O_DSYNC) or []
        if latencies:
            yield _latency(latencies)
    except OSError as failure:
        yield bad("writing", f"{failure.strerror}", f"cannot write to {place}")
    finally:
        path.unlink(missing_ok=True)


def _fallocate(fd: int) -> Check:
    if not hasattr(os, "posix_fallocate"):
        return ok("fallocate", "not available on this system")
    try:
        os.posix_fallocate(fd, 0, PROBE_FILE_BYTES)
    except OSError as failure:
        why = "segments grow block by block, and a full disk is noticed late"
        return warn("fallocate", f"{failure.strerror}", f"the file system cannot reserve space: {why}")
    return ok("fallocate", "taken")


def _measure(path: Path, flags: int) -> list[float] | None:
    """Returns the duration of each write in milliseconds, or None if the file system rejects these flags."""
    try:
        fd = os.open(path, os.O_WRONLY | flags)
    except OSError:
        return None
    latencies: list[float] = []
    try:
        with mmap.mmap(-1, PROBE_BYTES) as buffer:  # page-aligned, as direct I/O requires
            ends_s = time.perf_counter() + PROBE_SECONDS_MAX
            while len(latencies) < PROBE_WRITES_MAX and time.perf_counter() < ends_s:
                started_s = time.perf_counter()
                os.pwrite(fd, buffer, len(latencies) * PROBE_BYTES % PROBE_FILE_BYTES)
                latencies.append((time.perf_counter() - started_s) * 1000)
    except OSError:
        return None
    finally:
        os.close(fd)
    return latencies


def _latency(latencies: list[float]) -> Check:
    median = statistics.median(latencies)
    p99 = sorted(latencies)[min(len(latencies) - 1, len(latencies) * 99 // 100)]
    shown = f"p50 {median:.2f} ms, p99 {p99:.2f} ms over {len(latencies)} writes of 4 KiB"
    if median < SYNC_TOO_FAST_MS:
        return warn(
            "sync latency", shown, "faster than any disk: a layer below may acknowledge syncs without doing them"
        )
    if median <= SYNC_GOOD_MS:
        return ok("sync latency", shown)
    advice = "acknowledgements of `disk` topics wait for a sync; a good SSD takes 0.02 to 0.2 ms"
    return (warn if median <= SYNC_BEARABLE_MS else bad)("sync latency", shown, advice)


def _free_space(place: Path) -> Check:
    usage = shutil.disk_usage(place)
    shown = f"{size_text(usage.free)} of {size_text(usage.total)}"
    if usage.free < FREE_BYTES_MIN:
        return bad(
            "free space", shown, "writes are rejected when the disk is full; free some space, or shorten retention"
        )
    if usage.free < usage.total * FREE_SHARE_MIN:
        return warn("free space", shown, "file systems fragment and slow down below a tenth of free space")
    return ok("free space", shown)


def _device(place: Path, *, slow: bool) -> Iterator[Check]:
    """Checks the block device. Virtual disks often claim to be rotational, so only a slow one is reported."""
    queue = queue_directory(os.stat(place).st_dev)
    if queue is None:
        yield ok("block device", "not visible to this process")
        return
    spins = read_number(queue / "rotational") == 1
    scheduler = chosen_option(read_text(queue / "scheduler") or "unknown")
    if not spins and scheduler in ("bfq", "cfq"):
        advice = f"it reorders requests for fairness, which costs latency; run: echo none > {queue}/scheduler"
        yield warn("I/O scheduler", scheduler, advice)
    else:
        yield ok("I/O scheduler", scheduler)
    merges = read_number(queue / "nomerges")
    hint = f"optional: echo 2 > {queue}/nomerges disables request merging, which the journal's writes never use"
    yield ok("block merges", "off" if merges == 2 else "on", "" if merges == 2 or spins else hint)
    cache = read_text(queue / "write_cache")
    if cache is not None:
        flushes = "a sync flushes it" if cache == "write back" else "a sync needs no flush"
        yield ok("disk write cache", f"{cache}: {flushes}")
    if spins and slow:
        yield warn("disk", "rotational", "a group commit waits about 8 ms for the platter; an SSD is 50 times faster")


def queue_directory(device: int, root: Path = Path("/")) -> Path | None:
    """Returns the kernel's queue settings of the disk under a file system. A partition shares those of its disk."""
    node = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in (node / "queue", node.resolve().parent / "queue"):
        if place.is_dir():
            return place
    return None
