"""What is wrong with the tables: a live database compared with the models of a registry. It only reads.

Autogenerate compares much of this, too; not the predicates of indexes, nor what a CHECK says, nor AUTOINCREMENT.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sqlalchemy import CheckConstraint, Column, Connection, Index, Inspector, Table, UniqueConstraint, inspect
from sqlalchemy.exc import SAWarning
from sqlalchemy.schema import SchemaItem

from sqla_jobs.operations.registry import Jobs
from sqla_jobs.schema import inspection
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import Capabilities, capabilities
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.schema.tables import ArchiveTable, JobTable, MappedTable, ScheduleTable
from sqla_jobs.status import JobStatus

Severity = Literal["error", "warning", "hint"]

STATUSES = frozenset(status.value for status in JobStatus)

MIGRATE = "alembic revision --autogenerate, then alembic upgrade head"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a database, or with how an engine reaches it.

    :ivar code: short and stable, as `missing-index`
    :ivar severity: `error`: something fails, or a promise is broken; `warning`: it will be slow or lose something when
        luck fails; `hint`: it could be better
    :ivar what: what is wrong, with names and values
    :ivar remedy: what to do about it
    """

    code: str
    severity: Severity
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.what}. Remedy: {self.remedy}"


_MIXINS: dict[type[MappedTable], type[Any]] = {
    JobTable: JobMixin,
    ScheduleTable: ScheduleMixin,
    ArchiveTable: ArchivedJobMixin,
}


@dataclass(frozen=True)
class Reflected:
    """One table, as the model has it and as it was found."""

    mapped: MappedTable
    can: Capabilities
    connection: Connection
    schema: str | None
    columns: Mapping[str, Any]
    indexes: Mapping[str, Any]
    uniques: list[Any]
    invalid: frozenset[str]
    definitions: Mapping[str, str | None]
    inspector: Inspector

    @property
    def table(self) -> Table:
        """The model's."""
        return self.mapped.table

    @property
    def ours(self) -> frozenset[str]:
        """The keys of the library's columns."""
        return frozenset(name for base in _MIXINS[type(self.mapped)].__mro__ for name in vars(base))

    @property
    def name(self) -> str:
        """Its name, for people."""
        return inspection.full_name(self.table, self.schema, self.connection.dialect)

    def name_of(self, part: SchemaItem) -> str:
        """Give the name that an index or a constraint of the model's has here."""
        return inspection.name_of(part, self.connection.dialect)

    @property
    def batch(self) -> str:
        """How a revision opens this table for ALTER; where that copies the table, with all that the copy would lose."""
        schema = "" if self.schema is None else f", schema={self.schema!r}"
        copied = ""
        if self.can.definitions is not None:
            copied = ', recreate="always"'  # named CHECKs are copied
            if _is_numbered(self):
                copied += ', table_kwargs={"sqlite_autoincrement": True}'
        return f"with op.batch_alter_table({str(self.table.name)!r}{schema}{copied}) as batch: "


Check = Callable[[Reflected], Iterator[Finding]]


def compare(connection: Connection, jobs: Jobs[Any]) -> list[Finding]:
    """Compare the tables of *jobs* with the database's, in the open transaction."""
    mapped: list[MappedTable] = [jobs.table]
    if jobs.has_schedules:
        mapped.append(jobs.schedules)
    if jobs.archive is not None:
        mapped.append(jobs.archive)
    return [finding for each in mapped for finding in _compare(connection, each)]


def _compare(connection: Connection, mapped: MappedTable) -> Iterator[Finding]:
    inspector = inspect(connection)
    schema = connection.schema_for_object(mapped.table)
    if not inspector.has_table(mapped.table.name, schema):
        name = inspection.full_name(mapped.table, schema, connection.dialect)
        model = mapped.mapper.class_.__name__
        remedy = f"{MIGRATE}; without alembic {model}.metadata.create_all(engine)"
        yield Finding("missing-table", "error", f"there is no table {name}, for {model}", remedy)
        return
    reflected = _reflect(connection, mapped, inspector, schema)
    for check in CHECKS:
        yield from check(reflected)


def _reflect(connection: Connection, mapped: MappedTable, inspector: Inspector, schema: str | None) -> Reflected:
    can = capabilities(connection.dialect)
    name = str(mapped.table.name)
    place = {"table": name, "schema": schema}
    invalid: frozenset[str] = frozenset()
    definitions: dict[str, str | None] = {}
    if can.is_server:
        invalid = frozenset(connection.execute(inspection.invalid_indexes(), said(place)).scalars())
    if can.definitions is not None:
        made = connection.execute(inspection.definitions(can, schema), said({"table": name}))
        definitions = {row.name: row.sql for row in made}
    with warnings.catch_warnings():
        # Of an index of expressions on SQLite, SQLAlchemy says that it leaves it out.
        warnings.simplefilter("ignore", SAWarning)
        indexes: list[Any] = [*inspector.get_indexes(name, schema)]
        uniques: list[Any] = [*inspector.get_unique_constraints(name, schema)]
    return Reflected(
        mapped=mapped,
        can=can,
        connection=connection,
        schema=schema,
        columns={found["name"]: found for found in inspector.get_columns(name, schema)},
        indexes={str(found["name"]): found for found in indexes},
        uniques=uniques,
        invalid=invalid,
        definitions=definitions,
        inspector=inspector,
    )


def _our_columns(seen: Reflected) -> list[tuple[Column[Any], Any]]:
    """Give the library's columns that were found, each with what was found; the app's own are its own."""
    return [(c, seen.columns[c.name]) for c in seen.table.c if c.key in seen.ours and c.name in seen.columns]


def _missing_columns(seen: Reflected) -> Iterator[Finding]:
    for column in seen.table.c:
        if column.name not in seen.columns:
            what = f"{seen.name} has no column {column.name}"
            yield Finding("missing-column", "error", what, MIGRATE)


def _unfilled_columns(seen: Reflected) -> Iterator[Finding]:
    known = {column.name for column in seen.table.c}
    for name, found in seen.columns.items():
        is_filled = any(found.get(way) is not None for way in ("default", "computed", "identity"))
        if name not in known and not found["nullable"] and not is_filled:
            what = f"{seen.name}.{name} is NOT NULL with no default, and the model doesn't have it: inserts fail"
            yield Finding("unfilled-column", "error", what, f"{seen.batch}batch.alter_column({name!r}, nullable=True)")


def _types(seen: Reflected) -> Iterator[Finding]:
    dialect = seen.connection.dialect
    for column, found in _our_columns(seen):
        is_type, wanted = (inspection.type_name(each, dialect) for each in (found["type"], column.type))
        if not inspection.holds_values_of(is_type, wanted, seen.can):
            what = f"{seen.name}.{column.name} is {is_type}, and has to be {wanted}"
            yield Finding("column-type", "error", what, f"{MIGRATE}; it compares types unless compare_type=False")


def _nullable(seen: Reflected) -> Iterator[Finding]:
    for column, found in _our_columns(seen):
        if bool(found["nullable"]) is column.nullable or column.primary_key:
            continue
        says = "takes NULL, and must not" if found["nullable"] else "is NOT NULL, and NULL is stored in it"
        remedy = f"{MIGRATE}, or {seen.batch}batch.alter_column({column.name!r}, nullable={column.nullable})"
        severity: Severity = "warning" if found["nullable"] else "error"
        yield Finding("column-nullable", severity, f"{seen.name}.{column.name} {says}", remedy)


def _defaults(seen: Reflected) -> Iterator[Finding]:
    for column, found in _our_columns(seen):
        wanted = _default_of(column)
        if wanted is None:
            continue
        found_words, wanted_words = (inspection.words_of(each).strip("'") for each in (found["default"], wanted))
        remedy = f"{seen.batch}batch.alter_column({column.name!r}, server_default=sa.text({wanted!r}))"
        if found["default"] is None:
            what = f"{seen.name}.{column.name} has no DEFAULT {wanted}: inserts that don't name it fail"
            yield Finding("missing-default", "error", what, remedy)
        elif found_words != wanted_words:
            what = f"{seen.name}.{column.name} has DEFAULT {found['default']}, and not {wanted}"
            yield Finding("column-default", "warning", what, remedy)


def _default_of(column: Column[Any]) -> str | None:
    """Give the constant that stands for a column that an insert doesn't name, as SQL."""
    default: Any = column.server_default
    constant = getattr(default, "arg", None)
    return f"'{constant}'" if isinstance(constant, str) else getattr(constant, "text", None)


def _numbering(seen: Reflected) -> Iterator[Finding]:
    if not _is_numbered(seen) or "id" not in seen.columns:
        return
    if seen.can.definitions is not None:
        made = seen.definitions.get(str(seen.table.name)) or ""
        if "AUTOINCREMENT" not in made.upper():
            what = f"{seen.name} is not AUTOINCREMENT: the id of a deleted job is given to the next"
            # A copy of the table loses it, and autogenerate doesn't look.
            yield Finding("no-autoincrement", "error", what, f"{seen.batch}pass")
        return
    column = seen.columns["id"]
    if column.get("identity") is None and column.get("default") is None:
        what = f"{seen.name}.id has no sequence: inserts fail"
        remedy = f"op.execute('ALTER TABLE {seen.name} ALTER id ADD GENERATED BY DEFAULT AS IDENTITY')"
        yield Finding("no-autoincrement", "error", what, f"{remedy}, and setval() it past max(id)")


def _is_numbered(seen: Reflected) -> bool:
    column: Any = seen.table.autoincrement_column
    return column is not None and column.autoincrement is True


def _keys(seen: Reflected) -> Iterator[Finding]:
    wanted = [column.name for column in seen.table.primary_key]
    key = seen.inspector.get_pk_constraint(str(seen.table.name), seen.schema)
    found, name = key["constrained_columns"], key["name"]
    if found != wanted:
        what = f"the primary key of {seen.name} is ({', '.join(found)}), and has to be ({', '.join(wanted)})"
        drop = f"batch.drop_constraint({name!r}, type_='primary'); " if name else ""
        yield Finding("primary-key", "error", what, f"{seen.batch}{drop}batch.create_primary_key({name!r}, {wanted!r})")


def _model_checks(seen: Reflected) -> dict[str, str]:
    """Give the model's named CHECKs, the app's own included: by the name that each has here, what it asks for."""
    checks = [each for each in seen.table.constraints if isinstance(each, CheckConstraint) and each.name is not None]
    said = {seen.name_of(each): inspection.condition_of(each, seen.connection.dialect) for each in checks}
    return dict(sorted(said.items()))


def _statuses(seen: Reflected) -> Iterator[Finding]:
    ours = [(name, said) for name, said in _model_checks(seen).items() if inspection.texts_in(said) == STATUSES]
    if not ours:
        return  # schedules have no status
    name, said = ours[0]
    checks = seen.inspector.get_check_constraints(str(seen.table.name), seen.schema)
    about = {str(each["name"]): _allowed(each) for each in checks if _is_of_status(each)}
    lists = {str(each["name"]) for each in checks if inspection.words_of(each["sqltext"]).startswith(_LISTS)}
    create = f"batch.create_check_constraint({name!r}, {said!r})"
    if not about:
        what = f"{seen.name} has no CHECK of its status: {said}"
        yield Finding("missing-check", "warning", what, f"{seen.batch}{create}")
    for found, allowed in about.items():
        # Beside the right one, another that lists statuses narrows it; any other condition is the app's own.
        if allowed == STATUSES or (STATUSES in about.values() and not (found in lists and STATUSES - allowed)):
            continue
        lacks, more = (", ".join(sorted(those)) for those in (STATUSES - allowed, allowed - STATUSES))
        what = f"CHECK {found} of {seen.name}" + f" refuses {lacks}" * bool(lacks) + f" allows {more}" * bool(more)
        remedy = f"{seen.batch}batch.drop_constraint({found!r}, type_='check'); {create}"
        yield Finding("check-text", "error" if lacks else "warning", what, remedy)


_LISTS = ("status in", "status not in")


def _allowed(check: Any) -> frozenset[str]:
    named = inspection.texts_in(check["sqltext"])
    return STATUSES - named if inspection.words_of(check["sqltext"]).startswith(_LISTS[1]) else named


def _is_of_status(check: Any) -> bool:
    words = inspection.words_of(check["sqltext"]).split()
    return "status" in words and bool(inspection.texts_in(check["sqltext"]))


def _uniques(seen: Reflected) -> Iterator[Finding]:
    whole = [each for each in seen.indexes.values() if each["unique"] and _predicate(seen, each) is None]
    found = [set(each["column_names"]) for each in (*seen.uniques, *whole)]
    for constraint in seen.table.constraints:
        if isinstance(constraint, UniqueConstraint):
            columns = [column.name for column in constraint.columns]
            if set(columns) not in found:
                what = f"{seen.name} has no UNIQUE ({', '.join(columns)})"
                create = f"{seen.batch}batch.create_unique_constraint({seen.name_of(constraint)!r}, {columns!r})"
                yield Finding("missing-unique", "error", what, f"{MIGRATE}, or {create}")


def _indexes(seen: Reflected) -> Iterator[Finding]:
    for index in sorted(seen.table.indexes, key=seen.name_of):
        found = _find(seen, index)
        severity: Severity = "error" if index.unique else "warning"
        if found is None:
            what = f"{seen.name} has no index {_told(seen, index)}: {_cost(index)}"
            yield Finding("missing-index", severity, what, f"{MIGRATE}, or {_create(seen, index)}")
            continue
        for code, what in _differences(seen, index, found):
            yield Finding(code, severity, f"index {found['name']} of {seen.name} {what}", _remake(seen, index, found))
        if found["name"] in seen.invalid:
            name = inspection.quoted(found["name"], seen.schema, seen.connection.dialect)
            what = f"index {name} is invalid, as CREATE INDEX CONCURRENTLY leaves it when it fails: {_cost(index)}"
            yield Finding("index-invalid", severity, what, f"REINDEX INDEX CONCURRENTLY {name}")


def _find(seen: Reflected, index: Index) -> Any:
    """Find the model's index, by its name or, under whatever name, by what it is."""
    name = seen.name_of(index)
    if name in seen.indexes:
        return seen.indexes[name]
    if _columns(index) is None and name in seen.definitions:
        return {"name": name, "unique": index.unique}
    return next((found for found in seen.indexes.values() if _is_same(seen, index, found)), None)


def _is_same(seen: Reflected, index: Index, found: Any) -> bool:
    return found["column_names"] == _columns(index) and not [*_differences(seen, index, found)]


def _differences(seen: Reflected, index: Index, found: Any) -> Iterator[tuple[str, str]]:
    columns = _columns(index)
    if bool(found["unique"]) is not bool(index.unique):
        yield "index-unique", "is not unique, and has to be" if index.unique else "is unique, and must not be"
    if columns is None or not {column.key for column in index.columns} <= seen.ours:
        return  # one of the app's own: a database may have written it in words that we don't know
    if found["column_names"] != columns:
        is_on, on = (", ".join(map(str, names)) for names in (found["column_names"], columns))
        yield "index-columns", f"is on ({is_on}), and has to be on ({on})"
    is_predicate = _predicate(seen, found)
    wanted = inspection.predicate_of(index, seen.connection.dialect)
    if inspection.words_of(is_predicate) != inspection.words_of(wanted):
        yield "index-predicate", f"is of the rows {is_predicate or '(all)'}, and has to be of {wanted or '(all)'}"


def _columns(index: Index) -> list[str] | None:
    """Give the columns of a model's index; None for one of expressions, which the database writes in its own words."""
    parts = [*index.expressions]
    if not all(isinstance(part, Column) for part in parts):
        return None
    return [cast("Column[Any]", part).name for part in parts]


def _predicate(seen: Reflected, found: Any) -> str | None:
    if seen.can.definitions is not None:
        return inspection.predicate_in(seen.definitions.get(found["name"]))
    options: Mapping[str, str] = found.get("dialect_options", {})
    return options.get(f"{seen.connection.dialect.name}_where")


def _told(seen: Reflected, index: Index) -> str:
    columns = _columns(index)
    return seen.name_of(index) if columns is None else f"{seen.name_of(index)} ({', '.join(columns)})"


def _cost(index: Index) -> str:
    return "it keeps doubles out, and inserts that count on it fail" if index.unique else "the table is read instead"


def _create(seen: Reflected, index: Index) -> str:
    schemas = seen.connection.get_execution_options().get("schema_translate_map")
    return inspection.creation(index, seen.connection.dialect, schemas)


def _remake(seen: Reflected, index: Index, found: Any) -> str:
    name = inspection.quoted(found["name"], seen.schema, seen.connection.dialect)
    return f"DROP INDEX {name}; {_create(seen, index)} (in a revision by op.execute: autogenerate sees no predicates)"


CHECKS: tuple[Check, ...] = (
    _missing_columns,
    _unfilled_columns,
    _types,
    _nullable,
    _defaults,
    _numbering,
    _keys,
    _statuses,
    _uniques,
    _indexes,
)
