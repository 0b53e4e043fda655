"""The cluster id, and the record of a broker's last clean shutdown."""

from __future__ import annotations

from ottla.coordination.port import Committed, Coordination, IsAbsent, OutcomeUnknownError, Put
from ottla.ports import FileSystem

CLUSTER_ID = "cluster"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"


async def find_cluster_id(store: Coordination) -> str | None:
    """Returns the id that the first broker gave to the cluster, if any. Raises UnavailableError."""
    found = await store.get(CLUSTER_ID)
    return None if found is None else found.value.decode()


async def agree_on_cluster_id(store: Coordination, proposed: str) -> str:
    """Returns the id of the cluster; a new cluster takes the proposed one. Raises UnavailableError."""
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
    """Returns the broker epoch whose shutdown was clean and deletes the record, since this run is not clean yet.
    Blocking."""
    path = f"{data_dir}/{CLEAN_SHUTDOWN_FILE}"
    if not files.exists(path):
        return None
    text = files.read_file(path).decode(errors="replace").strip()
    files.remove(path)
    files.sync_dir(data_dir)
    return int(text) if text.isdecimal() else None


def note_clean_shutdown(files: FileSystem, data_dir: str, broker_epoch: int) -> None:
    """Records a clean shutdown: everything is synced, so even page-cache data survives a power failure. Blocking."""
    files.replace_file(f"{data_dir}/{CLEAN_SHUTDOWN_FILE}", f"{broker_epoch}\n".encode())
