"""Windows over a list of jobs: each statement looks at a bounded number of rows, and says where the next goes on."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row
from sqlalchemy.orm import Session

from sqla_jobs.errors import InvalidOption
from sqla_jobs.operations.listing_filter import LARGEST_ID, JobFilter, check_id
from sqla_jobs.operations.registry import Jobs
from sqla_jobs.rules.failure import storable
from sqla_jobs.rules.groups import failure_in
from sqla_jobs.schema import listing as statements
from sqla_jobs.schema.constructs import said
from sqla_jobs.schema.dialects import capabilities
from sqla_jobs.schema.listing import KEYS, OF_ONE_KEY, OF_THE_ARCHIVE, Stretch
from sqla_jobs.schema.tables import ArchiveTable, MappedTable
from sqla_jobs.status import FINISHED, JobStatus

WINDOW, SEARCHED = 500, 2000
"""Rows that one statement looks at; and where most of them may not be what is looked for."""

_TIMES: Final = {"run_at", "finished_at", "archived_at"}

_KEYS_OF_LIVE_JOBS: Final = {"locked_by", "run_at", "finished_at"}

_INSTANT: Final = re.compile(r"(?P<year>\d{4,6})-(?P<rest>\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.:+-]{0,20})(?: BC)?", re.ASCII)
"""How a server with times of its own writes one."""

_LATEST_YEAR: Final = 294_000

_WIDEST_OFFSET: Final = timedelta(hours=15)


@dataclass(frozen=True, slots=True)
class Window:
    """Rows that one statement has looked at.

    :ivar matching: those that the filter is true of
    :ivar looked_at: how many it were
    :ivar after: the place behind all of them; None at the end of the list
    """

    matching: list[Row[Any]]
    looked_at: int
    after: str | None
    stretch: Stretch

    def behind(self, row: Row[Any]) -> str:
        """Give the place behind *row*, one of these."""
        return _token(self.stretch, str(row.at), row.id)


def windows(
    session: Session, jobs: Jobs[Any], where: JobFilter, *, after: str | None, limit: int, most: int = LARGEST_ID
) -> Iterator[Window]:
    """Go over the jobs of *where* in order, *limit* rows at a time, and *most* rows altogether."""
    stretches = _stretches(session, jobs, where) if where.key is None else [OF_ONE_KEY]
    yield from _over(session, jobs.table, stretches, where, after=after, limit=limit, most=most)


def archived_windows(
    session: Session, archive: ArchiveTable, where: JobFilter, *, after: str | None, limit: int, most: int = LARGEST_ID
) -> Iterator[Window]:
    """Go over the archived jobs of *where* in the same way."""
    stretches = [OF_THE_ARCHIVE if where.key is None else OF_ONE_KEY]
    yield from _over(session, archive, stretches, where, after=after, limit=limit, most=most)


def _over(
    session: Session,
    table: MappedTable,
    stretches: Sequence[Stretch],
    where: JobFilter,
    *,
    after: str | None,
    limit: int,
    most: int,
) -> Iterator[Window]:
    condition = where.condition(table)
    began, place = (None, None) if after is None else _read_token(session, table, after, stretches)
    if began is not None:
        stretches = [stretch for stretch in stretches if stretch.place >= began]
    if not stretches:
        yield Window([], 0, None, Stretch((), "run_at"))
    for number, stretch in enumerate(stretches):
        place = place if stretch.place == began else None
        following = _token(stretches[number + 1]) if number + 1 < len(stretches) else None
        is_end = False
        while not is_end and most:
            statement = statements.window(table, stretch, condition, after=place)
            size = min(limit, most)
            rows = session.execute(statement, said({"limit": size}), bind_arguments={"mapper": table.mapper}).all()
            is_end, most = len(rows) < size, most - len(rows)
            place = None if is_end else (str(rows[-1].at), rows[-1].id)
            matching = [row for row in rows if row.matches and _is_of_group(row, where)]
            yield Window(matching, len(rows), following if place is None else _token(stretch, *place), stretch)


def _stretches(session: Session, jobs: Jobs[Any], where: JobFilter) -> list[Stretch]:
    """Give the parts of the table that may have such jobs, in order."""
    stretches: list[Stretch] = []
    finished = tuple(status for status in where.statuses if status in FINISHED)
    for statuses, key in (((JobStatus.RUNNING,), "locked_by"), (finished, "finished_at")):
        if statuses and set(statuses) <= set(where.statuses):
            stretches += [Stretch(statuses, key, is_empty=True), Stretch(statuses, key)]
    if JobStatus.READY in where.statuses:
        lanes = session.execute(statements.lanes_of(jobs.table), bind_arguments={"mapper": jobs.table.mapper})
        stretches += [
            Stretch((JobStatus.READY,), "run_at", queue=lane.queue, type=lane.type)
            for lane in lanes
            if where.queue in {None, lane.queue} and where.type in {None, lane.type}
        ]
    return sorted(stretches, key=lambda stretch: stretch.place)


def _is_of_group(row: Row[Any], where: JobFilter) -> bool:
    return where.group is None or failure_in(row.last_error or "", row.type).key == where.group


def _token(stretch: Stretch, at: str | None = None, id_: int | None = None) -> str:
    text = json.dumps([*stretch.place, at, id_])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(
    session: Session, table: MappedTable, token: str, stretches: Sequence[Stretch]
) -> tuple[tuple[int, str, str, bool], tuple[str, int] | None]:
    """Give the place that a page has ended at.

    :raises InvalidOption: there is none; before the database stumbles over it, which would end the transaction
    """
    # Lanes come and go between two pages; what a list is ordered by stays.
    keys = {stretch.key for stretch in stretches if not stretch.statuses} or _KEYS_OF_LIVE_JOBS
    try:
        text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        rank, queue, type_, is_filled, at, id_ = json.loads(text)
        place = (int(rank), str(queue), str(type_), bool(is_filled))
        row = None if id_ is None else (str(at), check_id(int(id_)))
        key = KEYS[place[0]] if place[0] >= 0 else ""
        if key in keys and (row is None or _can_be_read(row[0], session, table, is_time=place[3] and key in _TIMES)):
            return place, row
    except (binascii.Error, ValueError, TypeError, AttributeError, OverflowError, IndexError, RecursionError):
        pass
    raise InvalidOption(f"after is {token!r}, and no page of such a list gave that: leave it out to begin")


def _can_be_read(text: str, session: Session, table: MappedTable, *, is_time: bool) -> bool:
    """Tell whether the database reads the key of a place; where times are texts, any text is one.

    :raises ValueError: as a time it is none
    """
    if storable(text) != text:
        return False
    if not is_time or not capabilities(session.get_bind(table.mapper).dialect).is_server:
        return True
    if text.removeprefix("-") == "infinity":
        return True
    found = _INSTANT.fullmatch(text)
    if found is None or int(found["year"]) > _LATEST_YEAR:
        return False
    # Python has no such years; the rest of it is as in any leap year.
    offset = datetime.fromisoformat(f"2000-{found['rest']}").utcoffset()
    return offset is not None and abs(offset) <= _WIDEST_OFFSET
