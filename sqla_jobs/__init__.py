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
    UnknownJob,
    UnknownSchedule,
    UnsupportedDatabase,
    WorkerError,
)
from sqla_jobs.operations.archive import archive_batch, delete_archived_batch
from sqla_jobs.operations.batches import Batch, Count, cancel_batch, count_jobs, delete_batch, requeue_batch
from sqla_jobs.operations.dead_letters import Answer, cancel_jobs, delete_jobs, requeue_jobs
from sqla_jobs.operations.enqueue import enqueue
from sqla_jobs.operations.enqueue_many import Enqueued, enqueue_many
from sqla_jobs.operations.groups import FailureGroup, FailureGroups, failure_groups
from sqla_jobs.operations.listing import (
    FoundJob,
    JobDetails,
    JobFilter,
    JobPage,
    find_archived_jobs,
    find_jobs,
    show_job,
)
from sqla_jobs.operations.registry import Handler, Jobs, NewJob
from sqla_jobs.operations.schedules import (
    FoundSchedule,
    Slot,
    backfill,
    list_schedules,
    pause,
    preview,
    preview_backfill,
    resume,
    trigger,
)
from sqla_jobs.operations.stats import LaneStats, RunningStats, ScheduleStats, Stats, stats
from sqla_jobs.operations.why import Why, why
from sqla_jobs.rules.events import JobEvent
from sqla_jobs.rules.retention import Retention
from sqla_jobs.rules.retry import Backoff
from sqla_jobs.runtime.context import CurrentJob, current_job
from sqla_jobs.runtime.counters import Counters, Span
from sqla_jobs.runtime.worker import Worker
from sqla_jobs.schema.constructs import db_now
from sqla_jobs.schema.mixins import ArchivedJobMixin, JobMixin, ScheduleMixin
from sqla_jobs.status import JobStatus

__all__ = [
    "Answer",
    "ArchivedJobMixin",
    "Backoff",
    "Batch",
    "ConfigurationError",
    "Count",
    "Counters",
    "CurrentJob",
    "EnqueueConflict",
    "Enqueued",
    "FailureGroup",
    "FailureGroups",
    "FoundJob",
    "FoundSchedule",
    "GiveUp",
    "Handler",
    "InvalidHandler",
    "InvalidModel",
    "InvalidOption",
    "InvalidSchedule",
    "InvalidSessions",
    "JobDetails",
    "JobEvent",
    "JobFilter",
    "JobMixin",
    "JobPage",
    "JobSignal",
    "JobStatus",
    "Jobs",
    "LaneStats",
    "NewJob",
    "PayloadError",
    "PayloadTooLarge",
    "Retention",
    "Retry",
    "RunningStats",
    "ScheduleMixin",
    "ScheduleStats",
    "Slot",
    "Snooze",
    "Span",
    "SqlaJobsError",
    "Stats",
    "UnknownHandler",
    "UnknownJob",
    "UnknownSchedule",
    "UnsupportedDatabase",
    "Why",
    "Worker",
    "WorkerError",
    "archive_batch",
    "backfill",
    "cancel_batch",
    "cancel_jobs",
    "count_jobs",
    "current_job",
    "db_now",
    "delete_archived_batch",
    "delete_batch",
    "delete_jobs",
    "enqueue",
    "enqueue_many",
    "failure_groups",
    "find_archived_jobs",
    "find_jobs",
    "list_schedules",
    "pause",
    "preview",
    "preview_backfill",
    "requeue_batch",
    "requeue_jobs",
    "resume",
    "show_job",
    "stats",
    "trigger",
    "why",
]
