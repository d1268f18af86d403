"""The tables of the app under test, and the watch that is kept on them.

What has to be true at the end is written down by the same transactions that make it true: who enqueues adds an `Entry`,
and a handler adds an `Effect`. A trigger looks at every change of a job's row, and notes what no fault can excuse.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, DateTime, Engine, Float, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_jobs import ArchivedJobMixin, JobMixin, ScheduleMixin

OPERATOR = "operator"
"""The `application_name` of who moves jobs by hand. A worker's is "worker" and its process's number."""


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    __tablename__ = "job"

    note: Mapped[str | None] = mapped_column(String(20), nullable=True)


class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"

    note: Mapped[str | None] = mapped_column(String(20), nullable=True)


class Schedule(ScheduleMixin, Base):
    __tablename__ = "schedule"


class Purchase(Base):
    """The business row of each transaction that enqueues."""

    __tablename__ = "purchase"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    batch: Mapped[str] = mapped_column(String(40), index=True)


class Entry(Base):
    """What one enqueue gave, stored by its transaction; *parent* is the job whose handler made it."""

    __tablename__ = "entry"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    batch: Mapped[str | None] = mapped_column(String(40), index=True)
    job_id: Mapped[int] = mapped_column(BigInteger, index=True)
    is_duplicate: Mapped[bool]
    parent: Mapped[int | None] = mapped_column(BigInteger, index=True)


class Effect(Base):
    """What a handler wrote through its session."""

    __tablename__ = "effect"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, index=True)
    attempt: Mapped[int] = mapped_column(Integer)
    pid: Mapped[int] = mapped_column(Integer)


class OutsideRun(Base):
    """What a handler wrote by a connection of its own, as if it were another system."""

    __tablename__ = "outside_run"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, index=True)
    attempt: Mapped[int] = mapped_column(Integer)


class Taken(Base):
    """A row that others stumble over."""

    __tablename__ = "taken"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)


class Planned(Base):
    """A schedule and its first slot, noted before there is any worker. *leaves_out*: it may pass over slots."""

    __tablename__ = "planned"

    schedule_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    first_slot: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    step: Mapped[float] = mapped_column(Float)
    leaves_out: Mapped[bool]


class Known(Base):
    """A transaction whose end its process knew: with how many entries it was committed, or NULL: rolled back."""

    __tablename__ = "known"

    batch: Mapped[str] = mapped_column(String(40), primary_key=True)
    entries: Mapped[int | None] = mapped_column(Integer)


class Act(Base):
    """A job that somebody has moved by hand; the trigger notes it."""

    __tablename__ = "act"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, index=True)
    becomes: Mapped[str] = mapped_column(String(20))
    transaction: Mapped[int] = mapped_column(BigInteger, index=True)


class Violation(Base):
    """What the trigger, or anybody, has seen that must not be."""

    __tablename__ = "violation"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[int | None] = mapped_column(BigInteger)
    what: Mapped[str] = mapped_column(Text)


# A claim may be ended by its holder, by a person, and by anybody once its lease is over.
WATCH = """
CREATE TABLE removed AS SELECT * FROM job WITH NO DATA;
CREATE INDEX ON removed (id);

CREATE FUNCTION watch_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    speaker text := current_setting('application_name');
    is_by_hand boolean := speaker = 'operator';
    is_holder boolean := split_part(OLD.locked_by, ':', 3) = split_part(speaker, ' ', 2);
    wrong text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.status IN ('ready', 'running') THEN
            wrong := 'deleted unfinished';
        ELSIF is_by_hand THEN
            INSERT INTO removed SELECT OLD.*;
            INSERT INTO act (job_id, becomes, transaction) VALUES (OLD.id, 'deleted', txid_current());
        ELSIF NOT EXISTS (SELECT FROM archived_job AS a WHERE a.id = OLD.id
                AND (a.type, a.payload, a.status, a.claims, a.attempts,
                        a.idempotency_key, a.slot, a.finished_at, a.note)
                    IS NOT DISTINCT FROM (OLD.type, OLD.payload, OLD.status, OLD.claims, OLD.attempts,
                        OLD.idempotency_key, OLD.slot, OLD.finished_at, OLD.note)) THEN
            wrong := 'deleted, and not archived as it was';
        END IF;
    ELSIF NEW.claims < OLD.claims THEN
        wrong := 'claims fell';
    ELSIF NEW.attempts > NEW.max_attempts THEN
        wrong := 'too many attempts';
    ELSIF is_by_hand THEN
        INSERT INTO act (job_id, becomes, transaction) VALUES (OLD.id, NEW.status, txid_current());
    ELSIF OLD.status = 'running' AND NEW.status = 'running' THEN
        IF (NEW.claims, NEW.attempts, NEW.locked_by) IS DISTINCT FROM (OLD.claims, OLD.attempts, OLD.locked_by) THEN
            wrong := 'claimed while it was running';
        ELSIF is_holder IS NOT TRUE THEN
            wrong := 'renewed by somebody else';
        END IF;
    ELSIF OLD.status = 'ready' AND NEW.status = 'running' THEN
        IF (NEW.claims, NEW.attempts) IS DISTINCT FROM (OLD.claims + 1, OLD.attempts + 1) THEN
            wrong := 'claimed and not counted';
        ELSIF OLD.run_at > clock_timestamp() THEN
            wrong := 'claimed before it was due';
        END IF;
    ELSIF OLD.status = 'running' THEN
        IF NEW.claims <> OLD.claims OR NEW.attempts NOT IN (OLD.attempts, OLD.attempts - 1) THEN
            wrong := 'settled with the counts of another claim';
        ELSIF is_holder IS NOT TRUE AND OLD.locked_until > clock_timestamp() THEN
            wrong := 'settled by somebody else, its lease not being over';
        END IF;
    ELSE
        wrong := 'written to while nobody had it';
    END IF;
    IF wrong IS NOT NULL THEN
        INSERT INTO violation (job_id, what) VALUES (OLD.id, concat(wrong, ' by ', speaker, ': ',
            concat_ws(' ', OLD.type, OLD.status, OLD.claims, OLD.attempts, OLD.locked_by, OLD.locked_until), ' -> ',
            concat_ws(' ', NEW.status, NEW.claims, NEW.attempts, NEW.locked_by), ' at ', clock_timestamp()));
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER watch_job AFTER UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION watch_job();

CREATE VIEW final AS
    SELECT id, type, status, attempts, max_attempts, refunds, claims, idempotency_key, schedule_id, slot, run_at,
        created_at, finished_at, locked_by, locked_until, lease_expirations, last_error, payload, note,
        'live' AS place FROM job
    UNION ALL
    SELECT id, type, status, attempts, max_attempts, refunds, claims, idempotency_key, schedule_id, slot, run_at,
        created_at, finished_at, locked_by, locked_until, lease_expirations, last_error, payload, note,
        'archived' AS place FROM archived_job
    UNION ALL
    SELECT id, type, status, attempts, max_attempts, refunds, claims, idempotency_key, schedule_id, slot, run_at,
        created_at, finished_at, locked_by, locked_until, lease_expirations, last_error, payload, note,
        'removed' AS place FROM removed;
"""


def create_tables(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(WATCH)
