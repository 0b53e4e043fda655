"""One broker with an append stream for all tests here; a database and a log for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing import Cluster
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(wal=True, storage="memory") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def servers(cluster: Cluster) -> str:
    return cluster.wal_servers


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(tmp_path / "a.db", "journal_mode=WAL", "wal_autocheckpoint=0") as app:
        app.do("CREATE TABLE t (x, y)", "CREATE TABLE big (data)")
        yield app


@pytest.fixture
def followed(tmp_path: Path, servers: str, app: App) -> Iterator[Followed]:
    """The app's database, not followed yet."""
    followed = Followed(tmp_path / "a.db", servers, f"log-{uuid.uuid4().hex[:8]}")
    yield followed
    followed.leave()
