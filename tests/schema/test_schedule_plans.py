from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, text

from sqla_jobs.schema import schedules
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import as_rows, capabilities
from sqla_jobs.schema.tables import job_table, schedule_table
from tests.schema.models import job_model
from tests.schema.spoken import DIALECTS, JOBS, SCHEDULES, Schedule, compiled, path, spoken

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from sqlalchemy import Connection, Engine, Executable, Row

POSTGRESQL, SQLITE = spoken(DIALECTS["postgresql"]), spoken(DIALECTS["sqlite"])
BOTH = [pytest.param(said, id=name) for name, said in (("postgresql", POSTGRESQL), ("sqlite", SQLITE))]

COUNT = 10_000

DEMAND = said({"types": ["send", "report"], "registry": "shop", "limit": 500})


def test_every_builder_is_on_the_page() -> None:
    """No statement of schedules is said without standing on a page."""
    source = path("spoken").parent.parent.joinpath("spoken.py").read_text()
    builders = [
        name
        for name, thing in vars(schedules).items()
        if callable(thing) and not name.startswith("_") and getattr(thing, "__module__", "") == schedules.__name__
    ]

    assert len(builders) >= 9
    assert [name for name in builders if f"schedules.{name}(" not in source] == []


def test_move_locks_schedules_once_and_skips_what_is_locked() -> None:
    """Rows are locked without the key, by a CTE that no plan can repeat, and nobody waits for them."""
    locking, _, updating = POSTGRESQL["move"].partition("UPDATE schedule SET")

    assert locking.count("FOR NO KEY UPDATE OF schedule SKIP LOCKED") == 1
    assert " AS MATERIALIZED" in locking
    assert "LOCKED" not in updating
    assert "SKIP LOCKED" not in SQLITE["move"]


@pytest.mark.parametrize("said", BOTH)
def test_move_compares_all_that_people_and_schedulers_change(said: dict[str, str]) -> None:
    """A row that was edited, fired or retired after it was read is not written to."""
    (compared,) = re.findall(r"JOIN schedule ON (.*?)\bORDER BY", said["move"], re.DOTALL)

    for name in ("cron", "timezone", "enabled"):
        assert f"CAST(schedule.{name} AS TEXT) = given.{name}" in compared
    assert "schedule.id = given.id" in compared
    assert "schedule.retired_at IS NULL" in compared
    for name in ("next_run_at", "last_slot"):
        assert re.search(rf"schedule\.{name}\b.* IS (NOT DISTINCT FROM )?given\.seen_{name}\b", compared)


@pytest.mark.parametrize("said", BOTH)
def test_look_locks_nothing_and_is_limited(said: dict[str, str]) -> None:
    """A tick that finds nothing is one read, and each of its parts has an order and a limit."""
    assert not re.search(r"\bFOR\b|LOCKED", said["look"])
    assert said["look"].count("LIMIT") == 3
    assert said["look"].count("ORDER BY") == 3


@pytest.mark.parametrize("said", BOTH)
def test_declaring_writes_no_column_of_people_or_schedulers(said: dict[str, str]) -> None:
    """`enabled`, the plan and the counts are not the code's: a new release changes only what it declares."""
    (written,) = re.findall(r"UPDATE schedule SET (.*) WHERE", said["redeclare"])

    columns = re.findall(r'(?:^|, )"?(\w+)"?=', written)
    assert tuple(columns) == schedules.DECLARED
    assert not {"enabled", "next_run_at", "last_slot", "planned_cron", "slots_missed"} & set(columns)
    assert re.search(r"schedule\.declared_by = \S+$", said["redeclare"])


@pytest.mark.parametrize("said", BOTH)
@pytest.mark.parametrize("name", ["retire", "revive"])
def test_only_rows_of_the_registry_are_retired_and_revived(said: dict[str, str], name: str) -> None:
    """What people have made, or another app, is nobody else's to retire."""
    assert re.search(r"WHERE schedule\.declared_by = \S+ AND schedule\.retired_at IS ", said[name])


@pytest.mark.parametrize("said", BOTH)
def test_taken_name_alone_is_ignored(said: dict[str, str]) -> None:
    """Two workers that start at once insert one row; the app's own unique columns still raise."""
    assert "ON CONFLICT (name) DO NOTHING" in said["insert schedules"]


TIMED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "look": schedules.look,
    "retire": lambda table, _jobs, can: schedules.retire(table, can),
    "revive": lambda table, _jobs, can: schedules.revive(table, can),
    "insert schedules": lambda table, _jobs, can: schedules.insert_schedules(table, can),
}


@pytest.mark.parametrize("database", DIALECTS)
@pytest.mark.parametrize("name", TIMED)
def test_every_time_is_the_clock_that_was_given(database: str, name: str) -> None:
    """With `Jobs(…, now=…)`, each statement that has a time has that expression, and the real clock nowhere."""
    dialect = DIALECTS[database]
    clock = func.my_clock()

    said = TIMED[name](schedule_table(Schedule, clock), job_table(job_model(), clock), capabilities(dialect))

    assert "my_clock()" in compiled(said, dialect)
    assert "statement_timestamp" not in compiled(said, dialect)
    assert "'now'" not in compiled(said, dialect)


@pytest.mark.parametrize("name", ["move", "declared", "redeclare", "schedule by name", "all names"])
def test_other_statements_of_schedules_have_no_time(name: str) -> None:
    """What is written comes from the time that the look gave: a late write brings no time of its own."""
    assert "statement_timestamp" not in POSTGRESQL[name]
    assert "'now'" not in SQLITE[name]


FILLED = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
INSERT INTO schedule (name, job_type, cron, planned_cron, planned_timezone, planned_enabled, next_run_at, last_slot,
                      created_at, declared_by)
SELECT 'schedule ' || n, 'send', '* * * * *', '* * * * *', 'UTC', true, '2999-01-01 00:00:00', '2024-01-01 00:00:00',
       '2024-01-01 00:00:00', 'shop' FROM numbers
"""
FEW = "WHERE id % 100 = 0"
PLANNED = "planned_cron = cron, retired_at = NULL, next_run_at = '2999-01-01 00:00:00'"

SITUATIONS: dict[str, tuple[str, int]] = {
    "none due": (f"UPDATE schedule SET {PLANNED}", 0),
    "few due": (f"UPDATE schedule SET next_run_at = '2024-01-01 00:00:00' {FEW}", 100),
    "all due": ("UPDATE schedule SET next_run_at = '2024-01-01 00:00:00'", 500),
    "few edited": (f"UPDATE schedule SET cron = '0 * * * *' {FEW}", 100),
    "few retired": (f"UPDATE schedule SET retired_at = '2024-01-01 00:00:00' {FEW}", 0),
    "few retired just now": (f"UPDATE schedule SET retired_at = '2999-01-01 00:00:00' {FEW}", 100),
}
"""What happens to ten thousand planned schedules, and how many of them a look finds then."""


@pytest.fixture
def tables(engine: Engine) -> Engine:
    """Give an engine on a database that has the two tables."""
    for table in (SCHEDULES.table, JOBS.table):
        table.create(engine)
    return engine


@pytest.fixture
def filled(tables: Engine) -> Engine:
    """Give an engine on a database with ten thousand schedules, planned and none due."""
    with tables.begin() as connection:
        connection.execute(text(FILLED), {"count": COUNT})
    return tables


def explained(
    connection: Connection, statement: Executable, parameters: dict[str, Any]
) -> tuple[list[str], Sequence[Row[Any]]]:
    """Give the lines of a statement's plan, and what it gives when it is run."""
    is_postgresql = connection.dialect.name == "postgresql"
    with explaining(connection, "EXPLAIN (COSTS OFF) " if is_postgresql else "EXPLAIN QUERY PLAN ") as lines:
        rows = connection.execute(statement, parameters).all()
    return lines, rows


@contextmanager
def explaining(connection: Connection, prefix: str) -> Generator[list[str]]:
    lines: list[str] = []

    def put(_: Any, cursor: Any, sql: str, parameters: Any, *rest: Any) -> None:
        cursor.execute(prefix + sql, parameters)
        lines.extend(str(row[-1]).strip() for row in cursor.fetchall())

    event.listen(connection, "before_cursor_execute", put)
    try:
        yield lines
    finally:
        event.remove(connection, "before_cursor_execute", put)


def scans_of_schedules(lines: list[str]) -> list[str]:
    """Give what the plan reads of the schedules: an index's name, or the line of a scan that has none."""
    found: list[str] = []
    for line in lines:
        if re.search(r"\b(Scan|SCAN|SEARCH)\b.*\bschedule(_\d+)?\b", line) and " job" not in line:
            index = re.search(r"(ix_schedule_\w+|schedule_pkey|PRIMARY KEY)", line)
            found.append(index[1].replace("PRIMARY KEY", "schedule_pkey") if index else line)
    return found


def test_look_goes_by_its_indexes(filled: Engine) -> None:
    """Whatever few of ten thousand are due, edited or retired, no tick reads the table from end to end."""
    look = schedules.look(SCHEDULES, JOBS, capabilities(filled.dialect))

    scans: dict[str, list[str]] = {}
    found: dict[str, int] = {}
    with filled.connect() as connection:
        for situation, (update, _) in SITUATIONS.items():
            connection.execute(text(f"UPDATE schedule SET {PLANNED}, cron = '* * * * *'"))
            connection.execute(text(update))
            connection.execute(text("ANALYZE"))
            lines, rows = explained(connection, look, DEMAND)
            scans[situation] = sorted(scans_of_schedules(lines))
            found[situation] = len([row for row in rows if row.id is not None])
        connection.rollback()

    usual = ["ix_schedule_due", "ix_schedule_due", "ix_schedule_edited", "ix_schedule_retired", "schedule_pkey"]
    assert scans == dict.fromkeys(SITUATIONS, usual)
    assert found == {situation: count for situation, (_, count) in SITUATIONS.items()}


EDITS = [
    *("cron = '0 * * * *'", "timezone = 'Europe/Zurich'", "enabled = false", "planned_cron = NULL"),
    *("planned_timezone = NULL", "planned_enabled = NULL", "next_run_at = NULL", "planned_cron = '0 * * * *'"),
]


@pytest.mark.parametrize("edit", EDITS)
def test_look_finds_every_edit_and_nothing_else(tables: Engine, edit: str) -> None:
    """However a row came to differ from its plan, it is found, unless it is retired; untouched ones are not."""
    look = schedules.look(SCHEDULES, JOBS, capabilities(tables.dialect))

    with tables.connect() as connection:
        connection.execute(text(FILLED), {"count": 3})
        connection.execute(text(f"UPDATE schedule SET {edit} WHERE id > 1"))
        connection.execute(text("UPDATE schedule SET retired_at = '2024-01-01 00:00:00' WHERE id = 3"))
        found = connection.execute(look, DEMAND).all()

    assert [(row.id, bool(row.is_edited), bool(row.is_retired)) for row in found] == [(2, True, False)]


def test_move_goes_by_the_primary_key(filled: Engine) -> None:
    """A write of few rows reads those rows alone, however many schedules there are."""
    rows = [{"id": 5000, "cron": "* * * * *", "timezone": "UTC", "enabled": True, "missed": 0, "overlaps": 0}]
    move = schedules.move(SCHEDULES, capabilities(filled.dialect))

    with filled.connect() as connection:
        connection.execute(text("ANALYZE"))
        lines, _ = explained(connection, move, said({"rows": as_rows(rows)}))

    assert set(scans_of_schedules(lines)) == {"schedule_pkey"}


@pytest.mark.parametrize("setting", ["TimeZone = 'Asia/Tokyo'", "DateStyle = 'German'"])
def test_move_knows_what_was_read_in_another_session(postgresql_engine: Engine, setting: str) -> None:
    """Behind a pooler a look and its write may be of two sessions: no setting makes an unchanged row look changed."""
    can = capabilities(postgresql_engine.dialect)
    for table in (SCHEDULES.table, JOBS.table):
        table.create(postgresql_engine)
    with postgresql_engine.begin() as connection:
        connection.execute(text(FILLED), {"count": 1})
        connection.execute(text("UPDATE schedule SET next_run_at = '2024-01-01 00:00:00'"))

    with postgresql_engine.begin() as connection:
        connection.execute(text(f"SET LOCAL {setting}"))
        seen = connection.execute(schedules.look(SCHEDULES, JOBS, can), DEMAND).one()
    names = ("id", "cron", "timezone", "enabled", "seen_next_run_at", "seen_last_slot")
    row = {name: getattr(seen, name) for name in names} | {"is_planned": False, "missed": 0, "overlaps": 0}
    with postgresql_engine.begin() as connection:
        written = connection.execute(schedules.move(SCHEDULES, can), said({"rows": as_rows([row])})).scalars().all()

    assert written == [1]
