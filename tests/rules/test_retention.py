from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqla_jobs.errors import InvalidOption
from sqla_jobs.rules.retention import LARGEST_BATCH, LONGEST_BATCH, Retention, limit_after_failure, next_limit
from sqla_jobs.status import FINISHED, JobStatus

DAY = timedelta(days=1)

limits = st.integers(1, LARGEST_BATCH)


@pytest.mark.parametrize(
    ("ages", "says"),
    [
        ({}, "keeps everything: give an age"),
        ({"done": None, "archived": None}, "keeps everything"),
        ({"done": 3600}, "done is a timedelta, and is a int"),
        ({"failed": -DAY}, "failed is from 0:00:00 to"),
        ({"archived": timedelta.max}, "archived is from 0:00:00 to"),
    ],
)
def test_retention_that_means_nothing_is_refused(ages: dict[str, Any], says: str) -> None:
    """The error names the age that is wrong; no age at all would be a forgotten one."""
    with pytest.raises(InvalidOption, match=says):
        Retention(**ages)


def test_ages_are_those_that_are_given() -> None:
    """A status without an age is kept for good; an age of zero is one."""
    assert list(Retention(dead=DAY, done=timedelta(0)).ages()) == [
        (JobStatus.DONE, timedelta(0)),
        (JobStatus.DEAD, DAY),
    ]
    assert list(Retention(archived=DAY).ages()) == []
    assert {status for status, _ in Retention(DAY, DAY, DAY).ages()} == FINISHED


@given(limit=limits, seconds=st.floats(0, 100))
def test_batch_shrinks_when_it_takes_long_and_grows_back(limit: int, seconds: float) -> None:
    """It is never empty and never over its bound, and no fixed size is too long for every database."""
    following = next_limit(limit, seconds=seconds)

    assert 1 <= following <= LARGEST_BATCH
    assert following <= max(1, limit // 2) if seconds > LONGEST_BATCH else following >= limit


@given(jobs=st.integers(2, LARGEST_BATCH))
def test_batch_that_failed_is_cut_down_to_one_row(jobs: int) -> None:
    """The bad row is alone after a few tries."""
    sizes = [jobs]
    while sizes[-1] > 1:
        sizes.append(limit_after_failure(sizes[-1]))

    assert sizes[-1] == 1
    assert len(sizes) <= 5
