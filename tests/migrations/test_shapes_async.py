from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.schema import CreateSchema

from sqla_jobs import Jobs, Retry, Worker, current_job, enqueue, enqueue_many
from tests.engines import build_async_engine
from tests.migrations.shapes import Shape, as_a_single_table_child, on_a_dataclass_base
from tests.migrations.shapes_of_tables import (
    in_a_schema_by_translation_of_none,
    with_columns_of_all_kinds,
    with_eager_relationships,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

FORMS = [
    on_a_dataclass_base,
    as_a_single_table_child,
    with_columns_of_all_kinds,
    with_eager_relationships,
    in_a_schema_by_translation_of_none,
]


def engine_of(shape: Shape, url: str) -> AsyncEngine:
    engine = build_async_engine(url)
    is_translated = shape.translated is not None and engine.dialect.name == "postgresql"
    return engine.execution_options(schema_translate_map=shape.translated) if is_translated else engine


@asynccontextmanager
async def used(engine: AsyncEngine) -> AsyncGenerator[None]:
    """Close what was opened: connections belong to one event loop."""
    try:
        yield
    finally:
        await engine.dispose()


async def create(shape: Shape, engine: AsyncEngine) -> None:
    async with used(engine), engine.begin() as connection:
        if shape.schema is not None and engine.dialect.name == "postgresql":
            await connection.execute(CreateSchema(shape.schema))
        await connection.run_sync(shape.metadata.create_all)
    async with used(engine), AsyncSession(engine) as session:
        session.add_all(shape.first())
        await session.commit()


def own(job: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(job, name) for name in names}


@pytest.mark.parametrize("form", FORMS)
def test_job_lives_its_life_through_async_sessions(form: Callable[[], Shape], async_url: str) -> None:
    """Enqueued, retried, run, and deleted through an AsyncSession, jobs of any shape need no lazy load."""
    shape = form()
    engine = engine_of(shape, async_url)
    sessions = async_sessionmaker(engine)
    jobs = Jobs(shape.job)
    loaded: list[Any] = []

    @jobs.handler
    async def work(session: AsyncSession) -> None:
        loaded.append(type(await current_job().load(session)))
        if current_job().attempt == 1:
            raise Retry(delay=timedelta(0))

    async def fill() -> None:
        await create(shape, engine)
        given = work.using(columns=shape.columns)
        async with used(engine), sessions() as session:
            job = await enqueue(session, given.using(key="k"))
            assert await session.run_sync(lambda _: own(job, shape.columns)) == dict(shape.columns)
            assert await enqueue(session, work.using(key="k")) is job
            await enqueue_many(session, [given.job()])
            await session.commit()

    async def look() -> None:
        async with used(engine), sessions() as session:
            rows = (await session.scalars(select(shape.job))).unique().all()
            assert [(type(row), row.status, row.attempts) for row in rows] == [(shape.job, "done", 2)] * 2
            for row in rows:
                await session.delete(row)
            await session.commit()
            assert (await session.scalars(select(shape.job))).unique().all() == []

    asyncio.run(fill())
    Worker(jobs, async_sessions=sessions, listen=False).run_until_idle()
    asyncio.run(look())

    assert loaded == [shape.job] * 4
