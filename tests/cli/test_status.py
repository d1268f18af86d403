from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from tests.cli import office
from tests.cli.calls import Calls, add_jobs

if TYPE_CHECKING:
    from sqlalchemy import Engine

BAD = {"status": "dead", "finished_at": datetime(2026, 1, 1, tzinfo=UTC)}


def fill(engine: Engine) -> None:
    """Store two due jobs, one of them of a type without a handler, a dead one and a failed one; an hour passes."""
    add_jobs(engine, {}, {"type": "alien", "queue": "other"}, BAD, BAD | {"status": "failed", "type": "crash"})
    with Session(engine) as session, session.begin():
        office.clock.advance(session, timedelta(hours=1))


def test_status_is_told_by_the_program(postgresql_office: Engine, calls: Calls) -> None:
    """What waits, what runs and what has failed, in words and as a document."""
    fill(postgresql_office)

    told, document = calls.program("status"), calls("status", "--json").document

    assert (told.code, told.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in told.lines]
    assert {"oldest due 1h", "due 1", "no handler here 1 ready", "dead 1 (send 1)", "failed 1 (crash 1)"} <= {*lines}
    assert "mail send 1h 1 0 0" in lines
    assert "other alien (no handler) 1h 1 0 0" in lines
    assert (document["due"], document["unknown"], document["dead"], document["failed"]) == (
        *(1, 1, {"send": 1}, {"crash": 1}),
    )
    assert document["oldest_ready"] == pytest.approx(3600, abs=60)
    assert document["lanes"][0] == {
        "queue": "mail",
        "type": "send",
        "is_known": True,
        "due": 1,
        "later": 0,
        "running": 0,
        "oldest": pytest.approx(3600, abs=60),
        "is_due_capped": False,
        "is_later_capped": False,
    }
    assert document["exceeded"] == []
    assert document["schedules"].keys() == {
        *("enabled", "paused", "retired", "in_error", "slots_missed", "overlaps_skipped", "capped")
    }


def test_limits_make_the_exit_code(office_engine: Engine, calls: Calls) -> None:
    """A probe asks whether something is too much: 1 says yes, and which."""
    fill(office_engine)

    fine = calls("status", "--max-age", "2h", "--max-due", "1", "--max-dead", "1", "--max-expired", "0")
    bad = calls("status", "--max-age", "30m", "--max-due", "0", "--max-failed", "0", "--max-dead", "20000", "--json")

    assert (fine.code, fine.stderr) == (0, "")
    assert bad.code == 1
    assert bad.document["exceeded"] == ["max_age", "max_due", "max_failed"]
    assert bad.document["cap"] == 20_001
    assert bad.stderr == "oldest due job: 1h, over 30m\ndue jobs: 1, over 0\nfailed jobs: 1, over 0\n"


def test_live_view_survives_an_outage_until_ctrl_c(sqlite_office: Engine, calls: Calls) -> None:
    """It shows what is wrong with the database and goes on when that is mended; Ctrl-C leaves the terminal clean."""
    fill(sqlite_office)

    with calls.terminal("status", "--watch", "0.1") as terminal:
        terminal.read_until("every 0.1 s, until Ctrl-C")
        terminal.read_until("alien (no handler)")
        office.Base.metadata.drop_all(sqlite_office)
        terminal.read_until("alembic revision --autogenerate")
        office.Base.metadata.create_all(sqlite_office)
        terminal.read_until("every 0.1 s, until Ctrl-C")
        terminal.process.send_signal(signal.SIGINT)
        left = terminal.read_all()
        assert terminal.process.wait() == 0

    assert "Traceback" not in left
    assert left.endswith("schedules       0 enabled (0 in error), 0 paused, 0 retired; 0 slots missed\n")


@pytest.mark.usefixtures("sqlite_office")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--watch", "--json"], "--watch is for people: leave out --json and --max-…"),
        (["--watch", "--max-age", "5m"], "--watch is for people"),
        (["5"], "SECONDS goes with --watch: sqla-jobs status --watch 5"),
        (["--max-age", "5"], "'5' is no duration"),
        (["--max-dead", "-1"], "--max-dead"),
    ],
)
def test_wrong_words_are_refused(words: list[str], says: str, calls: Calls) -> None:
    """What doesn't go together is told, with 2."""
    ended = calls("status", *words)

    assert (ended.code, ended.stdout) == (2, "")
    assert says in " ".join(ended.stderr.replace("│", " ").split())
