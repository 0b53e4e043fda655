"""The directory of definitions: names, drops, one process per query, and pending searches for bad records."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.archive.failures import PipelineError
from ottla.spark.sql.catalog import Catalog
from ottla.spark.sql.definitions import Definition, QueryDefinition
from ottla.spark.sql.statements import Column


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(str(tmp_path / "sql"))


CLICKS = Definition("Clicks", "web", "json", (Column("page", "STRING"),))
VIEWS = QueryDefinition("views", CLICKS, "INSERT", "insert", "abc")


def test_names_are_the_same_in_any_case(catalog: Catalog) -> None:
    assert catalog.stream("clicks") is None
    assert catalog.streams() == []
    assert catalog.add_stream(CLICKS)
    assert not catalog.add_stream(Definition("CLICKS", "other", "json", ()))
    assert catalog.stream("cLICKS") == CLICKS
    assert catalog.streams() == [CLICKS]


def test_what_is_dropped_begins_anew(catalog: Catalog, tmp_path: Path) -> None:
    catalog.add_stream(CLICKS)
    catalog.add_query(VIEWS)
    for path in ("checkpoints/views/offsets", "dead-letters/clicks/offsets"):
        (tmp_path / "sql" / path).mkdir(parents=True)
    assert catalog.checkpoint("Views").endswith("/sql/checkpoints/views")
    catalog.drop_query("VIEWS")
    catalog.drop_stream("CLICKS")
    assert (catalog.query("views"), catalog.stream("clicks")) == (None, None)
    assert list((tmp_path / "sql").glob("*/*")) == []
    catalog.drop_query("views")  # nothing to drop is no error


def test_a_query_runs_once_at_a_time(catalog: Catalog) -> None:
    with catalog.running("query", "views") as mine:
        assert mine
        with catalog.running("query", "VIEWS") as second, catalog.running("query", "other") as other:
            assert (second, other) == (False, True)
    with catalog.running("query", "views") as again:
        assert again


def test_a_search_is_owed_until_it_is_settled(catalog: Catalog) -> None:
    assert not catalog.owes("views", "clicks")
    catalog.owe("views", "clicks")
    catalog.owe("views", "clicks")
    assert (catalog.owes("Views", "Clicks"), catalog.owes("other", "clicks")) == (True, False)
    catalog.settle("views", "clicks")
    assert not catalog.owes("views", "clicks")


def test_a_dropped_query_owes_nothing(catalog: Catalog) -> None:
    """A later query of the same name reads everything again and finds bad records by itself."""
    for name in ("views", "other"):
        catalog.add_query(QueryDefinition(name, CLICKS, "INSERT", "insert", "abc", {"Clicks": CLICKS}))
        catalog.owe(name, "Clicks")
    catalog.drop_stream("Clicks")
    assert catalog.owes("views", "clicks"), "the query is still there, behind records that were not searched"
    catalog.drop_query("VIEWS")
    assert (catalog.owes("views", "clicks"), catalog.owes("other", "clicks")) == (False, True)


def test_a_damaged_definition_is_named(catalog: Catalog, tmp_path: Path) -> None:
    catalog.add_stream(CLICKS)
    (tmp_path / "sql" / "streams" / "clicks.json").write_text("{")
    with pytest.raises(PipelineError, match=r"streams/clicks.json is damaged"):
        catalog.stream("clicks")
