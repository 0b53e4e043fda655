"""The client that `restore_command` runs: requests one file from the restore server, and starts the server if needed.

    python -I -S restore_client.py %f %p -- python -m ottla.connect.postgres_wal.restore_server ...

PostgreSQL runs it for each file that is not ready yet, so it must start fast: it is a single file that imports only the
standard library. Exit codes: 0, the file is at %p; 44, the log does not have it; any other, it is not known whether the
log has it (`recovery_files` translates these codes for PostgreSQL). Its working directory is the data directory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

SPOOL = os.path.join("pg_wal", "ottla_spool")
"""In PostgreSQL's data directory, so that its user may write there and a rename moves a file into place."""
SOCKET = os.path.join(SPOOL, "socket")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
READY = os.path.join(SPOOL, "ready-")
"""The directory of complete segments. The boot id of the machine is appended to its name, because its files are not
synced: after a crash, files of an earlier boot may lack data that was never written back. On a machine without a boot
id, every file is requested from the server."""
SERVER_LOG = os.path.join(SPOOL, "server.log")
NOT_IN_LOG = 44  # an exit code that neither a shell nor Python uses itself
FAILED = 1
ATTEMPTS = 100
ATTEMPT_PAUSE_S = 0.1


def main() -> int:
    """Runs the program and returns its exit code. With `--check` it only proves that it can be run."""
    if sys.argv[1:] == ["--check"]:
        return 0  # proves that this user can run it
    name, path, separator, *command = sys.argv[1:]
    assert separator == "--"
    request: dict[str, object] = {"name": name, "path": os.path.abspath(path), "command": command}
    try:
        return _fetch(request, command)
    except OSError as failure:
        return _failed(name, f"{type(failure).__name__}: {failure}")


def _fetch(request: dict[str, object], command: list[str]) -> int:
    """Requests the file, and returns the exit code.

    A server that exits between its start and the request, because its predecessor held the lock, is started again.
    """
    name = str(request["name"])
    for _ in range(ATTEMPTS):
        answer = _ask(request)
        if answer is None:
            failure = _start(command)
            if failure is not None:
                return _failed(name, failure)
        elif answer["result"] == "found":
            return 0
        elif answer["result"] == "not in log":
            return NOT_IN_LOG
        elif answer["result"] == "failed":
            return _failed(name, str(answer["reason"]))
        else:  # the server was started with other options, and is about to exit
            time.sleep(ATTEMPT_PAUSE_S)
    return _failed(name, f"the restore server ends immediately; see {os.path.abspath(SERVER_LOG)}")


def _ask(request: dict[str, object]) -> dict[str, object] | None:
    """Returns the reply, or None if no server runs or it exits before it replies. Waits as long as the server works."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(SOCKET)
            connection.sendall(json.dumps(request).encode() + b"\n")
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
        except (FileNotFoundError, ConnectionError):
            return None
    text = b"".join(parts)
    answer: dict[str, object] | None = json.loads(text) if text.endswith(b"\n") else None
    return answer


def _start(command: list[str]) -> str | None:
    """Starts the server, which outlives this process and exits after the recovery. Returns why it did not start."""
    import subprocess

    try:
        os.makedirs(SPOOL, mode=0o700, exist_ok=True)
        log = open(SERVER_LOG, "wb")  # noqa: SIM115 - closed below; only opening it may fail
    except FileNotFoundError:  # a server that exits is removing the spool
        time.sleep(ATTEMPT_PAUSE_S)
        return None
    with log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    assert started.stdout is not None
    with started.stdout:
        said = started.stdout.readline()
    if said == b"ready\n":
        return None
    code = started.wait()
    if said == b"another runs\n":
        time.sleep(ATTEMPT_PAUSE_S)
        return None
    with open(SERVER_LOG, errors="replace") as text:
        return f"the restore server ended with code {code}: {text.read()[-2000:].strip()}"


def _failed(name: str, why: str) -> int:
    print(f"ottla: {name}: {why}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
