"""One PostgreSQL and one broker for all tests of a run; each test has databases of its own."""

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
    """Of a store that speaks S3's protocol."""
    with s3_bucket() as address:
        yield address


@pytest.fixture
def new_database(postgres: PostgresServer) -> Callable[[], str]:
    """Creates one; its address."""

    def create() -> str:
        name = f"database_{next(_numbers)}"
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        return postgres.url_of(name)

    return create


@pytest.fixture
def prefix() -> str:
    """Of the topics of one test, and the name of its connector."""
    return f"shop{next(_numbers)}"
