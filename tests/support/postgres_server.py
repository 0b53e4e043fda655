"""A real PostgreSQL server for a test run; tests that need it are skipped if there is none.

with running_postgres() as url: ...
with PostgresServer(settings={"wal_level": "logical"}) as server: server.url, server.kill(), server.start()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from ottla.testing import postgres
from ottla.testing.postgres import Identity, NoPostgresError

__all__ = ["PostgresServer", "running_postgres", "unprivileged"]


def unprivileged() -> Identity:
    try:
        return postgres.unprivileged()
    except NoPostgresError as reason:
        pytest.skip(str(reason))


class PostgresServer(postgres.PostgresServer):
    def __init__(
        self, *, settings: Mapping[str, str] | None = None, hba: str | None = None, initdb: Sequence[str] = ()
    ) -> None:
        try:
            super().__init__(settings=settings, hba=hba, initdb=initdb)
        except NoPostgresError as reason:
            pytest.skip(str(reason))


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yields the server's address, `postgresql://...`."""
    with PostgresServer() as server:
        yield server.url
