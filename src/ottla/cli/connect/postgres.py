"""`ottla connect postgres-cdc` and `postgres-sink`."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.connect.connector_runs import failures_in_words, run_connector
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, run

Name = Annotated[
    str,
    typer.Option(
        "--name", help="Of the connector: the same after a restart, another one for each.", show_default=False
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="OTTLA_POSTGRES_URL",
        metavar="postgresql://...",
        help="The database. A password is better in PGPASSWORD or ~/.pgpass.",
        show_default=False,
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option("--dead-letters", metavar="TOPIC", help="Records that cannot be taken go there; else: stop."),
]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="End when all is there that the topics have now.")]


def postgres_cdc(
    name: Name,
    url: Url,
    tables: Annotated[
        list[str],
        typer.Option(
            "--table", metavar="TABLE", help="schema.table, table, or schema.*; repeatable.", show_default=False
        ),
    ],
    prefix: Annotated[str | None, typer.Option("--prefix", help="Of the topics; the name, if not given.")] = None,
    slot: Annotated[str | None, typer.Option("--slot", help="The replication slot; ottla_NAME, if not given.")] = None,
    publication: Annotated[
        str | None, typer.Option("--publication", help="One that is there; else ottla_NAME is created.")
    ] = None,
    snapshot: Annotated[bool, typer.Option(help="Begin with the rows that the tables have.")] = True,
    tombstones: Annotated[
        bool, typer.Option(help="A record without a value after each delete, for compaction.")
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Captures every change of the chosen PostgreSQL tables, with one topic for each table, until Ctrl-C."""
    settings = {
        "url": url,
        "tables": tables,
        "prefix": prefix or name,
        "slot": slot,
        "publication": publication,
        "snapshot": snapshot,
        "tombstones": tombstones,
    }
    check_first_connection(url)
    run_connector(name, "postgres-cdc", bootstrap, settings)


def check_first_connection(url: str) -> None:
    """Raises FailedError if PostgreSQL cannot be reached at startup; a running connector retries instead."""

    async def work() -> None:
        from ottla.connect.postgres.catalog import Catalog

        catalog = await Catalog.connect(url)
        await catalog.close()

    with failures_in_words():
        run(work())


def postgres_sink(
    name: Name,
    url: Url,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Of the topics that postgres-cdc writes.", show_default=False)
    ],
    schema: Annotated[
        str | None, typer.Option("--schema", help="Where the tables are; as in the source, if not given.")
    ] = None,
    apply_schema_changes: Annotated[
        bool, typer.Option("--apply-schema-changes", help="Create tables, add and rename columns, as the source did.")
    ] = False,
    dead_letters: DeadLetters = None,
    until_end: UntilEnd = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Applies the changes that postgres-cdc captured to another database, in transaction order, until Ctrl-C."""
    settings = {
        "url": url,
        "prefix": prefix,
        "schema": schema,
        "apply_schema_changes": apply_schema_changes,
        "dead_letters": dead_letters,
        "until_end": until_end,
    }
    run_connector(name, "postgres-sink", bootstrap, settings)
