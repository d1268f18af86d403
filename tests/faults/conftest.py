"""The scenes of the faults that users of such software have met: those of the folders that these tests are like.

`scene`, `any_scene`: processes, as in `tests/crash`. `app`, `pg_app`, `async_app`, `ear`, `make_engine`: a worker in
this process, as in `tests/runtime`. `session`, `sessions`, and those of one database: operations alone.
"""

from tests.crash.conftest import any_scene, scene
from tests.operations.conftest import (
    postgresql_engine,
    postgresql_sessions,
    session,
    sessions,
    shop_file,
    shop_url,
    sqlite_engine,
    sqlite_sessions,
)
from tests.runtime.conftest import app, async_app, ear, make_engine, pg_app

__all__ = [
    "any_scene",
    "app",
    "async_app",
    "ear",
    "make_engine",
    "pg_app",
    "postgresql_engine",
    "postgresql_sessions",
    "scene",
    "session",
    "sessions",
    "shop_file",
    "shop_url",
    "sqlite_engine",
    "sqlite_sessions",
]
