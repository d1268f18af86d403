from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import UpgradeOps
from sqlalchemy import event

from sqla_jobs.migrations import ResetJobTableOp, TuneJobTableOp
from tests.architecture.sources import ROOT

if TYPE_CHECKING:
    from sqlalchemy import Engine

PARAMETERS = {
    "fillfactor=70",
    "autovacuum_vacuum_scale_factor=0.01",
    "autovacuum_vacuum_threshold=1000",
    "autovacuum_analyze_scale_factor=0.02",
    "autovacuum_analyze_threshold=1000",
}

SAID = """\
ALTER TABLE "Other".job SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, \
autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000);

ALTER TABLE "Other".job RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, \
autovacuum_analyze_scale_factor, autovacuum_analyze_threshold);

"""

WITHOUT_ALEMBIC = """
import sys
sys.modules["alembic"] = None
from sqla_jobs.migrations import doctor, Finding
assert doctor
import sqla_jobs.migrations
try:
    sqla_jobs.migrations.TuneJobTableOp
except ImportError as error:
    print(error)
"""


def storage_of(engine: Engine, table: str) -> set[str] | None:
    with engine.connect() as connection:
        found: Any = connection.execute(
            sa.text("SELECT reloptions FROM pg_class WHERE relname = :table"), {"table": table}
        ).scalar_one()
    return None if found is None else set(found)


def revise(engine: Engine, name: str, *args: Any, **options: Any) -> None:
    """Call an operation as a revision does."""
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)) as op:
        getattr(op, name)(*args, **options)


@pytest.fixture
def job_table(engine: Engine) -> str:
    """Give the name of a table, one that must be quoted."""
    name = 'Jöb "1" %s :x'
    sa.Table(name, metadata := sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    metadata.create_all(engine)
    return name


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_storage_is_set_and_reset_by_a_revision(engine: Engine, job_table: str) -> None:
    """Up sets the parameters, down takes exactly these away again."""
    with engine.begin() as connection:
        table = connection.dialect.identifier_preparer.quote(job_table)
        connection.exec_driver_sql(f"ALTER TABLE {table} SET (parallel_workers = 2)")

    revise(engine, "tune_job_table", job_table)
    assert storage_of(engine, job_table) == PARAMETERS | {"parallel_workers=2"}

    revise(engine, "reset_job_table", job_table)
    assert storage_of(engine, job_table) == {"parallel_workers=2"}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_storage_is_set_in_another_schema(engine: Engine) -> None:
    """A schema is given, or comes from the translate map of the connection."""
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE SCHEMA "Ten ant"')
        connection.exec_driver_sql('CREATE TABLE "Ten ant".job (id INTEGER)')

    revise(engine, "tune_job_table", "job", schema="Ten ant")
    assert storage_of(engine, "job") == PARAMETERS

    translated = engine.execution_options(schema_translate_map={"tenant": "Ten ant"})
    revise(translated, "reset_job_table", "job", schema="tenant")
    assert storage_of(engine, "job") is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_storage_is_left_alone_where_there_is_none(engine: Engine, job_table: str) -> None:
    """On a database without storage parameters the operations do nothing."""
    heard: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        heard.append(statement)

    revise(engine, "tune_job_table", job_table)
    revise(engine, "reset_job_table", job_table)

    assert heard == ["BEGIN IMMEDIATE"] * 2


@pytest.mark.parametrize(("dialect", "said"), [("postgresql", SAID), ("sqlite", "")])
def test_storage_is_written_down_offline(dialect: str, said: str) -> None:
    """With --sql the statements are written, and no database is asked."""
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name=dialect, opts={"as_sql": True, "output_buffer": written})

    with Operations.context(context) as op:
        operations: Any = op  # as type checkers see it: the two are registered
        operations.tune_job_table("job", schema="Other")
        operations.reset_job_table("job", schema="Other")

    assert written.getvalue() == said


def test_storage_operations_undo_each_other() -> None:
    """Each operation's reverse is the other, of the same table."""
    there = TuneJobTableOp("job", schema="other")

    back = there.reverse()

    assert isinstance(back, ResetJobTableOp)
    assert back.to_diff_tuple() == ("reset_job_table", "job", "other")
    assert back.reverse().to_diff_tuple() == there.to_diff_tuple()


def test_storage_operations_are_rendered_into_revisions() -> None:
    """A hook that adds the operations to what autogenerate found gets them as Python, with the import."""
    imports: set[str] = set()
    operations = UpgradeOps([TuneJobTableOp("job"), ResetJobTableOp("it's", schema="other")])

    code = render_python_code(operations, imports=imports)  # type: ignore[arg-type]

    assert "op.tune_job_table('job')\n" in code
    assert "op.reset_job_table(\"it's\", schema='other')\n" in code


def test_doctor_is_there_without_alembic() -> None:
    """Without alembic the module has its doctor, and says what is missing to who asks for an operation."""
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_ALEMBIC], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, told.stderr
    assert "TuneJobTableOp is an operation of alembic, which is not installed: pip install alembic" in told.stdout
