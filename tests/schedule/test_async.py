"""The schedule in an event loop: the asynchronous methods, and a FastAPI application."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import httpx
import pytest
from celery import Celery

from redbeat import ConflictError, RedBeatSchedulerEntry, Schedule
from tests.servers import RedisServer


def test_every_verb(app: Celery, schedule: Schedule) -> None:
    async def use() -> None:
        entry = RedBeatSchedulerEntry("a", "tasks.a", 3600, app=app)
        assert await schedule.asave(entry) is entry
        loaded = await schedule.aget("a")
        assert loaded.task == "tasks.a"
        await schedule.apause("a", "full", "me")
        assert (await schedule.aget("a")).status.note == "full"
        assert [record.name for record in await schedule.alist(states=["paused"])] == ["a"]
        await schedule.aresume("a")
        assert [name for _, name in await schedule.aupcoming(2)] == ["a", "a"]
        assert await schedule.atrigger("a")
        assert await schedule.ahistory("a") == []
        assert (await schedule.astatus()).entries["scheduled"] == 1
        await schedule.adelete("a")
        assert await schedule.alist() == []

    asyncio.run(use())


def test_the_errors_are_those_of_the_other_methods(app: Celery, schedule: Schedule) -> None:
    async def use() -> None:
        for call in (schedule.aget, schedule.adelete, schedule.apause, schedule.atrigger):
            with pytest.raises(KeyError):
                await call("missing")
        entry = RedBeatSchedulerEntry("a", "tasks.a", 3600, app=app)
        await schedule.asave(entry)
        await schedule.asave(await schedule.aget("a"))
        again = RedBeatSchedulerEntry("a", "tasks.b", 3600, app=app)
        with pytest.raises(ConflictError):
            await schedule.asave(again, if_unchanged=True)

    asyncio.run(use())


def test_the_event_loop_goes_on_while_redis_does_not_answer() -> None:
    async def use(server: RedisServer, schedule: Schedule) -> None:
        await schedule.asave(RedBeatSchedulerEntry("a", "tasks.a", 3600, app=schedule.app))
        server.pause()
        loading = asyncio.create_task(schedule.aget("a"))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not loading.done()
        server.resume()
        assert (await loading).task == "tasks.a"

    with RedisServer() as server:
        app = Celery("paused", broker=f"redis://127.0.0.1:{server.port}/0", set_as_current=False)
        asyncio.run(use(server, Schedule(app)))


def application(schedule: Schedule) -> Any:
    """Return a web application as a user would write it."""
    # Only this test pays for the import, which takes half a second.
    fastapi: Any = importlib.import_module("fastapi")
    api = fastapi.FastAPI()

    @api.put("/entries/{name}")
    async def save(name: str, task: str, every: float) -> dict[str, Any]:
        entry = RedBeatSchedulerEntry(name, task, every, app=schedule.app)
        await schedule.asave(entry)
        return {"name": entry.name}

    @api.get("/entries")
    async def names() -> list[str]:
        return [record.name for record in await schedule.alist()]

    @api.post("/entries/{name}/trigger")
    async def trigger(name: str) -> dict[str, str]:
        try:
            return {"task_id": await schedule.atrigger(name)}
        except KeyError as error:
            raise fastapi.HTTPException(404) from error

    return api


def test_a_fastapi_application(schedule: Schedule) -> None:
    async def use() -> None:
        transport = httpx.ASGITransport(application(schedule))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            query: dict[str, str | int] = {"task": "t", "every": 60}
            calls = [client.put(f"/entries/e{number}", params=query) for number in range(20)]
            replies = await asyncio.gather(*calls)
            assert {reply.status_code for reply in replies} == {200}
            assert len((await client.get("/entries")).json()) == 20
            assert (await client.post("/entries/e1/trigger")).json()["task_id"]
            assert (await client.post("/entries/missing/trigger")).status_code == 404

    asyncio.run(use())
