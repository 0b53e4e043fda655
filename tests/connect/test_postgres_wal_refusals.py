"""Errors of a real PostgreSQL's configuration, with the commands that fix them. They need no broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest

from ottla.connect.log_ports import WritableLog
from ottla.connect.postgres_wal.failures import PostgresError, RefusedError, UnreachableError, WalGoneError
from ottla.connect.postgres_wal.positions import TimelineId
from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings
from ottla.connect.postgres_wal.server import Server
from tests.support.postgres_server import PostgresServer

HBA = """
local  all          all                trust
local  replication  ottla              trust
local  replication  keeper             scram-sha-256
local  replication  nobody_special     trust
local  replication  rejected           reject
local  replication  stranger           trust
local  replication  ottla_group        trust
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"max_replication_slots": "2", "max_wal_senders": "3", "wal_keep_size": "0", "min_wal_size": "32MB"}
    with PostgresServer(settings=settings, hba=HBA) as running:
        with psycopg.connect(running.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE keeper LOGIN REPLICATION PASSWORD 'right'")
            connection.execute("CREATE ROLE nobody_special LOGIN")
            connection.execute("CREATE ROLE rejected LOGIN REPLICATION")
            connection.execute("CREATE ROLE unlisted LOGIN REPLICATION")
            connection.execute("CREATE ROLE ottla_group NOLOGIN REPLICATION")
        yield running


async def refusal(server: PostgresServer, *, user: str = "ottla", password: str | None = None) -> str:
    with pytest.raises(RefusedError) as refused:
        await Server.connect(server.url_of("postgres", user=user, password=password))
    return str(refused.value)


async def test_a_wrong_password(server: PostgresServer) -> None:
    said = await refusal(server, user="keeper", password="wrong")
    assert "the password of 'keeper' is wrong" in said
    assert "PGPASSWORD" in said
    async with await Server.connect(server.url_of("postgres", user="keeper", password="right")) as right:
        assert (await right.identify()).timeline == 1


async def test_no_password(server: PostgresServer) -> None:
    assert "~/.pgpass" in await refusal(server, user="keeper")


async def test_a_user_that_may_not_replicate(server: PostgresServer) -> None:
    said = await refusal(server, user="nobody_special")
    assert "psql -c 'ALTER ROLE \"nobody_special\" REPLICATION'" in said


async def test_a_user_that_is_not_there(server: PostgresServer) -> None:
    said = await refusal(server, user="stranger")
    assert 'CREATE ROLE "stranger" LOGIN REPLICATION' in said


async def test_a_user_that_may_not_log_in(server: PostgresServer) -> None:
    assert 'ALTER ROLE "ottla_group" LOGIN' in await refusal(server, user="ottla_group")


async def test_no_line_in_pg_hba(server: PostgresServer) -> None:
    said = await refusal(server, user="unlisted")
    assert "    local replication  unlisted  scram-sha-256\n" in said
    assert "pg_reload_conf()" in said


async def test_a_line_of_pg_hba_that_rejects(server: PostgresServer) -> None:
    assert "rejects replication connections of 'rejected'" in await refusal(server, user="rejected")


async def test_nobody_answers(server: PostgresServer) -> None:
    with pytest.raises(UnreachableError, match="cannot connect to PostgreSQL at /nowhere"):
        await Server.connect("host=/nowhere user=ottla")
    with pytest.raises(RefusedError, match="an address has the form postgresql://"):
        await Server.connect("postgresql//wrong")


async def test_slots_that_are_all_taken(server: PostgresServer) -> None:
    async with await Server.connect(server.url) as connection:
        await connection.create_slot("first")
        await connection.create_slot("second")
        with pytest.raises(
            RefusedError, match=r"no free replication slot.*pg_drop_replication_slot.*max_replication_slots"
        ):
            await connection.create_slot("third")
        await connection.drop_slot("first")
        await connection.drop_slot("second")


async def test_a_slot_in_use(server: PostgresServer) -> None:
    async with await Server.connect(server.url) as one, await Server.connect(server.url) as other:
        await one.create_slot("taken")
        where = await one.identify()
        await one.start("taken", where.flushed, where.timeline)
        with pytest.raises(RefusedError, match=r"'taken' is in use .*another connector is running"):
            await other.start("taken", where.flushed, where.timeline)
    async with await Server.connect(server.url) as last:
        await last.drop_slot("taken")


async def test_all_replication_connections_taken(server: PostgresServer) -> None:
    taken = [await Server.connect(server.url) for _ in range(3)]
    try:
        said = await refusal(server)
        assert "all 3 replication connections are in use" in said
        assert "ALTER SYSTEM SET max_wal_senders = 8" in said
    finally:
        for each in taken:
            await each.close()


async def test_a_slot_without_a_bound_is_not_made(server: PostgresServer) -> None:
    """By default the server keeps WAL for a slot without limit."""
    receiver = Receiver(ReceiverSettings(server.url), _no_log, lambda sentence: None)
    running = asyncio.create_task(receiver.run())
    async with asyncio.timeout(60):
        while receiver.state != "waiting":  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    said = receiver.last_failure or ""
    assert re.search(r"(?s)ALTER SYSTEM SET max_slot_wal_keep_size = '20GB'.*--unbounded-slot", said)


async def test_wal_that_the_server_has_removed(server: PostgresServer) -> None:
    async with await Server.connect(server.url) as connection:
        begin = (await connection.identify()).flushed
        with psycopg.connect(server.url, autocommit=True) as client:
            for _ in range(4):
                client.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
            client.execute("CHECKPOINT")
            client.execute("CHECKPOINT")
        await connection.create_slot("late")
        await connection.start("late", begin, TimelineId(1))
        with pytest.raises(WalGoneError, match="has already been removed"):
            await connection.receive(20)
        await connection.drop_slot("late")


async def test_wal_level_too_low() -> None:
    with PostgresServer(settings={"wal_level": "minimal", "max_wal_senders": "0"}) as minimal:
        said = await refusal(minimal)
    assert "ALTER SYSTEM SET wal_level = 'replica'" in said
    assert "restart the server" in said


def test_an_old_version_is_named() -> None:
    """No old server is available; this is the check that the version of a real one passes."""
    with pytest.raises(PostgresError, match=r"PostgreSQL 14, .*pg_upgrade.*postgres-cdc"):
        Server.check_version(14)


def _no_log(fence: bool) -> AbstractAsyncContextManager[WritableLog]:
    raise AssertionError("it was refused before it came to a log")
