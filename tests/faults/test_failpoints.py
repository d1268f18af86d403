"""A worker fails at each failpoint: before each statement, before and after each commit, of all its own transactions.

Unless SQLA_JOBS_ALL_FAILPOINTS=1 asks for the product of all places and actions, errors come at many places at once,
each place with one of the three in turn; and nobody is killed where nothing has been written.
"""

from __future__ import annotations

import os
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import pytest

from tests.faults.dying import Killer
from tests.faults.failing import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIONS: Final = ("drop", "serialization", "deadlock")

PARTS: Final = (
    *("claim", "settle", "complete", "renew", "reap", "tick", "archive"),
    *("claim.read", "reap.read", "tick.read", "archive.read"),
)

TIMES: Final = {"tick": 4, "archive": 4, "reap": 2, "claim.read": 4}
"""How often at least, and each time for another thing, a part has a transaction; others have one kind."""

ONE_BY_ONE: Final = ("tick", "archive")
"""Parts that do the same in every run, in the same order."""

EDGES: Final = ("statement_1", "before_commit", "after_commit")

ALL: Final = "SQLA_JOBS_ALL_FAILPOINTS" in os.environ

in_full = pytest.mark.skipif(not ALL, reason="takes minutes: SQLA_JOBS_ALL_FAILPOINTS=1")


@pytest.fixture
def scene(database_url: str) -> Iterator[Scene]:
    """Give the scene, of each kind of database in turn."""
    with closing(Scene(database_url)) as scene:
        scene.create()
        yield scene


def part_of(place: str) -> str:
    return place.rpartition(".")[0]


def places(scene: Scene) -> list[str]:
    """Run without failing; give the places to fail at, by part, in the order in which they were passed."""
    scene.fill()
    passed = scene.run({}).passed
    expect_none(scene.problems(), "no failure")

    certain = [place for place in passed if is_certain(place)]
    for part in PARTS:
        assert {f"{part}.{edge}#1" for edge in EDGES} <= set(certain)
    return sorted(certain, key=part_of)


def is_certain(place: str) -> bool:
    """Tell whether each run passes it, and not only some: not all transactions need their second statement again."""
    name, _, time = place.partition("#")
    part, _, point = name.rpartition(".")
    if part == "settle" and point not in (*EDGES, "statement_1"):  # it depends on what ends fall into one batch
        return False
    return int(time) <= (TIMES.get(part, 1 + ALL) if point in EDGES or part in ONE_BY_ONE else 1)


def all_at_once(found: list[str]) -> Iterator[list[str]]:
    """Divide places into groups, in each at most one of a part."""
    parts = [[place for place in found if part_of(place) == part] for part in dict.fromkeys(map(part_of, found))]
    for group in zip_longest(*parts):
        yield [place for place in group if place is not None]


def has_written(place: str) -> bool:
    """Tell whether a death there may leave something behind."""
    is_before = ".statement_1#" in place and not place.startswith("complete")
    return ALL or not (is_before or ".read." in place)


def expect_none(problems: list[str], after: str) -> None:
    assert not problems, "\n".join([after, *problems])


def check(scene: Scene, plan: dict[str, str]) -> None:
    """Do the work with that plan, and see that all of it happened and nothing came of it."""
    scene.fill()
    fired = scene.run(plan).fired
    expect_none(scene.problems(), f"{plan}, fired {fired}")
    assert set(fired) == set(plan)


def test_error_at_any_place_loses_and_doubles_nothing(scene: Scene, database_url: str) -> None:
    """With an error in each part of a worker, all is done once, and no attempt is lost by it."""
    for number, group in enumerate(all_at_once(places(scene)), start=database_url.startswith("sqlite")):
        check(scene, {place: ACTIONS[(number + turn) % 3] for turn, place in enumerate(group)})


@in_full
@pytest.mark.parametrize("action", ACTIONS)
def test_error_at_each_place_loses_and_doubles_nothing(scene: Scene, action: str) -> None:
    """Whatever fails, and wherever, all is done once, and no attempt is lost by it."""
    for place in places(scene):
        check(scene, {place: action})


@pytest.mark.parametrize("database_url", ["postgresql", pytest.param("sqlite", marks=in_full)], indirect=True)
def test_worker_that_dies_at_any_place_loses_nothing(scene: Scene, database_url: str) -> None:
    """Another worker does what is left, and does again only what the dead one may not have finished."""
    found = places(scene)
    scene.fill()

    with closing(Killer(database_url)) as killer:
        for place in filter(has_written, found):
            scene.fill()
            assert killer.run(place), f"{place} is not reached"
            scene.outlive()
            scene.run({})
            expect_none(scene.problems(killed=True), f"killed at {place}")
