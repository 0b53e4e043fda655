"""How fast a restored PostgreSQL gets its WAL from the log.

    python -m benchmarks.postgres_restore [--wal-mb 512] [--runs 2] [--only TEXT] [--json FILE]

A PostgreSQL server writes rows while its WAL is stored in a log on three brokers, each a process on this machine. Then
the same WAL is fetched again in these ways, which take turns:

    a process per segment  `python -m ottla.connect.postgres_wal.fetch`, started for each file: the
                           restore_command before there was a restore server
    restore server         the restore_command that `ottla restore postgres` writes now
    cp                     from a directory with the same files: the limit of PostgreSQL and this machine

Each is measured twice: `files` runs the command for one segment after another, as the server would, and `recovery` is a
whole recovery of a server with fsync off, from its start until it accepts connections. The fastest run counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.connect.wal_keeping import Keeper
from tests.processes.postgres.world import WalBrokers
from tests.support.postgres_server import PostgresServer, unprivileged

from ottla.bench.quotients import rate
from ottla.cli.output import print_table, say
from ottla.connect.postgres_wal.positions import Lsn, Segment, parse_lsn, segment_start
from ottla.connect.postgres_wal.recovery_files import restore_command

SETTINGS = {"max_slot_wal_keep_size": "8GB", "shared_buffers": "128MB", "max_wal_size": "4GB", "hot_standby": "off"}
ROWS_MB = 16
ROWS = (
    "INSERT INTO rows SELECT g, md5(g::text) || md5((g + 1)::text) || repeat('x', 400) FROM generate_series(1, 25000) g"
)
BEFORE, NOW, COPY = "a process per segment", "restore server", "cp"


@dataclass(slots=True)
class Measured:
    files_mb_s: list[float] = field(default_factory=list)
    recovery_mb_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Story:
    keeper: Keeper
    segments: list[Segment]
    """All complete segments that a recovery needs."""
    wal_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wal-mb", type=int, default=512)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", default="", help="only the methods whose name contains this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ways = [way for way in (BEFORE, NOW, COPY) if options.only in way]
    found = {way: Measured() for way in ways}
    directory = Path(tempfile.mkdtemp(prefix="ottla-restore-"))
    try:
        with WalBrokers(directory / "brokers") as brokers, PostgresServer(settings=SETTINGS) as server:
            story = write_wal(Keeper(brokers, server, directory), options.wal_mb)  # type: ignore[arg-type] # the same names
            server.stop()
            say(f"{story.wal_bytes / 1e6:.0f} MB of WAL, {len(story.segments)} segments")
            for number in range(options.runs):
                for way in ways:
                    measure(story, way, found[way], directory)
                    files, recovery = found[way].files_mb_s[-1], found[way].recovery_mb_s[-1]
                    say(f"run {number + 1}, {way}: {files:.1f} and {recovery:.1f} MB/s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report(found, story, options.json)
    return 0


def write_wal(keeper: Keeper, wal_mb: int) -> Story:
    with keeper.keeping():
        keeper.sql("CREATE TABLE rows (id int, text text)")
        backup = keeper.backup()
        for number in range(wal_mb // ROWS_MB):
            keeper.sql(ROWS, *(["TRUNCATE rows"] if number % 16 == 15 else []))
        end = parse_lsn(keeper.sql("SELECT pg_switch_wal()::text")[0][0])
        keeper.sql("INSERT INTO rows VALUES (1, 'the end')")
    first = segment_start(backup.start, backup.segment_bytes)
    starts = range(first, segment_start(end, backup.segment_bytes), backup.segment_bytes)
    segments = [Segment(backup.timeline, Lsn(start), backup.segment_bytes) for start in starts]
    return Story(keeper, segments, len(segments) * backup.segment_bytes)


def measure(story: Story, way: str, found: Measured, directory: Path) -> None:
    with laid_down(story, way, directory) as target:
        found.files_mb_s.append(story.wal_bytes / 1e6 / files_s(story, target))
    with laid_down(story, way, directory) as target:
        began_s = time.monotonic()
        target.spawn()
        target.wait_until_recovered(timeout_s=1800)
        found.recovery_mb_s.append(rate(story.wal_bytes / 1e6, time.monotonic() - began_s))


@contextmanager
def laid_down(story: Story, way: str, directory: Path) -> Iterator[PostgresServer]:
    """Lays down a data directory whose restore_command is the one to measure."""
    target = PostgresServer(settings=SETTINGS)
    try:
        story.keeper.lay_down(target)
        command = command_of(story, way, directory)
        if command is not None:
            target.settings["restore_command"] = command
        yield target
    finally:
        target.close()


def command_of(story: Story, way: str, directory: Path) -> str | None:
    """Returns the restore_command, or None to keep the one that was laid down."""
    segment = story.segments[0]
    system_id = story.keeper.store.backups()[0].system_id
    if way == NOW:
        return None
    fetch = [sys.executable, "-m", "ottla.connect.postgres_wal.fetch", "--wal", story.keeper.place.servers]
    fetch += ["--log", story.keeper.place.name, "--system-id", str(system_id)]
    command = restore_command([*fetch, "--segment-bytes", str(segment.size_bytes)])
    if way == BEFORE:
        return command
    copies = directory / "copies"
    if not copies.exists():
        copies.mkdir()
        end = story.segments[-1]
        names = [each.name for each in story.segments]
        names.append(Segment(end.timeline, end.end_lsn, end.size_bytes).name)
        for name in names:
            run(command, name, copies / name, directory)
    return f'cp {shlex.quote(str(copies))}/%f "%p" 2>/dev/null'


def files_s(story: Story, target: PostgresServer) -> float:
    """Returns how long the command takes for all segments, one after another, in the server's directory."""
    command = target.settings.get("restore_command") or laid_down_command(target)
    place = Path(target.data_dir)
    (place / "postmaster.pid").write_text(f"{os.getpid()}\n{place}\n")  # the restore server ends with its server
    began_s = time.monotonic()
    for segment in story.segments:
        run(command, segment.name, Path("pg_wal/RECOVERYXLOG"), place)
    took_s = time.monotonic() - began_s
    size = (place / "pg_wal/RECOVERYXLOG").stat().st_size
    assert size == story.segments[-1].size_bytes, f"the last file has {size} bytes"
    (place / "postmaster.pid").unlink()
    return took_s


def laid_down_command(target: PostgresServer) -> str:
    lines = Path(target.data_dir, "postgresql.auto.conf").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("restore_command")]
    return line.split("= '", 1)[1][:-1].replace("''", "'").replace("\\\\", "\\")


def run(command: str, name: str, path: Path, directory: Path) -> None:
    words = command.replace("%f", name).replace("%p", str(path)).replace("%%", "%")
    subprocess.run([*unprivileged().prefix, "sh", "-c", words], check=True, cwd=directory, user=unprivileged().user)


def report(found: dict[str, Measured], story: Story, json_file: Path | None) -> None:
    rows = [(way, f"{max(each.files_mb_s):.1f}", f"{max(each.recovery_mb_s):.1f}") for way, each in found.items()]
    print_table(["MB/s", "files", "recovery"], rows, right=["files", "recovery"])
    if BEFORE in found and NOW in found:
        before, now = found[BEFORE], found[NOW]
        files = max(now.files_mb_s) / max(before.files_mb_s)
        recovery = max(now.recovery_mb_s) / max(before.recovery_mb_s)
        print(f"the restore server is {files:.1f} times as fast for files, and {recovery:.1f} times for a recovery")
    if json_file is not None:
        rows_of = {
            way: {"files_mb_s": each.files_mb_s, "recovery_mb_s": each.recovery_mb_s} for way, each in found.items()
        }
        json_file.write_text(json.dumps({"wal_bytes": story.wal_bytes, "mb_s": rows_of}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
