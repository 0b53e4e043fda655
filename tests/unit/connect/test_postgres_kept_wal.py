"""The WAL retention settings in a restored server's postgresql.auto.conf."""

from __future__ import annotations

from ottla.connect.postgres_wal.wal_keep_size import BEFORE, NOT_SET, SETTING, command_of, settings_of_restored

RAISED = "1024MB"


def test_it_is_raised_and_what_it_was_is_noted() -> None:
    assert settings_of_restored("", 0) == {SETTING: RAISED, BEFORE: NOT_SET}
    assert settings_of_restored("work_mem = '4MB'\n", 64 << 20) == {SETTING: RAISED, BEFORE: NOT_SET}
    assert settings_of_restored("wal_keep_size = '16MB'\nwal_keep_size = '64MB'\n", 64 << 20)[BEFORE] == "64MB"


def test_a_server_that_keeps_enough_is_left_alone() -> None:
    assert settings_of_restored("wal_keep_size = '2GB'\n", 2 << 30) == {}


def test_a_backup_from_before_it_was_set_back_knows_the_first_value() -> None:
    """Restored, backed up before its connector started, and restored again."""
    auto_conf = f"{SETTING} = '{RAISED}'\n{BEFORE} = '48MB'\n"
    assert settings_of_restored(auto_conf, 1 << 30) == {SETTING: RAISED, BEFORE: "48MB"}


def test_how_it_is_set_back() -> None:
    assert command_of(NOT_SET) == "ALTER SYSTEM RESET wal_keep_size"
    assert command_of("48MB") == "ALTER SYSTEM SET wal_keep_size = '48MB'"
