"""Administration of SCRAM users."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from ottla.client.admin.calls import AdminCalls, check
from ottla.net.apis import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from ottla.protocol.sasl.scram import HASHES, ITERATIONS_MIN, salted_password

SALT_BYTES = 24
_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: name for name, number in _NUMBERS.items()}


class UserAdmin(AdminCalls):
    """The calls of the admin client that concern SCRAM users."""

    async def set_scram_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Sequence[str] = tuple(HASHES),
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Creates a user or changes its password. The broker gets only a salted hash of it."""
        upsertions = []
        for mechanism in mechanisms:
            salt = secrets.token_bytes(SALT_BYTES)
            upsertions.append(
                {
                    "name": user,
                    "mechanism": _NUMBERS[mechanism],
                    "iterations": iterations,
                    "salt": salt,
                    "salted_password": salted_password(mechanism, password, salt, iterations),
                }
            )
        await self._alter(user, {"deletions": [], "upsertions": upsertions})

    async def delete_scram_user(self, user: str, *, mechanisms: Sequence[str] = ()) -> None:
        """Deletes the credentials of a user; without mechanisms, all of them. Raises BrokerRefusedError if there are
        none."""
        chosen = mechanisms or (await self.list_scram_users()).get(user, {}) or tuple(HASHES)
        deletions = [{"name": user, "mechanism": _NUMBERS[mechanism]} for mechanism in chosen]
        await self._alter(user, {"deletions": deletions, "upsertions": []})

    async def list_scram_users(self) -> dict[str, dict[str, int]]:
        """Returns the iterations of each user's credentials by mechanism."""
        reply = await self._call_controller(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, "listing the users")
        check(reply, "the users")
        return {
            each.user: {_NAMES[int(info.mechanism)]: int(info.iterations) for info in each.credential_infos}
            for each in reply.results
        }

    async def _alter(self, user: str, body: dict[str, object]) -> None:
        reply = await self._call_controller(ALTER_USER_SCRAM_CREDENTIALS, body, f'changing user "{user}"')
        for result in reply.results:
            check(result, f'user "{user}"')
