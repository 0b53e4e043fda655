"""Who a broker is in its cluster, and what it tells of its last run."""

from __future__ import annotations

from ottla.coordination.port import Committed, Coordination, IsAbsent, OutcomeUnknownError, Put
from ottla.ports import FileSystem

CLUSTER_ID = "cluster"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"


async def find_cluster_id(store: Coordination) -> str | None:
    """The id that the first broker gave to the cluster. Raises UnavailableError."""
    found = await store.get(CLUSTER_ID)
    return None if found is None else found.value.decode()


async def agree_on_cluster_id(store: Coordination, proposed: str) -> str:
    """The id of the cluster, which gets the proposed one if it is new. Raises UnavailableError."""
    while True:
        found = await find_cluster_id(store)
        if found is not None:
            return found
        try:
            outcome = await store.commit([IsAbsent(CLUSTER_ID)], [Put(CLUSTER_ID, proposed.encode())])
        except OutcomeUnknownError:
            continue
        if isinstance(outcome, Committed):
            return proposed


def take_clean_shutdown(files: FileSystem, data_dir: str) -> int | None:
    """The broker epoch whose shutdown was clean. Once: from now on this run is not. Blocking."""
    path = f"{data_dir}/{CLEAN_SHUTDOWN_FILE}"
    if not files.exists(path):
        return None
    text = files.read_file(path).decode(errors="replace").strip()
    files.remove(path)
    files.sync_dir(data_dir)
    return int(text) if text.isdecimal() else None


def note_clean_shutdown(files: FileSystem, data_dir: str, broker_epoch: int) -> None:
    """Everything is synced: what was only in the page cache survives a power cut now. Blocking."""
    files.replace_file(f"{data_dir}/{CLEAN_SHUTDOWN_FILE}", f"{broker_epoch}\n".encode())
