"""Background tasks: one for each key, and a call when one has ended."""

from __future__ import annotations

import asyncio

from ottla.client.producer.keyed_tasks import KeyedTasks


async def test_a_key_has_one_task_at_a_time() -> None:
    begun: list[str] = []
    ended: list[None] = []
    gate = asyncio.Event()
    tasks = KeyedTasks(lambda: ended.append(None))

    async def work(name: str) -> None:
        begun.append(name)
        await gate.wait()

    tasks.start("a", work("first"))
    tasks.start("a", work("dropped"))
    tasks.start("b", work("second"))
    await asyncio.sleep(0)
    assert begun == ["first", "second"]
    gate.set()
    while len(ended) < 2:  # noqa: ASYNC110 - what is waited for is a plain list
        await asyncio.sleep(0)
    tasks.start("a", work("third"))
    await asyncio.sleep(0)
    assert begun == ["first", "second", "third"]
    tasks.cancel()


async def test_cancelled_tasks_have_ended_too() -> None:
    ended: list[None] = []
    tasks = KeyedTasks(lambda: ended.append(None))
    tasks.start("a", asyncio.sleep(1000))
    tasks.cancel()
    while not ended:  # noqa: ASYNC110 - what is waited for is a plain list
        await asyncio.sleep(0)
