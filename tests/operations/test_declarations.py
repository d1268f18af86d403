"""What code declares, and what becomes of it when the code changes, while others use the same table."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from sqla_jobs.operations.scheduling import declare
from sqla_jobs.rules.schedules import Declaration
from sqla_jobs.runtime.connections import Connector, Opening
from sqla_jobs.runtime.scheduler import Scheduler
from tests.engines import build_engine
from tests.operations.scheduling import MINUTE, START, Job, Scene, Schedule, at, build, engine_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlalchemy import Engine

    from sqla_jobs.operations.registry import Jobs


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def app_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Give an engine on a database with the tables, of each kind in turn."""
    with engine_of(request, request.param) as engine:
        yield engine


@pytest.fixture
def scene(app_engine: Engine) -> Scene:
    """Give the app's database, empty, at `START`."""
    return Scene(app_engine)


NIGHTLY = Declaration(
    name="nightly",
    job_type="report",
    payload={"days": 7},
    queue="night",
    cron="0 2 * * *",
    timezone="Europe/Zurich",
    offset=timedelta(seconds=2.5),
    catch_up="all",
    catch_up_limit=3,
    overlap="skip",
)


def started(scene: Scene, registry: Jobs[Job]) -> tuple[list[str], list[str]]:
    """Do what a worker does at its start; gives the names that were revived and retired."""
    assert scene.declare(registry) == []
    return scene.uphold(registry)


def set_by_sql(scene: Scene, name: str, **values: Any) -> None:
    with scene.transaction() as session:
        session.execute(update(Schedule).where(Schedule.name == name).values(values))


# --- insert and update ----------------------------------------------------------------------------------------------


def test_declaration_makes_its_row_with_all_its_parts(scene: Scene) -> None:
    """The row says what the code says, whose it is, and is planned by the next tick."""
    registry = build("report")

    foreign = scene.declare(registry, NIGHTLY)

    row = scene.row("nightly")
    assert foreign == []
    assert {part: row[part] for part in dataclasses.asdict(NIGHTLY)} == dataclasses.asdict(NIGHTLY)
    assert (row["declared_by"], row["enabled"], row["retired_at"], row["next_run_at"]) == ("shop", True, None, None)
    assert START <= row["created_at"] < START + MINUTE
    assert scene.tick(registry) == []
    assert scene.row("nightly")["next_run_at"] == at("00:00") + timedelta(days=1)


def test_declaring_again_changes_nothing(scene: Scene) -> None:
    """A second start of the same code writes no row, after others have fired from it too."""
    registry = build("report", declares={"minutely": "* * * * *"})
    scene.declare(registry)
    scene.declare(registry, NIGHTLY)
    scene.tick(registry)
    scene.tick(registry, at("12:01:05"))
    before = scene.rows()

    assert (scene.declare(registry), scene.declare(registry, NIGHTLY)) == ([], [])

    assert scene.rows() == before
    assert scene.tick(registry) == []


@pytest.mark.parametrize(
    "change",
    [
        {"job_type": "b"},
        {"payload": {"days": 1}},
        {"queue": None},
        {"offset": None},
        {"catch_up": "skip", "catch_up_limit": 9},
        {"overlap": "allow"},
    ],
    ids="+".join,
)
def test_changed_declaration_brings_its_row_up_to_date_and_keeps_its_plan(scene: Scene, change: dict[str, Any]) -> None:
    """What does not change when the slots are leaves the next of them as it is."""
    registry = build("report", "b")
    scene.declare(registry, NIGHTLY)
    scene.tick(registry)
    before = scene.row("nightly")

    scene.declare(registry, dataclasses.replace(NIGHTLY, **change))
    scene.tick(registry)

    assert scene.row("nightly") == before | change


def test_changed_cron_text_in_code_is_planned_anew(scene: Scene) -> None:
    """The slots of the release before fire no more, those of the new one from its start on."""
    old, new = (build("report", declares={"tidy": cron}) for cron in ("* * * * *", "*/5 * * * *"))
    started(scene, old)
    scene.tick(old)
    scene.tick(old, at("12:01:05"))
    scene.move_to(at("12:02:05"))

    started(scene, new)
    fired = [*scene.tick(new), *scene.tick(new, at("12:04:05")), *scene.tick(new, at("12:05:05"))]

    assert [each.slot for each in fired] == [at("12:05")]
    assert scene.slots() == [at("12:01"), at("12:05")]


@pytest.mark.parametrize(
    "breaking",
    [
        "cron = 'x'",
        "timezone = 'Mars/Phobos'",
        "payload = '[]'",
        "payload = '\"x\"'",
        '"offset" = 1e300',
        '"offset" = -5',
        "catch_up = 'foo'",
        "catch_up_limit = 0",
        "overlap = 'bar'",
        "next_run_at = NULL, last_slot = NULL",
    ],
)
def test_declared_row_that_sql_has_broken_is_repaired_at_the_next_start(scene: Scene, breaking: str) -> None:
    """The code says what is right: a start mends its rows, is not stopped by them, and leaves others' alone."""
    registry = build("report", declares={"mine": "* * * * *", "other": "* * * * *"})
    started(scene, registry)
    scene.tick(registry)
    scene.sql(f"UPDATE schedule SET {breaking} WHERE name = 'mine'")
    scene.tick(registry)

    started(scene, registry)
    scene.tick(registry, at("12:01:25"))
    fired = [*scene.tick(registry, at("12:02:30")), *scene.tick(registry, at("12:03:05"))]

    assert [each.slot for each in fired if each.name == "other"] == [at("12:02"), at("12:03")]
    assert [each.slot for each in fired if each.name == "mine"][-1] == at("12:03")
    assert scene.row("mine")["last_error"] is None


@pytest.mark.parametrize("offset", ["NaN", "infinity"])
def test_offset_that_no_timedelta_holds_is_repaired_at_the_next_start(postgresql_url: str, offset: str) -> None:
    """A number that PostgreSQL stores and Python has no duration for keeps no worker from starting."""
    scene = Scene(build_engine(postgresql_url))
    scene.declare(build("report"), NIGHTLY)
    scene.sql('UPDATE schedule SET "offset" = CAST(:offset AS double precision)', offset=offset)

    scene.declare(build("report"), NIGHTLY)

    assert scene.row("nightly")["offset"] == NIGHTLY.offset
    scene.engine.dispose()


def test_payload_that_is_no_json_is_repaired_at_the_next_start(sqlite_url: str) -> None:
    """On SQLite a payload is text, and text that is no JSON keeps no worker from starting."""
    scene = Scene(build_engine(sqlite_url))
    scene.declare(build("report"), NIGHTLY)
    scene.sql("UPDATE schedule SET payload = 'no json'")

    scene.declare(build("report"), NIGHTLY)

    assert scene.row("nightly")["payload"] == NIGHTLY.payload
    scene.engine.dispose()


# --- what is somebody else's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [None, "office"], ids=["made at run time", "of another registry"])
def test_name_that_is_taken_is_told_and_its_row_left_alone(scene: Scene, owner: str | None) -> None:
    """A declaration takes no row from anybody; the others of the same start are stored."""
    scene.add("nightly", declared_by=owner)
    before = scene.row("nightly")
    registry = build("report", declares={"tidy": "0 * * * *"})

    foreign = scene.declare(registry, NIGHTLY, *registry.declarations.values())
    scene.uphold(registry)

    assert foreign == ["nightly"]
    assert scene.row("nightly") == before
    assert scene.row("tidy")["declared_by"] == "shop"


def test_row_that_a_person_disabled_stays_disabled(scene: Scene) -> None:
    """No start, no change of the code and no revival enables it."""
    registry, without = build("report", declares={"tidy": "* * * * *"}), build("report")
    started(scene, registry)
    scene.tick(registry)
    set_by_sql(scene, "tidy", enabled=False)

    started(scene, build("report", declares={"tidy": "*/2 * * * *"}))
    started(scene, without)
    started(scene, registry)
    fired = [*scene.tick(registry), *scene.tick(registry, at("12:05:05"))]

    assert fired == []
    assert (scene.row("tidy")["enabled"], scene.row("tidy")["retired_at"]) == (False, None)


def test_deleted_row_comes_back_with_the_next_start_only(scene: Scene) -> None:
    """A running scheduler makes it not again; a start declares it anew, from then on."""
    registry = build("report", declares={"tidy": "* * * * *"})
    started(scene, registry)
    scene.tick(registry)
    scene.sql("DELETE FROM schedule")

    assert scene.uphold(registry) == ([], [])
    assert scene.tick(registry, at("12:01:05")) == []
    assert scene.rows() == []
    started(scene, registry)

    assert scene.tick(registry) == []
    assert [each.slot for each in scene.tick(registry, at("12:02:05"))] == [at("12:02")]


# --- retire and revive ----------------------------------------------------------------------------------------------


def test_registry_retires_what_its_code_has_no_more_and_nothing_else(scene: Scene) -> None:
    """Its own of another name is retired, and fires no more; others', and those of run time, go on."""
    shop = build("report", declares={"old": "* * * * *", "kept": "* * * * *"})
    office = build("report", name="office", declares={"office": "* * * * *"})
    scene.add("tenant")
    started(scene, shop)
    started(scene, office)
    scene.tick(shop)

    changed = started(scene, build("report", declares={"kept": "* * * * *"}))
    fired = scene.tick(office, at("12:01:05"))

    assert changed == ([], ["old"])
    assert START <= scene.row("old")["retired_at"] < at("12:01")
    assert [each.name for each in fired] == ["kept", "office", "tenant"]
    assert [row["name"] for row in scene.rows() if row["retired_at"] is None] == ["tenant", "kept", "office"]


def test_registry_that_declares_nothing_retires_all_of_its_own(scene: Scene) -> None:
    """The last schedule that is taken from the code is retired like any other, once."""
    started(scene, build("report", declares={"a": "* * * * *", "b": "* * * * *"}))

    assert started(scene, build("report")) == ([], ["a", "b"])
    before = scene.rows()
    assert started(scene, build("report")) == ([], [])
    assert scene.rows() == before


def test_schedule_that_comes_back_soon_goes_on_as_if_nothing_had_been(scene: Scene) -> None:
    """A rollback of the code within five minutes catches up what fell due meanwhile, by the row's catch_up."""
    registry = build("report", declares={"tidy": "* * * * *"})
    started(scene, registry)
    scene.tick(registry)
    started(scene, build("report"))
    assert scene.tick(registry, at("12:04:50")) == []

    revived = started(scene, registry)
    fired = scene.tick(registry)

    assert revived == (["tidy"], [])
    assert [each.slot for each in fired] == [at("12:04")]
    assert scene.row("tidy")["slots_missed"] == 3


def test_schedule_that_comes_back_late_is_planned_from_then_on(scene: Scene) -> None:
    """What was retired for longer than five minutes has missed nothing: nobody wanted those slots."""
    registry = build("report", declares={"tidy": "* * * * *"})
    started(scene, registry)
    scene.tick(registry)
    started(scene, build("report"))
    scene.move_to(at("12:05:20"))

    assert not scene.look(registry).has_revivable
    revived = started(scene, registry)

    assert revived == (["tidy"], [])
    assert scene.tick(registry) == []
    assert [each.slot for each in scene.tick(registry, at("12:06:05"))] == [at("12:06")]
    assert scene.row("tidy")["slots_missed"] == 0


def test_look_tells_of_a_retired_schedule_that_the_code_has(scene: Scene) -> None:
    """A release that still has the schedule hears of it at its next look; others don't, and can't revive it."""
    old, new = build("report", declares={"tidy": "* * * * *"}), build("report")
    namesake = build("report", name="office", declares={"tidy": "* * * * *"})
    started(scene, old)
    started(scene, new)

    told = [scene.look(registry).has_revivable for registry in (old, new, namesake)]

    assert told == [True, False, False]
    assert (scene.uphold(new), scene.uphold(namesake)) == (([], []), ([], []))
    assert scene.row("tidy")["retired_at"] is not None


# --- several at once ------------------------------------------------------------------------------------------------


def test_two_apps_on_one_table_leave_each_others_schedules_alone(scene: Scene) -> None:
    """Each upholds its own, fires what it knows, and changes nothing of the other's."""
    shop = build("report", declares={"sales": "* * * * *"})
    office = build("invoice", name="office", declares={"invoices": "* * * * *"})
    fired: list[str] = []

    for registry in (shop, office):
        assert started(scene, registry) == ([], [])
        scene.tick(registry)
    for minute in range(1, 6):
        scene.move_to(START + minute * MINUTE)
        for registry in (office, shop):
            assert scene.uphold(registry) == ([], [])
            fired += [each.name for each in scene.tick(registry)]

    assert fired == ["invoices", "sales"] * 5
    assert all(row["retired_at"] is None and row["last_error"] is None for row in scene.rows())


@contextmanager
def scheduler_of(scene: Scene, registry: Jobs[Job]) -> Generator[Scheduler]:
    """Give the scheduler of a worker, to tick by hand."""
    connector = Connector.of_app(scene.engine, Opening(scene.engine))
    yield Scheduler(registry, connector, bounded=None)
    connector.close()


@pytest.mark.parametrize("ticks", [(0, 1), (1, 0), (0, 1, 1), (0, 0, 1)], ids=str)
@pytest.mark.parametrize("knows", [(), ("b",)], ids=["own type", "types of both"])
def test_old_and_new_release_stop_neither_ones_schedule(
    scene: Scene, ticks: tuple[int, ...], knows: tuple[str, ...]
) -> None:
    """While workers of both live, whatever order they tick in, each schedule fires within two rounds of ticks."""
    old = build("report", *knows, declares={"old": "* * * * *"})
    new = build("b", *(("report",) if knows else ()), declares={"new": "* * * * *"})
    with scheduler_of(scene, old) as first, scheduler_of(scene, new) as second:
        rounds = [(first, second)[which] for which in (*ticks, *ticks)]
        for minute in range(7):
            scene.move_to(START + minute * MINUTE)
            for scheduler in rounds:
                scheduler.tick()

    with scene.transaction() as session:
        ids = session.scalars(select(Schedule.id).order_by(Schedule.name.desc())).all()
    minutes = [at("12:00") + minute * MINUTE for minute in range(1, 7)]
    assert [scene.slots(schedule_id) for schedule_id in ids] == [minutes, minutes]


# --- declarations that can't be stored --------------------------------------------------------------------------------


@contextmanager
def refusing(scene: Scene, name: str) -> Generator[None]:
    """Have the schedule table refuse one name meanwhile, as an app's own trigger or constraint may."""
    is_file = scene.engine.dialect.name == "sqlite"
    trigger = (
        f"CREATE TRIGGER refused BEFORE INSERT ON schedule WHEN new.name = '{name}' "
        "BEGIN SELECT RAISE(ABORT, 'this name is refused'); END"
    )
    scene.sql(trigger if is_file else f"ALTER TABLE schedule ADD CONSTRAINT refused CHECK (name <> '{name}')")
    yield
    scene.sql("DROP TRIGGER refused" if is_file else "ALTER TABLE schedule DROP CONSTRAINT refused")


def test_declaration_that_the_table_refuses_holds_up_no_other(scene: Scene) -> None:
    """The others are stored, what was changed too, and the refused one is told by name, without its arguments."""
    started(scene, build("report", declares={"a": "0 1 * * *"}))
    release = build("report", declares={"a": "0 2 * * *", "b": "0 2 * * *", "c": "0 2 * * *"})

    with refusing(scene, "b"), scene.transaction() as session:
        declared = declare(session, release, list(release.declarations.values()))

    assert {row["name"]: row["cron"] for row in scene.rows()} == {"a": "0 2 * * *", "c": "0 2 * * *"}
    assert list(declared.failed) == ["b"]
    assert "refused" in declared.failed["b"]
    assert "\n" not in declared.failed["b"]


def test_declaration_that_the_table_refused_is_tried_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler fires what is there, warns once by name, and stores the refused one when it upholds again."""
    release = build("report", declares={"a": "* * * * *", "b": "* * * * *"})
    with scheduler_of(scene, release) as scheduler:
        with refusing(scene, "b"):
            scheduler.tick()
            scene.move_to(at("12:01:05"))
            scheduler.tick()
        fired = scene.slots(scene.row("a")["id"])
        scheduler._uphold_at = 0.0  # pyright: ignore[reportPrivateUsage]  # a minute later
        scheduler.tick()
        scheduler.tick()

    assert fired == [at("12:01")]
    assert {row["name"] for row in scene.rows()} == {"a", "b"}
    warned = [record.getMessage() for record in caplog.records if "can't be declared" in record.getMessage()]
    assert len(warned) == 1
    assert "schedule 'b' can't be declared" in warned[0]


def test_declaration_that_failed_is_not_forgotten_when_another_comes(scene: Scene) -> None:
    """A schedule that is declared late, by a module imported late, leaves the failed one to be tried again."""
    release = build("report", declares={"b": "* * * * *"})
    with scheduler_of(scene, release) as scheduler:
        with refusing(scene, "b"):
            scheduler.tick()
            scheduler.tick()
            release.declarations["late"] = dataclasses.replace(release.declarations["b"], name="late")
            scheduler.tick()
        scheduler._uphold_at = 0.0  # pyright: ignore[reportPrivateUsage]  # a minute later
        scheduler.tick()
        scheduler.tick()

    assert {row["name"] for row in scene.rows()} == {"b", "late"}


def test_scheduler_that_is_stopping_begins_nothing_more(scene: Scene) -> None:
    """What is due is left to others, or to the next start: a stop waits for no thousand jobs."""
    schedule_id = scene.planned()
    scene.move_to(at("12:01:05"))
    connector = Connector.of_app(scene.engine, Opening(scene.engine))
    stopping = Scheduler(build("report"), connector, bounded=None, is_stopping=lambda: True)

    stopping.tick()
    connector.close()

    assert scene.slots(schedule_id) == []
    assert [each.slot for each in scene.tick()] == [at("12:01")]
