"""`ottla users`: manages the SCRAM users of a cluster."""

from __future__ import annotations

import getpass
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ottla.cli.client_security import client_security
from ottla.cli.failures import CommandError
from ottla.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, print_json, run
from ottla.protocol.sasl.scram import ITERATIONS_MIN

if TYPE_CHECKING:
    from ottla.client import Admin

T = TypeVar("T")

PASSWORD_BYTES = 24

commands = typer.Typer(help="Manages the SCRAM users of a cluster.", no_args_is_help=True)

UserName = Annotated[str, typer.Argument(help="The name of the user.", show_default=False)]


@commands.command("set-password")
def set_password(
    user: UserName,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    generate: Annotated[bool, typer.Option("--generate", help="Choose a password and print it.")] = False,
    iterations: Annotated[int, typer.Option(help="The number of SCRAM iterations.")] = ITERATIONS_MIN,
) -> None:
    """Creates a user or changes its password, which is read from the terminal or from the first line of stdin."""
    password = secrets.token_urlsafe(PASSWORD_BYTES) if generate else _read_password(user)

    async def change(admin: Admin) -> None:
        await admin.set_scram_password(user, password, iterations=iterations)

    _with_admin(bootstrap, change)
    if generate:
        typer.echo(password)


@commands.command("delete")
def delete(user: UserName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Deletes a user. Connections that it has open stay open until their session ends."""

    async def change(admin: Admin) -> None:
        await admin.delete_scram_user(user)

    _with_admin(bootstrap, change)


@commands.command("list")
def list_users(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Lists the users with their mechanisms."""

    async def ask(admin: Admin) -> dict[str, dict[str, int]]:
        return await admin.list_scram_users()

    users = _with_admin(bootstrap, ask)
    if as_json:
        print_json(users)
        return
    for user, mechanisms in sorted(users.items()):
        typer.echo(f"{user}  {', '.join(sorted(mechanisms))}")


def _read_password(user: str) -> str:
    if not sys.stdin.isatty():
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        password = getpass.getpass(f"Password for {user}: ")
        if getpass.getpass("Again: ") != password:
            raise CommandError("the two passwords differ; nothing was changed")
    if not password:
        raise CommandError("the password is empty; nothing was changed")
    return password


def _with_admin(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    from ottla.client import Admin

    async def connected() -> T:
        async with Admin(bootstrap, client_id="ottla-cli", security=client_security()) as admin:
            return await work(admin)

    return run(connected())
