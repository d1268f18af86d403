"""Runs the migrations of the reference app, examples/shop, on its own engine: that of DATABASE_URL, or shop.sqlite."""

from __future__ import annotations

from alembic import context

from examples.shop.db import make_engine
from examples.shop.models import Base

OPTIONS = {
    "target_metadata": Base.metadata,
    "compare_type": True,
    "compare_server_default": True,
    # SQLite can't alter much of a table: alembic then copies it. One history serves both databases.
    "render_as_batch": True,
}


def run_offline() -> None:
    """Write the SQL instead of running it: `alembic upgrade head --sql`."""
    context.configure(dialect_name=make_engine().dialect.name, literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    engine = make_engine()
    with engine.connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
