"""The identity and format version of a data directory: the file `FORMAT`, written once and read at each start."""

from __future__ import annotations

import base64
import posixpath
from dataclasses import dataclass
from uuid import UUID, uuid4

from ottla.broker.adapters.lock import LOCK_FILE
from ottla.ports import FileSystem

FORMAT_FILE = "FORMAT"
FORMAT_VERSION = 1
"""Increase it when an older Ottla can no longer read what this one writes."""

_NOT_OURS_BUT_HARMLESS = frozenset({LOCK_FILE, "lost+found", f"{FORMAT_FILE}.tmp", "security", "client.properties"})
"""The last two are those of `ottla up --secure`."""


class UnusableDirectoryError(Exception):
    """The data directory cannot be used as it is. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """The contents of the file `FORMAT`."""

    path: str
    version: int
    cluster_id: str
    node_id: int
    directory_id: UUID
    """Distinguishes a directory from one that replaced it: a broker that came back empty must not look in sync."""


def open_data_directory(files: FileSystem, path: str, *, node_id: int, cluster_id: str | None = None) -> DataDirectory:
    """Reads the directory's identity, or assigns one if the directory is new and empty. Blocking."""
    found = read_identity(files, path, node_id=node_id)
    if found is None:
        files.make_dirs(path)
        fresh = DataDirectory(path, FORMAT_VERSION, cluster_id or new_cluster_id(), node_id, uuid4())
        files.sync_dir(_parent(path))
        files.replace_file(posixpath.join(path, FORMAT_FILE), _format_text(fresh).encode())
        return fresh
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise UnusableDirectoryError(
            f"The data in {path} belongs to the cluster {found.cluster_id}, not to {cluster_id}. "
            "Join that cluster, or give this broker another directory."
        )
    return found


def read_identity(files: FileSystem, path: str, *, node_id: int) -> DataDirectory | None:
    """Reads the directory's identity without changing anything; None if the directory is new. Blocking. Raises
    UnusableDirectoryError."""
    format_path = posixpath.join(path, FORMAT_FILE)
    if not files.exists(format_path):
        if files.exists(path):
            _demand_empty(files, path)
        return None
    found = _parse(path, files.read_file(format_path).decode(errors="replace"))
    if found.node_id != node_id:
        raise UnusableDirectoryError(
            f"The data in {path} belongs to node {found.node_id}, and this broker is node {node_id}. "
            f"Start it with node.id={found.node_id}, or give it another directory."
        )
    return found


def new_cluster_id() -> str:
    """Returns a random id of 22 characters, like Kafka's."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def _parent(path: str) -> str:
    return posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")


def _demand_empty(files: FileSystem, path: str) -> None:
    foreign = [name for name in files.list_dir(path) if name not in _NOT_OURS_BUT_HARMLESS]
    if foreign:
        raise UnusableDirectoryError(
            f"{path} has files but no {FORMAT_FILE} file, so it is not a data directory of Ottla "
            f"(it holds {', '.join(foreign[:3])}{', ...' if len(foreign) > 3 else ''}). Give an empty directory."
        )


def _format_text(directory: DataDirectory) -> str:
    return (
        "# The identity of this data directory. Do not edit.\n"
        f"version={directory.version}\n"
        f"cluster.id={directory.cluster_id}\n"
        f"node.id={directory.node_id}\n"
        f"directory.id={directory.directory_id}\n"
    )


def _parse(path: str, text: str) -> DataDirectory:
    lines = (line.strip() for line in text.splitlines())
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        version = int(fields["version"])
        if version > FORMAT_VERSION:
            raise UnusableDirectoryError(
                f"The data in {path} was written by a newer Ottla (format {version}; this version reads up to "
                f"{FORMAT_VERSION}). Upgrade Ottla, or give this broker another directory."
            )
        return DataDirectory(path, version, fields["cluster.id"], int(fields["node.id"]), UUID(fields["directory.id"]))
    except (KeyError, ValueError) as error:
        raise UnusableDirectoryError(
            f"{posixpath.join(path, FORMAT_FILE)} is damaged ({error!r}). Restore it from a backup: "
            "it has the lines version, cluster.id, node.id and directory.id."
        ) from error
