"""Rows that plain SQL has broken, beside good ones: each bears its own error, and holds up no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import insert, update

from sqla_jobs import stats
from sqla_jobs.operations.schedules import list_schedules
from tests.engines import build_engine
from tests.operations.scheduling import MINUTE, START, Scene, Schedule, at, engine_of, jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy import Engine

    from sqla_jobs.operations.scheduling import Fired


MANY: Final = 1600
"""More than three looks take."""


@pytest.fixture(scope="module")
def postgresql_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a PostgreSQL database with the tables."""
    with engine_of(request, "postgresql") as engine:
        yield engine


@pytest.fixture(scope="module")
def sqlite_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on an SQLite file with the tables."""
    with engine_of(request, "sqlite") as engine:
        yield engine


@pytest.fixture(params=["postgresql", "sqlite"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """Give the app's database, empty, at `START`, of each kind in turn."""
    return Scene(request.getfixturevalue(f"{request.param}_engine"))


@pytest.fixture
def postgresql(postgresql_engine: Engine) -> Scene:
    """The same on PostgreSQL alone."""
    return Scene(postgresql_engine)


@pytest.fixture
def sqlite(sqlite_engine: Engine) -> Scene:
    """The same on SQLite alone, where any column holds anything."""
    return Scene(sqlite_engine)


def bad_between_good(scene: Scene, breaking: str) -> tuple[list[int], list[int]]:
    """Add and plan good, bad, good, bad, good; break the bad ones, and make one of them the longest due."""
    ids = [scene.planned(f"schedule {number}") for number in range(5)]
    good, bad = ids[::2], ids[1::2]
    for schedule_id in bad:
        scene.sql(f"UPDATE schedule SET {breaking} WHERE id = {schedule_id}")
    if "next_run_at" not in breaking:
        with scene.transaction() as session:
            session.execute(update(Schedule).where(Schedule.id == bad[0]).values(next_run_at=at("12:00")))
    return good, bad


def assert_only_the_bad_suffer(scene: Scene, breaking: str, says: str, repair: str) -> None:
    """The good fire at every tick, the bad bear an error that shows, fire nothing, and once repaired work again."""
    good, bad = bad_between_good(scene, breaking)

    for minute in range(1, 5):
        scene.tick(moment=START + minute * MINUTE)
        assert [len(scene.slots(schedule_id)) for schedule_id in good] == [minute] * 3
    errors = [scene.error(schedule_id) or "" for schedule_id in bad]
    assert [says in error for error in errors] == [True, True], errors
    with scene.transaction() as session:
        figures, listed = stats(session, jobs).schedules, list_schedules(session, jobs)
    assert figures is not None
    assert figures.in_error == 2
    assert [each.last_error for each in listed if each.id in bad] == errors
    assert [scene.slots(schedule_id) for schedule_id in bad] == [[], []]
    scene.sql(f"UPDATE schedule SET {repair} WHERE id IN ({bad[0]}, {bad[1]})")
    scene.tick(moment=at("12:05:15"))
    assert [scene.error(schedule_id) for schedule_id in bad] == [None, None]
    scene.tick(moment=at("12:06:15"))

    assert [scene.slots(schedule_id)[-1:] for schedule_id in bad] == [[at("12:06")]] * 2
    assert [len(scene.slots(schedule_id)) for schedule_id in good] == [6] * 3


@pytest.mark.parametrize(
    ("breaking", "says", "repair"),
    [
        ("cron = 'not a cron'", "'not a cron'", "cron = '* * * * *'"),
        ("cron = ''", "it is empty", "cron = '* * * * *'"),
        ("cron = '0 0 30 2 *'", "'0 0 30 2 *'", "cron = '* * * * *'"),
        ("timezone = 'Mars/Phobos'", "'Mars/Phobos'", "timezone = 'UTC'"),
        ("timezone = 'UTC+3'", "'UTC+3'", "timezone = 'UTC'"),
        ("timezone = ''", "time zone", "timezone = 'UTC'"),
        ("payload = '[]'", "no JSON object", "payload = '{}'"),
        ("payload = '\"x\"'", "no JSON object", "payload = '{}'"),
        ("payload = 'null'", "no JSON object", "payload = '{}'"),
        ("job_type = 'nobody'", "'nobody'", "job_type = 'report'"),
        ("job_type = ''", "no handler named ''", "job_type = 'report'"),
        ('"offset" = -5', "-5", '"offset" = 0'),
        ('"offset" = 1e300', "1e+300", '"offset" = NULL'),
        ("catch_up = 'foo'", "'foo'", "catch_up = 'latest'"),
        ("catch_up_limit = 0", "catch_up_limit", "catch_up_limit = 100"),
        ("overlap = 'bar'", "'bar'", "overlap = 'allow'"),
        (
            "cron = 'not a cron', timezone = 'x', next_run_at = NULL",
            "'not a cron'",
            "cron = '* * * * *', timezone = 'UTC'",
        ),
    ],
)
def test_f44_bad_row_hurts_only_itself(scene: Scene, breaking: str, says: str, repair: str) -> None:
    """What plain SQL can write into one row stops no other, is told on the row, and is over once repaired."""
    assert_only_the_bad_suffer(scene, breaking, says, repair)


@pytest.mark.parametrize(
    ("breaking", "says", "repair"),
    [
        ("\"offset\" = 'NaN'", "nan", '"offset" = 0'),
        ("\"offset\" = 'infinity'", "inf", '"offset" = 0'),
    ],
)
def test_f44_bad_row_on_postgresql_hurts_only_itself(postgresql: Scene, breaking: str, says: str, repair: str) -> None:
    """The same for what only PostgreSQL stores, or refuses."""
    assert_only_the_bad_suffer(postgresql, breaking, says, repair)


@pytest.mark.parametrize(
    ("breaking", "says", "repair"),
    [
        ("payload = 'no json'", "no JSON object", "payload = '{}'"),
        ("payload = ''", "no JSON object", "payload = '{}'"),
        ("payload = 5", "no JSON object", "payload = '{}'"),
        ("\"offset\" = 'soon'", "soon", '"offset" = 0'),
        ('"offset" = 9e999', "inf", '"offset" = 0'),
        ("catch_up_limit = 'many'", "catch_up_limit", "catch_up_limit = 100"),
        ("catch_up_limit = 2.5", "catch_up_limit", "catch_up_limit = 100"),
    ],
)
def test_f44_bad_row_on_sqlite_hurts_only_itself(sqlite: Scene, breaking: str, says: str, repair: str) -> None:
    """The same where every column holds anything."""
    assert_only_the_bad_suffer(sqlite, breaking, says, repair)


def assert_a_time_hurts_nobody(scene: Scene, column: str, value: str) -> None:
    """The good fire at every tick; the odd ones, cleared, are planned at the next tick and fire the slot after."""
    good, odd = bad_between_good(scene, f"{column} = {value}")

    for minute in range(1, 4):
        scene.tick(moment=START + minute * MINUTE)
        assert [len(scene.slots(schedule_id)) for schedule_id in good] == [minute] * 3
    scene.sql(f"UPDATE schedule SET next_run_at = NULL, last_slot = NULL WHERE id IN ({odd[0]}, {odd[1]})")
    scene.tick()
    scene.tick(moment=at("12:04:15"))

    assert [scene.slots(schedule_id)[-1:] for schedule_id in odd] == [[at("12:04")]] * 2
    assert [scene.error(schedule_id) for schedule_id in odd] == [None, None]


@pytest.mark.parametrize("column", ["next_run_at", "last_slot"])
@pytest.mark.parametrize(
    "value", ["NULL", "'infinity'", "'-infinity'", "'12000-01-01 00:00Z'", "'9999-12-31 23:59:59Z'", "'1850-01-01Z'"]
)
def test_f44_time_past_pythons_years_hurts_only_its_row(postgresql: Scene, column: str, value: str) -> None:
    """A time that no datetime holds breaks no look and no write."""
    assert_a_time_hurts_nobody(postgresql, column, value)


@pytest.mark.parametrize("column", ["next_run_at", "last_slot"])
@pytest.mark.parametrize("value", ["NULL", "'yesterday'", "''", "0", "1e300", "x'61'", "'9999-12-31 23:59:59'"])
def test_f44_time_that_is_no_time_hurts_only_its_row(sqlite: Scene, column: str, value: str) -> None:
    """On SQLite a time is text, and anybody may write any text."""
    assert_a_time_hurts_nobody(sqlite, column, value)


@pytest.mark.parametrize("breaking", ["cron = x'2a'", "timezone = x'61'", "enabled = 2", "enabled = 'yes'"])
def test_f44_row_that_no_write_matches_hurts_only_itself(sqlite: Scene, breaking: str) -> None:
    """A value that does not come back as it was read keeps its own row from firing, and no other."""
    good, _ = bad_between_good(sqlite, breaking)

    for minute in range(1, 4):
        sqlite.tick(moment=START + minute * MINUTE)
        assert [len(sqlite.slots(schedule_id)) for schedule_id in good] == [minute] * 3


def test_f44_count_of_missed_slots_does_not_overflow(postgresql: Scene) -> None:
    """A count that the column can't hold stays as it is, and keeps no slot from firing."""
    schedule_id = postgresql.planned()
    postgresql.sql("UPDATE schedule SET slots_missed = 9223372036854775807")

    postgresql.tick(moment=at("12:05:05"))

    assert postgresql.slots(schedule_id) == [at("12:05")]
    assert postgresql.error(schedule_id) is None


# --- jobs that can't be inserted ------------------------------------------------------------------------------------


def refuse_queue(scene: Scene) -> None:
    """Have the job table refuse the jobs of one queue, as an app's own constraint may."""
    if scene.engine.dialect.name == "sqlite":
        scene.sql(
            "CREATE TRIGGER refused BEFORE INSERT ON job WHEN new.queue = 'refused' "
            "BEGIN SELECT RAISE(ABORT, 'queue is refused'); END"
        )
    else:
        scene.sql("ALTER TABLE job ADD CONSTRAINT refused CHECK (queue <> 'refused')")


def accept_queue(scene: Scene) -> None:
    """Undo `refuse_queue`."""
    is_sqlite = scene.engine.dialect.name == "sqlite"
    scene.sql("DROP TRIGGER refused" if is_sqlite else "ALTER TABLE job DROP CONSTRAINT refused")


@pytest.fixture
def refusing(engine: Engine) -> Scene:
    """Give an app's database of its own, whose job table refuses a queue."""
    scene = Scene(engine)
    refuse_queue(scene)
    return scene


def test_f44_job_that_can_not_be_inserted_marks_its_schedule_and_keeps_the_slot(refusing: Scene) -> None:
    """The others fire; the one is tried again each minute, and fires its slot once the table takes the job."""
    ids = [refusing.planned(name, queue=queue) for name, queue in [("a", None), ("b", "refused"), ("c", None)]]

    fired = refusing.tick(moment=at("12:01:05"))
    marked = refusing.row("b")
    soon = refusing.tick(moment=at("12:01:40"))
    accept_queue(refusing)
    later = refusing.tick(moment=at("12:02:10"))

    assert ([each.name for each in fired], soon) == (["a", "c"], [])
    assert "refused" in marked["last_error"]
    assert marked["next_run_at"] > at("12:02:05")
    assert [(each.name, each.slot) for each in later] == [(name, at("12:02")) for name in "abc"]
    assert refusing.slots(ids[1]) == [at("12:02")]
    row = refusing.row("b")
    assert (row["last_error"], row["last_slot"], row["next_run_at"]) == (None, at("12:02"), at("12:03"))
    assert row["slots_missed"] == 1


def test_f44_error_of_a_job_that_can_not_be_inserted_says_why_and_shows_no_arguments(refusing: Scene) -> None:
    """The cause is there however long the statement is, and what the job's arguments are is nobody's business."""
    refusing.planned(queue="refused", payload={"key": "s3cret", "text": "x" * 3000})

    refusing.tick(moment=at("12:01:05"))

    error = refusing.row()["last_error"]
    assert "constraint" in error if refusing.engine.dialect.name == "postgresql" else "queue is refused" in error
    assert "s3cret" not in error


@pytest.mark.parametrize(("catch_up", "fired", "missed"), [("latest", 1, 5), ("all", 6, 0)])
def test_f44_slots_of_a_job_that_could_not_be_inserted_are_caught_up(
    refusing: Scene, catch_up: str, fired: int, missed: int
) -> None:
    """Slots that came before the failure and after it are each fired or counted, none of them twice."""
    schedule_id = refusing.planned(queue="refused", catch_up=catch_up)

    assert refusing.tick(moment=at("12:05:05")) == []
    accept_queue(refusing)
    refusing.tick(moment=at("12:06:30"))
    assert refusing.tick() == []

    minutes = [at("12:00") + minute * MINUTE for minute in range(1, 7)]
    assert refusing.slots(schedule_id) == minutes[-fired:]
    assert refusing.row()["slots_missed"] == missed


def test_f44_own_column_without_a_default_keeps_every_slot(postgresql_url: str) -> None:
    """A column that no scheduler can fill costs nothing but time: with a default the slots come, each once."""
    engine = build_engine(postgresql_url)
    scene = Scene(engine)
    ids = [scene.planned(f"schedule {number}", catch_up="all") for number in range(3)]
    scene.sql("ALTER TABLE job ADD COLUMN tenant varchar NOT NULL")

    assert scene.tick(moment=at("12:01:05")) == []
    assert all("tenant" in row["last_error"] for row in scene.rows())
    scene.sql("ALTER TABLE job ALTER COLUMN tenant SET DEFAULT 'house'")
    fired = scene.tick(moment=at("12:02:30"))

    assert len(fired) == 6
    assert all(scene.slots(schedule_id) == [at("12:01"), at("12:02")] for schedule_id in ids)
    assert all(row["last_error"] is None for row in scene.rows())
    engine.dispose()


# --- errors and slots -----------------------------------------------------------------------------------------------


def test_f44_first_slot_of_a_broken_row_is_not_lost(scene: Scene) -> None:
    """A row that was broken when its first slot came fires it once repaired, like any later slot."""
    schedule_id = scene.planned("daily", cron="1 12 * * *")
    scene.sql("UPDATE schedule SET payload = '[]'")

    assert scene.tick(moment=at("12:01:05")) == []
    scene.sql("UPDATE schedule SET payload = '{}'")
    scene.tick(moment=at("12:02:10"))

    assert scene.slots(schedule_id) == [at("12:01")]


@pytest.mark.parametrize(
    ("breaking", "repair"),
    [("payload = '[]'", "payload = '{}'"), ("job_type = 'nobody'", "job_type = 'report'")],
    ids=["payload", "type"],
)
@pytest.mark.parametrize("replan", ["pause", "edit", "edit that breaks"])
def test_f44_error_brings_back_no_slot_before_the_plan(scene: Scene, replan: str, breaking: str, repair: str) -> None:
    """A row that breaks after a pause or an edit catches up from its new plan on, and not from its last slot on."""
    scene.planned(cron="*/2 * * * *", catch_up="all")
    scene.tick(moment=at("12:02:05"))
    if replan == "pause":
        scene.sql("UPDATE schedule SET enabled = false")
        scene.tick()
    scene.move_to(at("12:09:05"))
    scene.sql("UPDATE schedule SET enabled = true" if replan == "pause" else "UPDATE schedule SET cron = '* * * * *'")
    if replan != "edit that breaks":
        scene.tick()
    scene.sql(f"UPDATE schedule SET {breaking}")
    scene.tick()
    scene.tick(moment=at("12:11:30"))
    assert scene.row()["last_error"]

    scene.sql(f"UPDATE schedule SET {repair}")
    scene.tick(moment=at("12:12:35"))
    scene.tick(moment=at("12:14:05"))

    first, *more = scene.slots()
    assert (first, more[-1]) == (at("12:02"), at("12:14"))
    assert [slot for slot in more if slot is None or slot < at("12:10")] == []
    assert replan == "edit that breaks" or more[0] == at("12:10")


# --- many -----------------------------------------------------------------------------------------------------------


def ticked(scene: Scene, moment: datetime) -> list[Fired]:
    """Look and write at *moment* until there is nothing left to do."""
    scene.move_to(moment)
    fired: list[Fired] = []
    while True:
        written = scene.write(scene.look())
        fired += written.fired
        if not written.moves:
            return fired


@pytest.mark.slow
def test_f44_three_broken_of_several_batches_hold_up_none(scene: Scene) -> None:
    """The due ones fire in batches, whoever is broken among them, and the broken ones carry their error."""
    rows = [
        {"name": f"s{number}", "job_type": "report", "cron": "* * * * *", "created_at": START} for number in range(MANY)
    ]
    with scene.transaction() as session:
        session.execute(insert(Schedule.__table__), rows)  # type: ignore[arg-type]
    assert ticked(scene, START) == []
    broken = {
        "s1": "cron = 'x'",
        f"s{MANY // 2}": "timezone = 'Mars/Phobos'",
        f"s{MANY - 1}": "job_type = 'nobody'",
    }
    for name, breaking in broken.items():
        scene.sql(f"UPDATE schedule SET {breaking} WHERE name = '{name}'")

    fired = ticked(scene, at("12:02:15"))

    good = {row["name"] for row in rows} - set(broken)
    assert {each.name for each in fired} == good
    assert (len(fired), len(scene.slots())) == (len(good), len(good))
    assert {row["name"] for row in scene.rows() if row["last_error"] is not None} == set(broken)
