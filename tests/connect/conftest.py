"""One PostgreSQL server and one broker for all tests of a run; each test has its own databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from ottla.testing import Cluster
from tests.support.object_store import s3_bucket
from tests.support.postgres_server import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"wal_level": "logical", "max_replication_slots": "50"}) as server:
        yield server


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """A bucket of an S3-compatible store."""
    with s3_bucket() as address:
        yield address


@pytest.fixture
def new_database(postgres: PostgresServer) -> Callable[[], str]:
    """Creates a database and returns its address."""

    def create() -> str:
        name = f"database_{next(_numbers)}"
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return postgres.url_of(name)

    return create


@pytest.fixture
def prefix() -> str:
    """The topic prefix and connector name of one test."""
    return f"shop{next(_numbers)}"
