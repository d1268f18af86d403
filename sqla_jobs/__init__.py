"""Background jobs as rows in the app's own database, as part of the app's own ORM."""

from sqla_jobs.errors import (
    ConfigurationError,
    EnqueueConflict,
    GiveUp,
    InvalidHandler,
    InvalidModel,
    InvalidOption,
    InvalidSchedule,
    InvalidSessions,
    JobSignal,
    PayloadError,
    PayloadTooLarge,
    Retry,
    Snooze,
    SqlaJobsError,
    UnknownHandler,
    UnknownSchedule,
    UnsupportedDatabase,
    WorkerError,
)
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import Enqueued, enqueue_many
from sqla_jobs.operations.registry import Handler, Jobs, NewJob
from sqla_jobs.operations.schedules import Slot, backfill, pause, preview, preview_backfill, resume, trigger
from sqla_jobs.rules.events import JobEvent
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.runtime.context import CurrentJob, current_job
from sqla_jobs.runtime.worker import Worker
from sqla_jobs.schema.dialects import db_now
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.status import JobStatus

__all__ = [
    "ArchivedJobMixin",
    "Backoff",
    "ConfigurationError",
    "CurrentJob",
    "EnqueueConflict",
    "Enqueued",
    "GiveUp",
    "Handler",
    "InvalidHandler",
    "InvalidModel",
    "InvalidOption",
    "InvalidSchedule",
    "InvalidSessions",
    "JobEvent",
    "JobMixin",
    "JobSignal",
    "JobStatus",
    "Jobs",
    "NewJob",
    "PayloadError",
    "PayloadTooLarge",
    "Retry",
    "ScheduleMixin",
    "Slot",
    "Snooze",
    "SqlaJobsError",
    "UnknownHandler",
    "UnknownSchedule",
    "UnsupportedDatabase",
    "Worker",
    "WorkerError",
    "backfill",
    "current_job",
    "db_now",
    "enqueue",
    "enqueue_many",
    "pause",
    "preview",
    "preview_backfill",
    "resume",
    "trigger",
]
