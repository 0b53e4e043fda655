"""What `restore_command` runs: asks the restore server for one file, and starts that server if there is none.

    python -I -S restore_client.py %f %p -- python -m ottla.connect.postgres_wal.restore_server ...

PostgreSQL runs it for each file that is not ready yet, so it must start fast: it is a file of its own that imports
nothing but the standard library. Exit codes: 0, the file is at %p; 44, the log does not have it; any other, nobody
knows (`recovery_files` turns these into what PostgreSQL understands). Its working directory is the data directory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

SPOOL = os.path.join("pg_wal", "ottla_spool")
"""In the server's own directory, so that its user may write there and a file is moved into place by a rename."""
SOCKET = os.path.join(SPOOL, "socket")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
READY = os.path.join(SPOOL, "ready-")
"""The directory of whole segments, with the id of this boot of the machine at its end: files in it are not synced, and
those of a boot before may lack what was not written back. Where there is no such id, each file is asked for."""
SERVER_LOG = os.path.join(SPOOL, "server.log")
NOT_IN_LOG = 44  # an exit code that neither a shell nor Python uses by itself
FAILED = 1
ATTEMPTS = 100
ATTEMPT_PAUSE_S = 0.1


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return 0  # this user can run it
    name, path, separator, *command = sys.argv[1:]
    assert separator == "--"
    request: dict[str, object] = {"name": name, "path": os.path.abspath(path), "command": command}
    try:
        return _fetch(request, command)
    except OSError as failure:
        return _failed(name, f"{type(failure).__name__}: {failure}")


def _fetch(request: dict[str, object], command: list[str]) -> int:
    """A server that ends between its start and our question (its predecessor's lock was held) is started again."""
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
        else:  # it was started with other options, and ends
            time.sleep(ATTEMPT_PAUSE_S)
    return _failed(name, f"the restore server does not stay; see {os.path.abspath(SERVER_LOG)}")


def _ask(request: dict[str, object]) -> dict[str, object] | None:
    """None if no server answers, or if it ended before it did. Waits for as long as it works on the answer."""
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
    """Returns why it did not start. It outlives this process, and ends by itself with the recovery."""
    import subprocess

    try:
        os.makedirs(SPOOL, mode=0o700, exist_ok=True)
        log = open(SERVER_LOG, "wb")  # noqa: SIM115 - closed below; only its opening is tried
    except FileNotFoundError:  # a server that ends removes the spool just now
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
