"""`ottla connect postgres-cdc` and `postgres-sink`."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.connect.connector_runs import failures_in_words, run_connector
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, run

Name = Annotated[
    str,
    typer.Option(
        "--name", help="The unique name of the connector, which must stay the same after a restart.", show_default=False
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="OTTLA_POSTGRES_URL",
        metavar="postgresql://...",
        help="Connect to this database; prefer PGPASSWORD or ~/.pgpass for the password.",
        show_default=False,
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters",
        metavar="TOPIC",
        help="Send records that cannot be processed to this topic instead of stopping.",
    ),
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop when everything that the topics contain now has been written.")
]


def postgres_cdc(
    name: Name,
    url: Url,
    tables: Annotated[
        list[str],
        typer.Option(
            "--table",
            metavar="TABLE",
            help="Capture these tables: schema.table, table, or schema.*; repeatable.",
            show_default=False,
        ),
    ],
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", help="Use this prefix for the topic names; by default the name of the connector."),
    ] = None,
    slot: Annotated[
        str | None, typer.Option("--slot", help="Use this replication slot; by default ottla_NAME.")
    ] = None,
    publication: Annotated[
        str | None,
        typer.Option("--publication", help="Use this existing publication; by default ottla_NAME is created."),
    ] = None,
    snapshot: Annotated[bool, typer.Option(help="Start with the rows that the tables contain.")] = True,
    tombstones: Annotated[bool, typer.Option(help="Write a tombstone after each delete, for compaction.")] = True,
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
        str, typer.Option("--prefix", help="The prefix of the topics that postgres-cdc writes.", show_default=False)
    ],
    schema: Annotated[
        str | None,
        typer.Option("--schema", help="Write to tables in this schema; by default the schema of the source."),
    ] = None,
    apply_schema_changes: Annotated[
        bool,
        typer.Option("--apply-schema-changes", help="Create tables and add and rename columns, as the source did."),
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
