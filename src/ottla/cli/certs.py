"""`ottla certs`: a private certificate authority for small clusters and for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.failures import CommandError

if TYPE_CHECKING:
    from ottla.net.private_authority import PrivateAuthority

commands = typer.Typer(help="Issues certificates with a private authority.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--dir", help="The directory of the authority and of its certificates.")]
Name = Annotated[str, typer.Argument(help="The common name (CN), also the name of the file.", show_default=False)]
Days = Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")]
DEFAULT_DIRECTORY = Path("certs")


@commands.command("init")
def init(directory: Directory = DEFAULT_DIRECTORY, name: Annotated[str, typer.Option()] = "Ottla private CA") -> None:
    """Creates an authority: ca.pem, the trust store of clients and brokers, and ca.key, which stays secret."""
    from ottla.net.private_authority import CERTIFICATE_FILE

    authority = _authorities()
    try:
        authority.new(name).save(directory)
    except FileExistsError as cause:
        raise CommandError(f"{directory} has an authority already; choose another --dir") from cause
    typer.echo(directory / CERTIFICATE_FILE)


@commands.command("broker")
def broker(
    name: Name,
    hosts: Annotated[list[str], typer.Option("--host", help="A host name or address of the broker; repeatable.")],
    directory: Directory = DEFAULT_DIRECTORY,
    days: Days = 397,
) -> None:
    """Issues the key store of a broker, NAME.pem, with its host names."""
    _issue(name, hosts, directory, days)


@commands.command("client")
def client(name: Name, directory: Directory = DEFAULT_DIRECTORY, days: Days = 397) -> None:
    """Issues the key store of a client, NAME.pem."""
    _issue(name, [], directory, days)


def _issue(name: str, hosts: list[str], directory: Path, days: int) -> None:
    from ottla.net.private_authority import write_private

    if not name or "/" in name or name.startswith(".") or name == "ca":
        raise CommandError(f"{name!r} cannot be the name of a file")
    try:
        authority = _authorities().load(directory)
    except (OSError, ValueError) as cause:
        raise CommandError(f"{directory} has no authority; create one with `ottla certs init`") from cause
    path = directory / f"{name}.pem"
    write_private(path, authority.issue(name, hosts, days).pem)
    typer.echo(path)


def _authorities() -> type[PrivateAuthority]:
    try:
        from ottla.net.private_authority import PrivateAuthority
    except ImportError as cause:
        raise CommandError("certificates need 'cryptography': pip install 'ottla[security]'") from cause
    return PrivateAuthority
