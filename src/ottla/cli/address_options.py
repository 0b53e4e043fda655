"""Validates addresses on the command line before a command uses them."""

from __future__ import annotations

import typer

from ottla.protocol.model.addresses import is_host, split_address

KAFKA_PORT = 9092


def check_bootstrap(servers: str | None) -> str | None:
    """Validates broker addresses, `host[:port][,...]`."""
    return _checked(servers, KAFKA_PORT)


def check_wal_servers(servers: str | None) -> str | None:
    """Validates append stream addresses, `host:port[,...]`."""
    return _checked(servers, None)


def check_host(host: str | None) -> str | None:
    """Validates an address to listen on or to advertise: a host without a port."""
    if host is not None and not is_host(host.removeprefix("[").removesuffix("]")):
        raise typer.BadParameter(f'"{host}" is neither a host name nor an IP address')
    return host


def _checked(servers: str | None, default_port: int | None) -> str | None:
    if servers is None:
        return None
    entries = [entry.strip() for entry in servers.split(",") if entry.strip()]
    if not entries:
        raise typer.BadParameter("it contains no server; write host:port[,host:port...]")
    for entry in entries:
        try:
            split_address(entry, default_port)
        except ValueError as mistake:
            raise typer.BadParameter(str(mistake)) from None
    return servers
