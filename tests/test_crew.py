"""Jobs shared out: when they are drawn, what is lost, and what the drivers make of it; walks over several scopes."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run
from pagedkv.spec.crew import Job, Lost, ProcessCrew, share_out
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.fuzz import Batch, fuzz
from pagedkv.spec.fuzz import run as run_seed
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.fuzz_tally import Tally
from pagedkv.spec.moves import Scope
from pagedkv.spec.reference import Reference
from pagedkv.spec.scopes import Walk, Walks, explore_scopes
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config

from planted_faults import EarlyReuse, MissingEdge
from searching import Captured, refused


class Hired:
    """A crew within this process: so many jobs at a time, the oldest is done first; some are lost, some never taken."""

    def __init__(
        self, at_once: int, is_lost: Callable[[int], bool] = lambda _: False, until: int | None = None
    ) -> None:
        self.at_once = at_once
        self.is_lost = is_lost
        self.until = until  # so many jobs are done, then nobody is left
        self.given: deque[Job] = deque()
        self.taken = 0
        self.most = 0
        self.closed = False

    def room(self) -> int:
        return 0 if self.until is not None and self.taken >= self.until else self.at_once - len(self.given)

    def give(self, job: Job) -> None:
        assert self.room(), "a job was given where there was no room"
        self.given.append(job)
        self.most = max(self.most, len(self.given))

    def take(self) -> tuple[Job, Any]:
        job = self.given.popleft()
        self.taken += 1
        return job, Lost("the machine left") if self.is_lost(self.taken) else job()

    def close(self) -> None:
        self.closed = True


def numbers(count: int, drawn: list[int]) -> Iterator[Job]:
    """Yield jobs that answer with their numbers, and note down which were drawn."""
    for number in range(count):
        drawn.append(number)
        yield number.__int__


# ---- sharing out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_jobs_are_drawn_when_there_is_room(at_once: int) -> None:
    drawn: list[int] = []
    crew = Hired(at_once)
    answers = []
    for job, answer in share_out(crew, numbers(10, drawn)):
        assert job() == answer
        answers.append(answer)
        assert len(drawn) <= len(answers) + at_once - 1
    assert answers == drawn == list(range(10))
    assert crew.most == min(at_once, 10)


def test_it_ends_where_nobody_is_left() -> None:
    drawn: list[int] = []
    assert [answer for _, answer in share_out(Hired(2, until=3), numbers(10, drawn))] == [0, 1, 2, 3]
    assert drawn == [0, 1, 2, 3], "the last was under way when the third was done"


def test_processes_do_jobs_and_raise_what_these_raise() -> None:
    crew = ProcessCrew(2)
    try:
        assert sorted(answer for _, answer in share_out(crew, numbers(5, []))) == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="invalid literal"):
            list(share_out(crew, iter([partial(int, "no number")])))
    finally:
        crew.close()


# ---- fuzz -----------------------------------------------------------------------------------------------------------

PLAN = Plan(Reference, operations=30)


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_crew_comes_to_what_one_process_comes_to(at_once: int) -> None:
    crew = Hired(at_once)
    alone, shared = fuzz(PLAN, seed=5, runs=30), fuzz(PLAN, seed=5, runs=30, crew=crew)
    assert asdict(shared) | {"seconds": 0} == asdict(alone) | {"seconds": 0}
    assert crew.closed


def test_lost_seeds_are_named_and_the_others_are_run() -> None:
    """Batches of 8: the second of four is lost."""
    tally = fuzz(PLAN, seed=100, runs=30, crew=Hired(2, lambda number: number == 2))
    assert tally.lost == [(range(108, 116), "the machine left")]
    rest = [run_seed(PLAN, seed) for seed in (*range(100, 108), *range(116, 130))]
    assert tally.runs == len(rest) == 22
    assert tally.operations == sum(each.operations for each in rest)


def test_seeds_that_nobody_takes_are_lost() -> None:
    tally = fuzz(PLAN, seed=0, runs=30, crew=Hired(1, until=2))
    assert tally.runs == 16
    assert tally.lost == [
        (range(16, 24), "nobody was left to run them"),
        (range(24, 30), "nobody was left to run them"),
    ]


def test_with_a_time_it_ends_where_nobody_is_left() -> None:
    tally = fuzz(PLAN, seed=0, seconds=1000, crew=Hired(1, until=1))
    assert (tally.runs, tally.lost) == (8, [(range(8, 16), "nobody was left to run them")])


def test_a_number_of_operations_ends_a_shared_search() -> None:
    crew = Hired(2)
    tally = fuzz(PLAN, seed=0, operations=500, crew=crew)
    before = fuzz(PLAN, seed=0, runs=8 * (crew.taken - 1))
    assert before.operations < 500 <= tally.operations
    assert tally.lost == []
    assert crew.closed


def test_time_ends_a_shared_search() -> None:
    tally = fuzz(PLAN, seed=0, seconds=0.05, crew=Hired(3))
    assert tally.runs >= 1
    assert tally.lost == []


def test_a_batch_ends_at_its_first_finding_or_when_time_is_up() -> None:
    plan = Plan(MissingEdge, Config(4, 2, 2, 3), operations=40)
    first = next(seed for seed in range(200) if run_seed(plan, seed).finding)
    found = Batch(plan, range(first, first + 8), None)()
    assert (found.runs, found.seed) == (1, first)
    assert Batch(PLAN, range(8), 0.0)().runs == 1


def test_what_is_under_way_at_a_finding_is_finished_and_nothing_more_is_given() -> None:
    plan = Plan(MissingEdge, Config(4, 2, 2, 3), operations=40)
    first = next(seed for seed in range(3, 200) if run_seed(plan, seed).finding)
    seen: list[int] = []
    crew = Hired(4)
    tally = fuzz(plan, seed=3, runs=200, crew=crew, progress=lambda tally: seen.append(tally.runs))
    assert tally.seed == first
    assert crew.taken == (first - 3) // 8 + 4, "batches up to that of the finding, and three that were under way"
    assert tally.lost == []


def test_tallies_add_up_what_was_lost() -> None:
    total = Tally()
    for number in (1, 2):
        total.add(Tally(lost=[(range(number), "why")]))  # type: ignore[list-item]
    assert total.lost == [(range(1), "why"), (range(2), "why")]


# ---- scopes ---------------------------------------------------------------------------------------------------------


def walks_of(factory: type[Reference] | Any, *blocks: int) -> list[Settings]:
    """Return small scopes, one for each number of blocks."""
    return [Settings(Scope(Config(each, 1, 1, 1), sequences=2, tokens=1, rows=1), factory) for each in blocks]


def facts(report: Report | Lost | None) -> tuple[int, int, int]:
    """Return what a walk counted."""
    assert isinstance(report, Report)
    return report.states, report.edges, report.depth


@pytest.mark.parametrize("crew", [None, Hired(1), Hired(5)], ids=["here", "one at a time", "five"])
def test_each_scope_is_walked_as_if_it_were_the_only_one(crew: Hired | None) -> None:
    scopes = walks_of(Reference, 3, 1, 2)
    alone = [explore(settings) for settings in scopes]
    walks = explore_scopes(scopes, crew=crew)
    assert [facts(walk) for walk in walks.outcomes] == [facts(report) for report in alone]
    assert walks.complete()
    assert walks.first() is None
    for kind in ("add", "retire"):
        assert walks.fired[kind] == sum(report.fired[kind] for report in alone)
    assert set(walks.holes()) <= set.intersection(*(set(report.holes()) for report in alone))


def test_processes_walk_scopes() -> None:
    scopes = walks_of(Reference, 1, 2)
    one, two = explore_scopes(scopes), explore_scopes(scopes, workers=2)
    assert [facts(walk) for walk in one.outcomes] == [facts(walk) for walk in two.outcomes]


def test_a_scope_that_is_lost_is_named_and_the_others_are_walked() -> None:
    walks = explore_scopes(walks_of(Reference, 1, 2, 3), crew=Hired(2, lambda number: number == 2))
    assert walks.outcomes[1] == Lost("the machine left")
    assert [type(walk) for walk in walks.outcomes] == [Report, Lost, Report]
    assert not walks.complete()
    walks = explore_scopes(walks_of(Reference, 1, 2, 3), crew=Hired(1, until=1))
    assert walks.outcomes[1:] == [Lost("nobody was left to walk it")] * 2


def test_the_shortest_counterexample_is_taken_and_no_more_scopes_are_given_out() -> None:
    """Early reuse takes three operations in any scope: the one named first is taken, and the third never begins."""
    walks = explore_scopes(walks_of(EarlyReuse, 2, 1, 3), crew=Hired(2))
    first = walks.first()
    assert first is not None
    assert (first[0].scope.config.blocks, len(first[1].trace)) == (2, 3)
    assert walks.outcomes[2] is None
    longer = Report("", trace=[1, 2], broken=first[1].broken)
    shorter = Report("", trace=[1], broken=first[1].broken)
    pair = Walks(walks.settings[:2], [longer, shorter]).first()
    assert pair is not None
    assert pair[1] is shorter


def test_holes_are_those_of_all_walks_together() -> None:
    alone = explore_scopes(walks_of(Reference, 1)).holes()
    both = explore_scopes(walks_of(Reference, 1, 3)).holes()
    assert set(both) < set(alone), "what one block is too small for, three are not"
    walk = Walk(0, walks_of(Reference, 1)[0], None)()
    assert alone == walk.holes()


# ---- explore --scopes -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout."""
    monkeypatch.chdir(tmp_path)


def explored(exit_code: int, *arguments: str) -> dict[str, Any]:
    """Run `explore` with one worker and return what it wrote."""
    assert run(["explore", *arguments, "--workers", "1", "--json", "facts.json"]) == exit_code
    found: dict[str, Any] = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    return found


TINY = ("--sequences", "1", "--launches", "1", "--streams", "1", "--max-tokens", "1")


def test_scopes_are_all_combinations(capsys: Captured) -> None:
    found = explored(1, *TINY, "--scopes", "blocks=2,1 block-size=1,2", "--contents-only")
    assert found["holes"] == ["extend never fired, it was refused each time", "fork never fired"]
    words = [scope["scope"].partition(", 1 sequence ")[0] for scope in found["scopes"]]
    assert words == ["2 blocks, B = 1", "2 blocks, B = 2", "1 block, B = 1", "1 block, B = 2"]
    assert [scope["verdict"] for scope in found["scopes"]] == ["every state visited"] * 4
    assert found["edges"] == sum(scope["edges"] for scope in found["scopes"])
    single = explored(1, *TINY, "--blocks", "2", "--block-size", "1", "--contents-only")
    assert single["states"] == found["scopes"][0]["states"]
    out = capsys.readouterr().out
    assert "explore impl: 4 scopes" in out
    assert "sequences 1, launches 1, streams 1, tokens 1, batch 1" in out


def test_scopes_of_the_scheduler() -> None:
    found = explored(1, "--scheduler", "--target", "spec", "--scopes", "blocks=1,2 sequences=1")
    assert [scope["complete"] for scope in found["scopes"]] == [True, True]
    assert found["holes"], "one request alone is never preempted"


def test_a_fault_in_one_of_several_scopes_is_saved() -> None:
    found = explored(1, *TINY, "--scopes", "blocks=1,2,3", "--target", "planted_faults:EarlyReuse")
    assert (found["rule"], found["counterexample_length"]) == ("R-LIFE-1", 3)
    assert [scope["verdict"] for scope in found["scopes"]] == ["R-LIFE-1 broken", "not begun", "not begun"]
    assert run(["fuzz", "--again", found["trace"]]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scopes", ""], "--scopes '': no scope is named"),
        (["--scopes", "blocks"], "'blocks' names no size of a scope (blocks, block-size, sequences"),
        (["--scopes", "colour=3"], "'colour=3' names no size"),
        (["--scopes", "blocks="], "blocks has whole numbers from 1 to 16"),
        (["--scopes", "blocks=1,17"], "blocks has whole numbers from 1 to 16"),
        (["--scopes", "blocks=1,x"], "blocks has whole numbers"),
        (["--scopes", "batch=0"], "batch has whole numbers from 1 to 6"),
        (["--scopes", "blocks=2,3,2"], "blocks has a number twice"),
        (["--scopes", "blocks=1 blocks=2"], "blocks stands twice"),
        (["--scheduler", "--scopes", "launches=1"], "'launches=1' names no size"),
        (["--dask", "tcp://127.0.0.1:1"], "--dask: one scope is walked by one machine; give --scopes"),
    ],
)
def test_scopes_that_make_no_sense(capsys: Captured, arguments: list[str], said: str) -> None:
    assert said in refused(capsys, "explore", *arguments)


def test_scopes_beyond_reason(capsys: Captured) -> None:
    many = ",".join(map(str, range(1, 17)))
    assert "more than 1,000 scopes" in refused(
        capsys, "explore", "--scopes", f"blocks={many} block-size={many} launches={many}"
    )
