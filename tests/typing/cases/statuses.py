"""A status is a string to those who read it, and only a status to those who write it."""

from __future__ import annotations

from sqla_jobs.status import JobStatus

text: str = JobStatus.READY
status: JobStatus = "ready"  # error: [assignment] [reportAssignmentType]
