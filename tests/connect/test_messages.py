"""Error messages for databases, with the commands that fix them, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest

from ottla.connect.configuration import ConnectorConfig
from ottla.connect.contract import Source
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.postgres.advice import without_password
from tests.support.postgres_server import PostgresServer

HBA = """
local all ottla trust
local all nologin reject
local all all scram-sha-256
local replication all scram-sha-256
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_level": "logical", "max_replication_slots": "1", "max_wal_senders": "2"}
    with PostgresServer(settings=settings, hba=HBA) as running:
        execute(running.url, "CREATE ROLE ann LOGIN REPLICATION PASSWORD 'right'")
        execute(running.url, "CREATE ROLE bob LOGIN PASSWORD 'right'")
        execute(running.url, "CREATE TABLE orders (id int PRIMARY KEY, what text)")
        execute(running.url, "CREATE TABLE keyless (what text)")
        execute(running.url, "CREATE TABLE nothing (id int PRIMARY KEY)")
        execute(running.url, "ALTER TABLE nothing REPLICA IDENTITY NOTHING")
        yield running


def execute(url: str, command: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(command)


def start_failure(url: str, *, wanted: type[ConnectorError] = NeedsHelpError, **settings: Any) -> str:
    """Returns the error of `start`, up to the creation of the slot."""

    async def start() -> None:
        config = ConnectorConfig("shop", "postgres-cdc", "", {"url": url, "tables": ["orders"], **settings})
        source = config.build()
        assert isinstance(source, Source)
        try:
            await source.start(None)
            announced = await source.poll()
            assert announced is not None
            await source.commit(announced.position)
            await source.poll()
        finally:
            await source.stop()

    with pytest.raises(wanted) as failure:
        asyncio.run(start())
    return str(failure.value)


def test_a_wrong_password(server: PostgresServer) -> None:
    said = start_failure(server.url_of("postgres", user="ann", password="wrong"))
    assert "ALTER ROLE ann PASSWORD" in said
    assert "PGPASSWORD" in said
    assert "wrong" not in said


def test_a_user_or_a_database_that_is_not_there(server: PostgresServer) -> None:
    said = start_failure(server.url_of("postgres", user="nobody", password="x"))
    assert "password" in said, "with a password, PostgreSQL does not say whether there is such a user"
    assert "CREATE DATABASE" in start_failure(server.url_of("nowhere"))


def test_a_host_that_is_not_let_in(server: PostgresServer) -> None:
    execute(server.url, "CREATE ROLE nologin LOGIN")
    said = start_failure(server.url_of("postgres", user="nologin"))
    assert "pg_hba.conf" in said
    assert "pg_reload_conf" in said


def test_a_server_that_is_not_there_is_tried_again(server: PostgresServer) -> None:
    said = start_failure("postgresql://ann@127.0.0.1:1/shop", wanted=ConnectorError)
    assert "refused" in said


def test_a_user_who_may_not_replicate(server: PostgresServer) -> None:
    said = start_failure(server.url_of("postgres", user="bob", password="right"))
    assert "ALTER ROLE bob REPLICATION;" in said


def test_a_user_who_may_not_create_the_publication(server: PostgresServer) -> None:
    said = start_failure(server.url_of("postgres", user="ann", password="right"))
    assert "CREATE PUBLICATION ottla_shop FOR TABLE public.orders;" in said


def test_a_user_who_may_not_read_a_table(server: PostgresServer) -> None:
    execute(server.url, "CREATE PUBLICATION readable FOR TABLE orders")
    said = start_failure(server.url_of("postgres", user="ann", password="right"), publication="readable", slot="one")
    assert "GRANT SELECT ON public.orders TO ann;" in said
    with psycopg.connect(server.url) as connection:
        assert not connection.execute("SELECT * FROM pg_replication_slots").fetchall(), "nothing was left behind"


def test_publications(server: PostgresServer) -> None:
    assert "CREATE PUBLICATION missing FOR TABLE public.orders;" in start_failure(server.url, publication="missing")
    execute(server.url, "CREATE PUBLICATION other FOR TABLE nothing")
    assert "ALTER PUBLICATION other ADD TABLE public.orders;" in start_failure(server.url, publication="other")


def test_tables(server: PostgresServer) -> None:
    assert "this database has: public.keyless" in start_failure(server.url, tables=["gone"])
    assert "ALTER TABLE public.keyless ADD PRIMARY KEY" in start_failure(server.url, tables=["public.*"])
    assert "REPLICA IDENTITY DEFAULT;" in start_failure(server.url, tables=["nothing"])


def test_all_slots_in_use_and_a_slot_of_somebody_else(server: PostgresServer) -> None:
    execute(server.url, "SELECT pg_create_physical_replication_slot('full')")
    said = start_failure(server.url)
    assert "pg_drop_replication_slot" in said
    assert "max_replication_slots" in said
    assert "another connector uses it" in start_failure(server.url, slot="full")
    execute(server.url, "SELECT pg_drop_replication_slot('full')")


def test_a_slot_that_is_gone(server: PostgresServer) -> None:
    async def resume() -> None:
        config = ConnectorConfig("shop", "postgres-cdc", "", {"url": server.url, "tables": ["orders"]})
        source = config.build()
        assert isinstance(source, Source)
        try:
            await source.start({"phase": "stream", "lsn": 1 << 32})
        finally:
            await source.stop()

    with pytest.raises(NeedsHelpError, match=r"changes since 1/0 can no longer be read.*ottla connect reset"):
        asyncio.run(resume())


def test_wal_level_too_low() -> None:
    with PostgresServer(settings={"wal_level": "replica"}) as server:
        execute(server.url, "CREATE TABLE orders (id int PRIMARY KEY)")
        assert "ALTER SYSTEM SET wal_level = logical;" in start_failure(server.url)


def test_passwords_are_not_shown() -> None:
    assert without_password("postgresql://ann:secret@db/shop") == "postgresql://ann:***@db/shop"
    assert "secret" not in without_password("host=db user=ann password=secret dbname=x")
    assert "secret" not in without_password("postgresql://db/shop?user=ann&password=secret&sslmode=require")
