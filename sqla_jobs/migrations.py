"""What autogenerate cannot do: the storage of a job table in a revision, and `doctor`, which looks for what is wrong.

.. code-block:: python

    import sqla_jobs.migrations                   # registers the operations

    def upgrade() -> None:
        op.tune_job_table("job")                  # on PostgreSQL; nothing on SQLite

    def downgrade() -> None:
        op.reset_job_table("job")

The operations need alembic, and are registered on its `Operations`, for the whole process. `doctor` needs it not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqla_jobs.doctor import doctor
from sqla_jobs.operations.comparison import Finding, Severity
from sqla_jobs.schema import inspection

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext

__all__ = ["Finding", "ResetJobTableOp", "Severity", "TuneJobTableOp", "doctor"]

try:
    from alembic.autogenerate import renderers
    from alembic.operations import MigrateOperation, Operations
except ImportError as _missing:
    # Our own folder `alembic/` beside a checkout is found as an empty package, so this is not only ModuleNotFoundError.
    _error = _missing

    def __getattr__(name: str) -> Any:
        if name in {"TuneJobTableOp", "ResetJobTableOp"}:
            raise ImportError(
                f"{name} is an operation of alembic, which is not installed: pip install alembic"
            ) from _error
        raise AttributeError(name)

else:

    @Operations.register_operation("tune_job_table")
    class TuneJobTableOp(MigrateOperation):
        """Give a job table the storage parameters that suit it, on databases that have such."""

        def __init__(self, table_name: str, *, schema: str | None = None) -> None:
            self.table_name = table_name
            self.schema = schema

        @classmethod
        def tune_job_table(cls, operations: Operations, table_name: str, *, schema: str | None = None) -> None:
            """Give a job table the storage parameters that suit it: `op.tune_job_table("job")`.

            On PostgreSQL fillfactor, and when autovacuum comes. It waits for no reader or writer, only for a vacuum or
            another ALTER of the table; pages that are full already stay so. Nothing on SQLite.
            """
            operations.invoke(cls(table_name, schema=schema))

        def reverse(self) -> MigrateOperation:
            """Give what undoes it."""
            return ResetJobTableOp(self.table_name, schema=self.schema)

        def to_diff_tuple(self) -> tuple[Any, ...]:
            """Say it as autogenerate's comparisons do."""
            return ("tune_job_table", self.table_name, self.schema)

    @Operations.register_operation("reset_job_table")
    class ResetJobTableOp(MigrateOperation):
        """Undo `TuneJobTableOp`, and no other storage parameter."""

        def __init__(self, table_name: str, *, schema: str | None = None) -> None:
            self.table_name = table_name
            self.schema = schema

        @classmethod
        def reset_job_table(cls, operations: Operations, table_name: str, *, schema: str | None = None) -> None:
            """Give a job table the database's own parameters again, for those that `tune_job_table` sets."""
            operations.invoke(cls(table_name, schema=schema))

        def reverse(self) -> MigrateOperation:
            """Give what undoes it."""
            return TuneJobTableOp(self.table_name, schema=self.schema)

        def to_diff_tuple(self) -> tuple[Any, ...]:
            """Say it as autogenerate's comparisons do."""
            return ("reset_job_table", self.table_name, self.schema)

    @Operations.implementation_for(TuneJobTableOp)
    def _tune(operations: Operations, operation: TuneJobTableOp) -> None:
        _execute(operations, inspection.tune(operations.impl.dialect, operation.table_name, operation.schema))

    @Operations.implementation_for(ResetJobTableOp)
    def _reset(operations: Operations, operation: ResetJobTableOp) -> None:
        _execute(operations, inspection.reset(operations.impl.dialect, operation.table_name, operation.schema))

    def _execute(operations: Operations, change: inspection.SetStorage | inspection.ResetStorage | None) -> None:
        if change is not None:
            operations.execute(change)

    @renderers.dispatch_for(TuneJobTableOp)
    def _render_tune(context: AutogenContext, operation: TuneJobTableOp) -> str:
        return _render(context, "tune_job_table", operation.table_name, operation.schema)

    @renderers.dispatch_for(ResetJobTableOp)
    def _render_reset(context: AutogenContext, operation: ResetJobTableOp) -> str:
        return _render(context, "reset_job_table", operation.table_name, operation.schema)

    def _render(context: AutogenContext, name: str, table_name: str, schema: str | None) -> str:
        context.imports.add("import sqla_jobs.migrations")
        place = repr(table_name) if schema is None else f"{table_name!r}, schema={schema!r}"
        return f"{context.opts['alembic_module_prefix']}{name}({place})"
