"""A database is followed without a gap, whatever its programs do, and however often they or the connector restart."""

from __future__ import annotations

import os
import struct

import pytest

from ottla.connect.sqlite.checksum import wal_checksum
from ottla.connect.sqlite.entries import Kind, Part, encode
from ottla.connect.sqlite.failures import SourceChangedError
from ottla.connect.sqlite.history import last_item
from ottla.connect.sqlite.resume_point import attach
from ottla.connect.sqlite.retention import trim_history
from ottla.connect.sqlite.source import Source
from ottla.connect.sqlite.wal_file import read_transactions
from ottla.connect.sqlite.wal_format import HEADER_BYTES, parse_header
from ottla.connect.sqlite.wal_index import WalState
from ottla.wal import SyncLog
from tests.connect.sqlite.app import App
from tests.connect.sqlite.followed import Followed

ALL = "SELECT x FROM t ORDER BY rowid"


def insert(app: App, *values: int) -> None:
    for value in values:
        app.do(f"INSERT INTO t VALUES ({value}, randomblob(100))")


def test_each_transaction_can_be_restored(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    insert(app, 1, 2)
    app.do("BEGIN", "DELETE FROM t", "ROLLBACK")
    app.do("BEGIN", "INSERT INTO t VALUES (3, 0)", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO s", "COMMIT")
    assert shipper.poll()
    assert not shipper.poll()
    assert shipper.transaction == 3
    assert [followed.restored(ALL, at) for at in range(4)] == [[], [1], [1, 2], [1, 2, 3]]


def test_checkpoints_of_the_application_take_nothing_away(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    for value in range(20):
        insert(app, value)
        for mode in ("PASSIVE", "RESTART", "TRUNCATE"):
            app.do(f"PRAGMA wal_checkpoint({mode})")
        if value % 3 == 0:
            shipper.poll()
    shipper.poll()
    assert shipper.transaction == 20
    assert followed.restored(ALL, 13) == list(range(13))


def test_the_wal_is_begun_anew_again_and_again_and_nothing_is_left_out(app: App, followed: Followed) -> None:
    shipper = followed.follow(checkpoint_bytes=1)
    for value in range(40):
        insert(app, value)
        if value % 7 == 3:
            app.do("PRAGMA wal_checkpoint(TRUNCATE)")
        shipper.poll()
    assert os.path.getsize(f"{followed.database}-wal") < 40 * 4096, "it was never begun anew"
    assert shipper.transaction == 40
    assert followed.generations() == 1
    assert followed.restored(ALL, 25) == list(range(25))


def test_a_reader_of_the_application_holds_the_checkpoint_up_and_not_the_shipping(app: App, followed: Followed) -> None:
    shipper = followed.follow(checkpoint_bytes=1)
    with App(followed.database) as reader:
        insert(app, 1)
        reader.do("BEGIN", "SELECT x FROM t")
        for value in range(2, 6):
            insert(app, value)
            shipper.poll()
        assert not followed.source.may_begin_anew
        reader.do("ROLLBACK")
    insert(app, 6)
    shipper._checkpoint_after = 0.0
    shipper.poll()
    assert followed.source.may_begin_anew
    assert followed.restored(ALL) == [1, 2, 3, 4, 5, 6]


def test_one_who_comes_back_goes_on_where_the_wal_has_it_all(app: App, followed: Followed) -> None:
    followed.follow()
    insert(app, 1)
    followed.leave()
    insert(app, 2, 3)
    shipper = followed.follow()
    assert shipper.transaction == 3
    insert(app, 4)
    shipper.poll()
    assert followed.generations() == 1
    assert [followed.restored(ALL, at) for at in (1, 2, 4)] == [[1], [1, 2], [1, 2, 3, 4]]


def test_one_who_comes_back_to_a_wal_that_is_used_up_still_gets_the_rest(app: App, followed: Followed) -> None:
    """The next writer overwrites the WAL, so it is copied while writers are locked out."""
    followed.follow()
    followed.leave()
    insert(app, 1, 2)
    app.do("PRAGMA wal_checkpoint(PASSIVE)")
    shipper = followed.follow()
    insert(app, 3)
    shipper.poll()
    assert followed.generations() == 1
    assert [followed.restored(ALL, at) for at in (1, 2, 3)] == [[1], [1, 2], [1, 2, 3]]


def test_what_is_left_of_a_used_up_wal_is_read_after_it_was_overwritten_too(app: App, followed: Followed) -> None:
    followed.follow()
    followed.leave()
    insert(app, 1, 2)
    app.do("PRAGMA wal_checkpoint(PASSIVE)")
    source = Source(followed.database, busy_s=0.5)
    try:
        with SyncLog.open(followed.servers, followed.name) as log:
            last = last_item(log)
        assert last is not None
        attached = attach(source, last.part)
        insert(app, 3, 4, 5)
        left = list(read_transactions(attached.wal, attached.place, attached.state))
        assert len(left) == 2
        assert all(list(each.pages(attached.wal, attached.state.page_bytes)) for each in left)
    finally:
        source.close()


def test_a_wal_begun_anew_while_nobody_followed_makes_a_new_generation(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    insert(app, 1, 2)
    shipper.poll()
    followed.leave()
    insert(app, 3)
    app.do("PRAGMA wal_checkpoint(TRUNCATE)")
    insert(app, 4)
    shipper = followed.follow()
    assert "changed while it was not followed" in followed.news[-1]
    assert shipper.transaction == 3, "the snapshot has a number of its own"
    insert(app, 5)
    shipper.poll()
    assert followed.generations() == 2
    assert [followed.restored(ALL, at) for at in (1, 2, 3, 4)] == [[1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5]]


def test_where_nothing_has_changed_no_snapshot_is_taken(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    insert(app, 1)
    shipper.poll()
    followed.leave()
    app.close()
    assert not os.path.exists(f"{followed.database}-wal")
    shipper = followed.follow()
    assert (shipper.transaction, followed.generations()) == (1, 1)
    with App(followed.database) as another:
        insert(another, 2)
        shipper.poll()
    assert followed.restored(ALL) == [1, 2]


def test_a_database_that_left_wal_mode_and_came_back_is_a_new_generation(app: App, followed: Followed) -> None:
    followed.follow()
    with pytest.raises(RuntimeError, match="locked"):
        app.do("PRAGMA journal_mode=DELETE")
    followed.leave()
    app.do("PRAGMA journal_mode=DELETE")
    insert(app, 1)
    app.do("PRAGMA journal_mode=WAL")
    followed.follow()
    assert followed.generations() == 2
    assert followed.restored(ALL) == [1]


def test_a_commit_that_its_writer_did_not_live_to_publish_is_not_shipped(app: App, followed: Followed) -> None:
    """Its frames are complete, with a commit mark. But the WAL index does not have them, and the next writer overwrites
    them: for SQLite they do not exist."""
    shipper = followed.follow()
    insert(app, 1)
    shipper.poll()
    write_unpublished_commit(followed, followed.source.look())
    assert not shipper.poll()
    insert(app, 2)
    shipper.poll()
    assert shipper.transaction == 2
    assert followed.restored(ALL) == [1, 2]


def test_frames_that_sqlite_commits_without_a_checksum_are_shipped(app: App, followed: Followed) -> None:
    """As SQLite 3.40 writes them after spilled pages and a ROLLBACK TO."""
    shipper = followed.follow()
    for value in range(1, 5):
        insert(app, value)
        if value == 2:
            state = followed.source.look()
            with open(f"{followed.database}-wal", "r+b") as file:
                file.seek(HEADER_BYTES + (state.frames - 1) * (24 + state.page_bytes) + 8)
                file.write(bytes(16))
        if value != 3:
            shipper.poll()
    assert shipper.transaction == 4
    assert followed.restored(ALL, 2) == [1, 2]
    shipper.snapshot()
    assert followed.restored(ALL) == [1, 2, 3, 4]


def write_unpublished_commit(followed: Followed, state: WalState) -> None:
    with open(f"{followed.database}-wal", "r+b") as file:
        header = parse_header(file.read(HEADER_BYTES))
        page = os.urandom(state.page_bytes)
        start = struct.pack(">II", 2, state.database_pages)
        checksum = wal_checksum(start, header.is_big_endian, *state.checksum)
        checksum = wal_checksum(page, header.is_big_endian, *checksum)
        file.seek(HEADER_BYTES + state.frames * (24 + state.page_bytes))
        file.write(start + struct.pack(">IIII", *state.salts, *checksum) + page)


def test_a_large_transaction_has_many_parts_and_counts_with_its_last(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    insert(app, 1)
    app.do("INSERT INTO big VALUES (randomblob(3000000))")
    shipper.poll()
    last = last_item(followed.log)
    assert last is not None
    assert last.part.number >= 5
    unfinished = Part(
        Kind.TRANSACTION,
        0,
        False,
        last.part.generation,
        3,
        last.part.time_ms,
        last.link,
        last.part.snapshot_offset,
        last.part.page_bytes,
        last.part.database_pages,
        last.part.place,
        None,
    )
    followed.log.append(encode(unfinished, [(2, bytes(last.part.page_bytes))])).result()
    followed.leave()
    insert(app, 2)
    shipper = followed.follow()
    assert shipper.transaction == 3
    assert followed.generations() == 1
    assert followed.restored(ALL) == [1, 2]
    assert followed.restored("SELECT length(data) FROM big", 2) == [3_000_000]


@pytest.mark.parametrize("page_bytes", [512, 65536])
def test_pages_of_any_size_vacuum_and_shrinking(page_bytes: int, app: App, followed: Followed) -> None:
    app.do("PRAGMA journal_mode=DELETE", f"PRAGMA page_size={page_bytes}", "VACUUM", "PRAGMA journal_mode=WAL")
    shipper = followed.follow(checkpoint_bytes=1 << 18)
    app.do("INSERT INTO big VALUES (randomblob(500000))")
    shipper.poll()
    app.do("DELETE FROM big")
    app.do("VACUUM")
    insert(app, 1)
    shipper.poll()
    assert followed.restored("SELECT length(data) FROM big", 1) == [500_000]
    assert followed.restore().stat().st_size < 40 * page_bytes + 4096
    assert followed.restored(ALL) == [1]


def test_snapshots_bound_what_is_kept(app: App, followed: Followed) -> None:
    shipper = followed.follow()
    for value in range(6):
        insert(app, value)
        shipper.poll()
        if value % 2:
            shipper.snapshot()
    assert followed.generations() == 4
    assert trim_history(followed.log, 0) is None, "no snapshot is so old"
    last = last_item(followed.log)
    assert last is not None
    assert trim_history(followed.log, last.part.time_ms) == last.first_offset
    assert followed.generations() == 1
    assert shipper.newest_snapshot_s() is not None
    insert(app, 6)
    shipper.poll()
    assert followed.restored(ALL) == list(range(7))


def test_another_file_in_its_place_is_noticed(app: App, followed: Followed) -> None:
    followed.follow()
    followed.source.check_files()
    os.rename(followed.database, f"{followed.database}.old")
    with pytest.raises(SourceChangedError, match="was removed"):
        followed.source.check_files()
    os.rename(f"{followed.database}.old", followed.database)
    os.rename(f"{followed.database}-wal", f"{followed.database}.away")
    with pytest.raises(SourceChangedError, match="-wal was removed"):
        followed.source.check_files()
