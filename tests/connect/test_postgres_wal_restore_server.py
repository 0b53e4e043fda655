"""The restore server: prefetches WAL for a recovering PostgreSQL, and never serves less than the log has."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.connect.postgres_wal.backup_store import Backup
from ottla.connect.postgres_wal.positions import Lsn, Segment, parse_lsn, segment_start
from ottla.connect.postgres_wal.restore_client import BOOT_ID, READY, SPOOL
from ottla.connect.postgres_wal.segments import write_segment
from ottla.testing import Cluster
from tests.connect.wal_keeping import SETTINGS, TIMEOUT_S, Keeper, ask
from tests.support.postgres_server import PostgresServer, unprivileged

SEGMENT_BYTES = 1 << 20
SEGMENTS = 24
NOT_THERE, FATAL = 1, 255
"""PostgreSQL takes 1 for the end of the WAL; a code above 125 stops it."""


@dataclass(frozen=True, slots=True)
class Story:
    keeper: Keeper
    backup: Backup

    def segments(self) -> list[Segment]:
        """All segments of the log from the backup on; the last one is incomplete."""
        end = parse_lsn(self.keeper.sql("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        starts = range(segment_start(self.backup.start, SEGMENT_BYTES), end, SEGMENT_BYTES)
        return [Segment(self.backup.timeline, Lsn(start), SEGMENT_BYTES) for start in starts]

    def content(self, segment: Segment, path: Path) -> bytes:
        """The content as read directly from the log."""

        async def read(log: Any) -> None:
            with path.open("wb") as out:
                assert await write_segment(log, segment, out)

        self.keeper.with_log(read)
        return path.read_bytes()


def write_rows(keeper: Keeper, megabytes: int) -> None:
    for _ in range(megabytes):
        keeper.sql("INSERT INTO t SELECT repeat(md5(g::text), 30) FROM generate_series(1, 1000) g")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Small segments, so that there are more than the spool holds."""
    directory = tmp_path_factory.mktemp("keeping")
    with (
        Cluster(wal=True) as cluster,
        PostgresServer(settings=SETTINGS, initdb=["--wal-segsize=1"]) as server,
    ):
        keeper = Keeper(cluster, server, directory)
        keeper.restore_options = ["--spool-mb", "4"]
        with keeper.keeping():
            keeper.sql("CREATE TABLE t (text text)")
            backup = keeper.backup()
            write_rows(keeper, SEGMENTS)
        yield Story(keeper, backup)


class Recovery:
    """A restored directory whose restore_command is run as a server would; this process stands in for the server."""

    def __init__(self, keeper: Keeper) -> None:
        self._server = PostgresServer(settings=SETTINGS)
        keeper.lay_down(self._server)
        self.directory = Path(self._server.data_dir)
        self._pid_file = self.directory / "postmaster.pid"
        self._pid_file.write_text(f"{os.getpid()}\n{self.directory}\n")
        lines = (self.directory / "postgresql.auto.conf").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("restore_command")]
        self.command = line.split("= '", 1)[1][:-1].replace("''", "'").replace("\\\\", "\\")
        self.path = self.directory / "pg_wal" / "RECOVERYXLOG"
        self.said = ""

    @property
    def spool(self) -> Path:
        return self.directory / SPOOL

    def ask(self, name: str) -> int:
        self.path.unlink(missing_ok=True)
        words = self.command.replace("%f", name).replace("%p", "pg_wal/RECOVERYXLOG").replace("%%", "%")
        done = subprocess.run(
            ["sh", "-c", words], cwd=self.directory, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        self.said = done.stderr
        return done.returncode

    def take(self, segment: Segment) -> bytes:
        assert self.ask(segment.name) == 0, self.said
        return self.path.read_bytes()

    def servers(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            line = process.info["cmdline"] or []
            if "ottla.connect.postgres_wal.restore_server" in line and process.info["cwd"] == str(self.directory):
                found.append(process)
        return found

    def ready(self) -> list[str]:
        return sorted(each.name for each in self.spool.glob("ready-*/*"))

    def end(self) -> None:
        self._pid_file.unlink(missing_ok=True)

    def close(self) -> None:
        self.end()
        for each in self.servers():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._server.close()


@pytest.fixture
def recovery(story: Story) -> Iterator[Recovery]:
    recovery = Recovery(story.keeper)
    try:
        yield recovery
    finally:
        recovery.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def test_one_server_gives_all_segments_in_bounded_space(story: Story, recovery: Recovery, tmp_path: Path) -> None:
    segments = story.segments()
    assert len(segments) >= SEGMENTS
    for segment in segments:
        assert recovery.take(segment) == story.content(segment, tmp_path / "file"), segment.name
        assert len(recovery.ready()) <= 4
    [server] = recovery.servers()
    assert recovery.ask(segments[-1].next.name) == NOT_THERE
    assert recovery.ask("00000002.history") == NOT_THERE
    assert recovery.ask(f"{segments[0].name}.00000028.backup") == NOT_THERE
    recovery.end()
    until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, "it ends with its server")
    until(lambda: not recovery.spool.exists(), "it leaves nothing behind")


def test_a_ready_segment_needs_no_server(story: Story, recovery: Recovery, tmp_path: Path) -> None:
    """The fast path: a rename. Files from before a reboot are not trusted, even if they look complete."""
    first, second, third, *_ = story.segments()
    stale = recovery.directory / f"{READY}another-boot"
    stale.mkdir(parents=True)
    (stale / first.name).write_bytes(bytes(SEGMENT_BYTES))
    assert recovery.take(first) == story.content(first, tmp_path / "file")
    assert not stale.exists(), "the server has emptied the spool"
    until(lambda: {second.name, third.name} <= set(recovery.ready()), "it reads ahead")
    [server] = recovery.servers()
    server.send_signal(signal.SIGSTOP)
    try:
        assert recovery.take(second) == story.content(second, tmp_path / "file")
    finally:
        server.send_signal(signal.SIGCONT)
    boot = Path(BOOT_ID).read_text().strip()
    assert (recovery.directory / f"{READY}{boot}").is_dir()


def test_a_server_that_goes_back_or_ahead_gets_what_it_asks_for(
    story: Story, recovery: Recovery, tmp_path: Path
) -> None:
    """PostgreSQL, restarted during its recovery, starts again at its last restartpoint."""
    segments = story.segments()
    for number in (0, 1, 2, 3, 1, 2, 9, 10, 0, 1):
        assert recovery.take(segments[number]) == story.content(segments[number], tmp_path / "file"), number
    assert len(recovery.servers()) == 1


def test_a_segment_that_was_taken_is_given_again(story: Story, recovery: Recovery, tmp_path: Path) -> None:
    """At the end of a recovery PostgreSQL requests the last segment again, which it has renamed itself."""
    *_, first, second, third, last = story.segments()
    recovery.take(first)
    until(lambda: recovery.ready() == [second.name, third.name], "it reads ahead up to the end")
    for segment in (second, third, third, last, third, last, last):
        assert recovery.take(segment) == story.content(segment, tmp_path / "file"), segment.name


def test_a_log_of_another_database_is_refused(story: Story, recovery: Recovery) -> None:
    """Also by the prefetch: its segments would have the right names."""
    words = recovery.command.split("--system-id ", 1)
    recovery.command = f"{words[0]}--system-id 4711 {words[1].split(' ', 1)[1]}"
    for _ in range(2):
        assert recovery.ask(story.segments()[0].name) == FATAL
        assert "this log does not contain the WAL of this database" in recovery.said
        assert recovery.ready() == []


def test_a_killed_restore_server_is_started_again(story: Story, recovery: Recovery, tmp_path: Path) -> None:
    segments = story.segments()
    for number, segment in enumerate(segments):
        if number in (2, 9):
            [server] = recovery.servers()
            server.kill()
            server.wait(TIMEOUT_S)
        assert recovery.take(segment) == story.content(segment, tmp_path / "file")


def test_brokers_that_go_away_are_not_the_end_of_the_log(story: Story, recovery: Recovery) -> None:
    """Prefetched segments are served; after that the command stops the server, and never reports a missing file."""
    segments = story.segments()
    recovery.take(segments[0])
    until(lambda: len(recovery.ready()) == 4, "it reads ahead")
    story.keeper.cluster.stop()
    try:
        code = 0
        for segment in segments[1:]:
            code = _impatient(recovery, segment)
            if code != 0:
                break
        assert code == FATAL
        assert _impatient(recovery, segments[-1].next) == FATAL
    finally:
        story.keeper.cluster.start()
    assert recovery.ask(segments[1].name) == 0, recovery.said


def _impatient(recovery: Recovery, segment: Segment) -> int:
    """A client killed while it waits for the brokers counts as a failure too."""
    words = recovery.command.replace("%f", segment.name).replace("%p", "pg_wal/RECOVERYXLOG").replace("%%", "%")
    words = words.replace(f"; {sys.executable} -I", f"; timeout 3 {sys.executable} -I")
    done = subprocess.run(["sh", "-c", words], cwd=recovery.directory, check=False, capture_output=True, timeout=60)
    return done.returncode


def test_the_end_of_the_log_is_read_anew(story: Story, recovery: Recovery, tmp_path: Path) -> None:
    """The last segment is incomplete. Later WAL belongs to it too, even if it was requested before."""
    keeper = story.keeper
    *_, before, last = story.segments()
    recovery.take(before)
    short = recovery.take(last)
    assert short.endswith(bytes(64))
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES ('later')")
    assert recovery.take(last) != short
    assert recovery.path.read_bytes() == story.content(last, tmp_path / "file")


def _has_restored(target: PostgresServer, count: int) -> bool:
    return target.log().count("restored log file") >= count


def test_a_server_killed_in_its_recovery_recovers_everything(story: Story) -> None:
    keeper = story.keeper
    expected = keeper.sql("SELECT count(*), md5(string_agg(text, '' ORDER BY text)) FROM t")
    target = PostgresServer(settings={**SETTINGS, "hot_standby": "off"})
    try:
        keeper.lay_down(target)
        for number in (4, 12):
            target.spawn()
            until(functools.partial(_has_restored, target, number), target.log())
            target.kill()
            Path(target.data_dir, "postmaster.pid").unlink(missing_ok=True)
        target.spawn()
        target.wait_until_recovered()
        assert ask(target, "SELECT count(*), md5(string_agg(text, '' ORDER BY text)) FROM t") == expected
        until(lambda: not Path(target.data_dir, SPOOL).exists(), "the spool goes with the recovery")
    finally:
        target.close()


# The user that runs the server.

STANDARD = os.path.dirname(os.__file__)
PACKAGES = [each for each in sys.path if "site-packages" in each or not each.startswith(os.path.dirname(STANDARD))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES)}


def restore_as(*words: str, executable: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [executable, "-m", "ottla", "restore", "postgres", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=240)


def options_of(keeper: Keeper, to: Path) -> list[str]:
    place = ["--store", keeper.store.place, "--wal", keeper.place.servers, "--log", keeper.place.name]
    return [*place, "--to", str(to)]


def stranger() -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can see whether another user could run it")
    names = sorted((each.pw_name for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody")), reverse=True)
    return names[0] if names else pytest.skip("there is neither a user postgres nor nobody")


def python_of(user: str) -> str:
    """Returns a Python that the user can run with this ottla: ours may be in a home directory without access."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for each in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        with contextlib.suppress(OSError):
            imports = "import ottla.wal, ottla.connect.postgres_wal.server"
            run = subprocess.run([each, "-c", imports], user=user, env=ENVIRONMENT, check=False, capture_output=True)
            if run.returncode == 0:
                return each
    return pytest.skip(f"{user} can run no Python with ottla here")


def test_a_user_that_cannot_run_python_is_noticed_before_anything_is_laid_down(story: Story, tmp_path: Path) -> None:
    user = stranger()
    tmp_path.chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    python = closed / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    to = tmp_path / "data"
    said = restore_as(*options_of(story.keeper, to), "--server-user", user, executable=str(python))
    assert said.returncode == 1
    assert f"the user {user!r}, who is to run PostgreSQL, cannot fetch WAL from the log" in said.stderr
    assert "Grant it (chmod o+rx " in said.stderr
    assert "Nothing was restored" in said.stderr
    assert not to.exists()


def test_a_directory_that_the_user_cannot_reach_is_noticed(story: Story, tmp_path: Path) -> None:
    user = stranger()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    said = restore_as(*options_of(story.keeper, closed / "data"), "--server-user", user)
    assert said.returncode == 1
    assert "has no access to" in said.stderr
    assert not (closed / "data").exists()
    unknown = restore_as(*options_of(story.keeper, closed / "data"), "--server-user", "nobody-at-all")
    assert unknown.returncode == 1
    assert "the user 'nobody-at-all' does not exist" in unknown.stderr


def test_root_starts_it_as_the_user_who_owns_it(story: Story) -> None:
    user = stranger()
    python = python_of(user)
    server = PostgresServer()
    home = Path(server.home)
    home.chmod(0o755)
    uid = pwd.getpwnam(user).pw_uid
    os.chown(home, uid, -1)
    conf = "listen_addresses = ''\nfsync = off\n"
    try:
        to = Path(server.data_dir)
        said = restore_as(*options_of(story.keeper, to), "--server-user", user, "--at", "1", "--before")
        assert said.returncode == 1, "the backup is after transaction 1: nothing is laid down"
        laid = restore_as(*options_of(story.keeper, to), "--server-user", user, executable=python)
        assert laid.returncode == 0, laid.stderr
        assert {each.stat().st_uid for each in (to, to / "PG_VERSION", to / "pg_wal")} == {uid}
        assert f"su -s /bin/sh {user} -c " in laid.stdout
        with (to / "postgresql.conf").open("a") as file:
            file.write(f"{conf}unix_socket_directories = '{home}'\n")
        [line] = [line for line in laid.stdout.splitlines() if "pg_ctl" in line]
        subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, env=ENVIRONMENT)
        try:
            server.wait_for_status()
            assert ask(server, "SELECT count(*) > 0 FROM t") == [(True,)]
        finally:
            stop = [str(server.binaries / "pg_ctl"), "-D", str(to), "-m", "immediate", "stop"]
            subprocess.run(stop, user=user, check=True, stdout=subprocess.DEVNULL, cwd="/")
    finally:
        server.close()


def test_who_owns_files_that_a_test_server_reads() -> None:
    assert pwd.getpwnam(unprivileged().file_owner)
