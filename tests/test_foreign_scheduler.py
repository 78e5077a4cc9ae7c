"""A stranger's scheduler under test, from outside: sound, faulty in every rule; our own behind the same protocol.

What a stranger must write is `foreign_scheduler_adapter.py` alone: the scheduler behind it knows nothing of us.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench import own_scheduler_outside
from pagedkv.bench.command_line import run as run_command
from pagedkv.bench.foreign_search import TRIED, foreign_plan, told_in_words
from pagedkv.spec.counts import counted
from pagedkv.spec.foreign_alphabet import Finish, from_json, to_json
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.foreign_judge import FOREIGN_RULES, Happened
from pagedkv.spec.foreign_scheduler import Config, Copy, Discipline, Feature, ForeignScheduler, Limits, Row, Step
from pagedkv.spec.fuzz import run
from pagedkv.spec.refusals import Broken, Reason, Refused
from pagedkv.spec.requests import Request
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Schedule, Submit
from pagedkv.spec.traces import tell

import foreign_scheduler_adapter
import foreign_scheduler_sample
from foreign_scheduler_adapter import ForeignEngine
from foreign_scheduler_faults import FAULTS, planted
from foreign_scheduler_sample import Batch, PagedScheduler
from searching import Captured, first_finding, refused, shortened

RUNS = 60
OPERATIONS_MOST = 15  # of a counterexample
FUZZ = ("fuzz", "--scheduler", "--workers", "1", "--target")
BY_NAME = f"{foreign_scheduler_adapter.__name__}:ForeignEngine"


# ---- a stranger's --------------------------------------------------------------------------------------------------


def test_nothing_is_found_in_the_sound_one() -> None:
    tallies = [run(foreign_plan(ForeignEngine), seed) for seed in range(RUNS)]
    assert [tally.finding for tally in tallies if tally.finding] == []
    for word in foreign_plan(ForeignEngine).vocabulary():
        assert sum(tally.fired[word] for tally in tallies) > 10, word


def test_a_seed_is_a_run() -> None:
    plan = foreign_plan(planted(next(iter(FAULTS))))
    first, again = (run(plan, 0) for _ in range(2))
    assert first.finding is not None
    assert again.finding is not None
    assert (first.finding.trace, first.fired) == (again.finding.trace, again.fired)


def test_every_rule_has_a_fault() -> None:
    assert FOREIGN_RULES.keys() == set(FAULTS.values()) | {"R-LIFE-1"}  # which the own scheduler breaks, below


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_found_under_its_rule_and_made_short(fault: type[PagedScheduler]) -> None:
    finding = first_finding(planted(fault), FAULTS[fault])
    assert finding is not None
    short = shortened(finding)
    assert short.broken.rule == FAULTS[fault]
    assert len(short.trace) <= OPERATIONS_MOST
    told, broken = tell(short.case, short.trace)
    assert broken is not None
    assert (broken.rule, broken.detail) == (short.broken.rule, short.broken.detail)
    assert all(word for step in told for word in told_in_words(step.operation, step.offered))


class BeginsAgain(PagedScheduler):
    """Whoever has a part of its prompt computed is preempted in favour of whoever waits: itself, if alone."""

    def schedule(self) -> Batch:
        for seq in [seq for seq in self.running if seq.computed < seq.prompt_len]:
            self.running.remove(seq)
            self.preempt(Batch(), seq)
        return super().schedule()


def test_steps_without_end_are_found() -> None:
    """Each step is right, and nobody gets anywhere."""
    whole, chunked = (ForeignCase(Config(blocks, 1), planted(BeginsAgain), Limits(2, 2)) for blocks in (3, 4))
    assert tell(whole, [Submit(Request(0, 2, 1)), Finish()])[1] is None
    told, broken = tell(chunked, [Submit(Request(0, 3, 1)), Finish()])
    assert broken is not None
    assert broken.rule == "R-PRE-3"
    assert len(told) == 2


class Raises(PagedScheduler):
    """Where nothing fits it raises."""

    def fits(self, blocks: int) -> bool:
        assert super().fits(blocks), "no room"
        return True


class OfNoType(ForeignEngine):
    """A step's blocks are no numbers."""

    def schedule(self) -> Step:
        step = super().schedule()
        no_numbers: Any = ["a"]
        return step._replace(rows=[row._replace(blocks=no_numbers) for row in step.rows])


class OfNoRequest(ForeignEngine):
    """A step's rows are of a list of requests."""

    def schedule(self) -> Step:
        step = super().schedule()
        several: Any = [1]
        return step._replace(rows=[row._replace(request=several) for row in step.rows])


class WithoutEnd(ForeignEngine):
    """A row's blocks never end."""

    def schedule(self) -> Step:
        step = super().schedule()
        endless: Any = itertools.repeat(1)
        return step._replace(rows=[row._replace(blocks=endless) for row in step.rows])


def test_a_crash_is_a_finding() -> None:
    wrong = ((OfNoType, "TypeError"), (OfNoRequest, "TypeError"), (WithoutEnd, "more than 1,000,000 integers"))
    for factory, words in ((planted(Raises), "AssertionError: no room"), *wrong):
        finding = first_finding(factory)
        assert finding is not None
        assert finding.broken.rule == "CRASH"
        assert words in finding.broken.detail


# ---- what is asked -------------------------------------------------------------------------------------------------


def world() -> Any:
    """Return a world of the stranger's scheduler."""
    return ForeignCase(Config(4, 2), ForeignEngine, Limits(8, 4)).start()


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Submit(Request(0, 1, 1)), Reason.DUPLICATE),
        (Submit(Request(1, (), 1)), Reason.EMPTY),
        (Submit(Request(1, 1, 0)), Reason.BAD_COUNT),
        (Submit(Request(1, 1, 1, samples=2)), Reason.BAD_COUNT),
        (Submit(Request(1, 4, 5)), Reason.TOO_LONG),
        (Complete(), Reason.UNKNOWN_LAUNCH),
        (Cancel(7), Reason.UNKNOWN),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_not_asked(operation: Any, reason: Reason) -> None:
    here = world()
    here.step(Submit(Request(0, 1, 1)))
    here.scheduler = ForeignScheduler(*TRIED)  # which has no answer to anything
    decided = here.step(operation)
    assert isinstance(decided, Refused)
    assert decided.reason is reason


def test_what_is_not_offered_is_not_asked() -> None:
    class Late(ForeignEngine):
        """Takes no abort in flight, no salt, and no chunks."""

        not_offered = frozenset({Feature.SALT, Feature.CHUNKS, Feature.CANCEL_IN_FLIGHT})

        def submit(self, request: int, prompt: tuple[int, ...], outputs: int, salt: int) -> None:
            assert salt == 0
            super().submit(request, prompt, outputs, salt)

        def schedule(self) -> Step:
            step = super().schedule()
            self.in_flight = {row.request for row in step.rows}
            assert all(row.samples for row in step.rows)
            return step

        def complete(self, step: Step, tokens: Any) -> list[int]:
            self.in_flight = set()
            return super().complete(step, tokens)

        def abort(self, request: int) -> None:
            assert request not in getattr(self, "in_flight", ())
            super().abort(request)

    assert first_finding(Late, runs=20) is None
    here = ForeignCase(Config(4, 2), Late, Limits(4, 2)).start()
    assert not any(isinstance(here.step(each), Refused) for each in (Submit(Request(0, 3, 1)), Schedule()))
    asked = here.step(Cancel(0))
    assert isinstance(asked, Refused)
    assert asked.reason is Reason.NOT_OFFERED


def test_a_row_in_flight_when_its_request_is_aborted_completes_like_any_other() -> None:
    here = world()
    for operation in (Submit(Request(0, 1, 2)), Schedule(), Cancel(0)):
        here.step(operation)
    assert here.step(Complete()) == Happened()
    assert isinstance(here.step(Finish()), Happened)
    assert here.blocks() == (4, 0, 0)


# ---- by hand: the verdicts of a scheduler that says what it is told to --------------------------------------------


class Scripted(ForeignScheduler):
    """Plans what it is given."""

    steps: tuple[Step, ...] = ()
    shares_prefixes = True

    def submit(self, request: int, prompt: tuple[int, ...], outputs: int, salt: int) -> None:
        """Take anything."""

    def schedule(self) -> Step | None:
        step, *rest = self.steps
        self.steps = tuple(rest)
        return step

    def complete(self, step: Step, tokens: Any) -> list[int]:
        assert tokens.keys() == {row.request for row in step.rows if row.samples}
        return step.own or []


def verdict(*steps: Step, requests: tuple[Request, ...] = (Request(0, (5, 6, 7), 2),), sharing: bool = True) -> str:
    """Return which rule these steps break, each completed before the next; empty: none."""
    here = ForeignCase(Config(4, 2), Scripted, Limits(4, 2, prefix_cache=sharing)).start()
    here.scheduler.steps = steps  # type: ignore[attr-defined]
    try:
        for request in requests:
            here.step(Submit(request))
        for _ in steps:
            here.step(Schedule())
            if here.device.flights:
                here.step(Complete())
    except Broken as broken:
        return broken.rule
    return ""


def step(*rows: Row, finished: tuple[int, ...] = (), preempted: tuple[int, ...] = ()) -> Step:
    """Return a step."""
    return Step(rows, preempted, own=finished)


WHOLE = step(Row(0, 0, 3, (1, 2), samples=True))
LAST = step(Row(0, 3, 1, (1, 2), samples=True), finished=(0,))
BOTH = step(Row(0, 0, 2, (1,), samples=False), Row(1, 0, 2, (2,), samples=False))
TWO = (Request(0, (5, 6, 7), 2), Request(1, (5, 6, 8), 2))


def test_a_right_script_is_right() -> None:
    assert verdict(WHOLE, LAST) == ""
    chunks = (step(Row(0, 0, 2, (1,), samples=False)), step(Row(0, 2, 1, (1, 2), samples=True)), LAST)
    assert verdict(*chunks) == ""
    assert verdict(WHOLE, step(Row(1, 2, 1, (1, 3), samples=True)), requests=TWO) == ""  # a hit
    copies = [Copy(0, 3, 4, 1), Copy(0, 3, 4, 2)]
    assert verdict(BOTH._replace(copies=copies), requests=TWO) == ""  # into one block, for one request
    again = step(Row(0, 0, 4, (3, 4), samples=True), finished=(0,), preempted=())
    assert verdict(WHOLE, again._replace(preempted=()), requests=TWO[:1]) == ""  # preempted, and nobody said so


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("R-LIFE-7", (WHOLE, LAST._replace(own=()))),  # has its last token, and goes on
        ("R-LIFE-7", (WHOLE._replace(own=(0,)),)),  # is finished a token early
        ("R-LIFE-7", (WHOLE, LAST, LAST)),  # a row of one that is finished
        ("R-LIFE-7", (step(Row(0, 0, 4, (1, 2), samples=True)),)),  # a token that was not sampled
        ("R-LIFE-7", (WHOLE, step(Row(1, 0, 3, (3, 4), samples=True), finished=(1,)))),  # likewise
        ("R-PRE-1", (WHOLE, step(preempted=(0,)), step(Row(0, 0, 3, (1, 2), samples=True)))),  # sampled twice
        ("R-PRE-1", (WHOLE, step(preempted=(0,)), step(Row(0, 1, 3, (3, 4), samples=True)))),  # not computed again
        ("R-PRE-2", (WHOLE, step(Row(0, 0, 4, (1, 2), samples=True), preempted=(0,)))),
        ("R-TAB-1", (step(Row(0, 0, 3, (1,), samples=True)),)),
        ("R-TAB-1", (step(Row(0, 0, 3, (1, 5), samples=True)),)),
        ("R-TAB-1", (step(Row(0, 0, 1, (1,), samples=False), Row(0, 1, 1, (1,), samples=False)),)),
        ("R-OWN-3", (step(Row(0, 0, 3, (1, 1), samples=True)),)),
        ("R-OWN-3", (step(Row(0, 0, 2, (1,), samples=False), Row(1, 0, 2, (1,), samples=False)),)),
        ("R-COW-1", (WHOLE, step(Row(1, 0, 2, (1,), samples=False)), step(Row(0, 3, 1, (1, 2), samples=True)))),
        ("R-OWN-3", (BOTH._replace(copies=[Copy(0, 3, 4, 2), Copy(1, 3, 4, 2)]),)),  # of two copies
        ("R-OWN-3", (BOTH._replace(copies=[Copy(0, 3, 2, 1)]),)),  # of a copy and a row
        ("R-COW-3", (BOTH._replace(copies=[Copy(0, 3, 5, 1)]),)),
        ("R-COW-3", (BOTH._replace(copies=[Copy(2, 3, 4, 1)]),)),
        ("R-PRE-2", (step(Row(0, 0, 3, (1, 2), samples=True), Row(1, 0, 2, (3,), samples=False)),)),  # of 4 positions
        ("R-HASH-4", (step(Row(0, 2, 1, (1, 2), samples=True)),)),
        ("R-HASH-5", (WHOLE, step(Row(1, 3, 0, (1, 2), samples=True)))),
        ("R-DATA", (step(Row(0, 0, 1, (1,), samples=False)), step(Row(0, 2, 1, (1, 2), samples=True)))),
        ("R-PRE-1", (step(preempted=(5,)),)),  # never submitted
        ("R-PRE-3", (Step(()),) * 3),
    ],
)
def test_a_wrong_script_breaks_its_rule(rule: str, steps: tuple[Step, ...]) -> None:
    assert verdict(*steps, requests=TWO) == rule


def test_no_more_requests_have_a_row_than_may_run() -> None:
    three = [Request(name, (5,), 1) for name in range(3)]
    rows = [Row(name, 0, 1, (name + 1,), samples=True) for name in range(3)]
    assert verdict(step(*rows[:2], finished=(0, 1)), requests=(three[0], three[1])) == ""
    assert verdict(step(*rows), requests=tuple(three)) == "R-CAP-4"


def test_hits_of_other_tokens_or_salts_are_told_apart() -> None:
    hit = step(Row(1, 2, 1, (1, 3), samples=True))
    assert verdict(WHOLE, hit, requests=(TWO[0], Request(1, (5, 6, 8), 2, salt=1))) == "R-HASH-1"
    assert verdict(WHOLE, hit, requests=(TWO[0], Request(1, (9, 9, 8), 2))) == "R-HASH-3"
    assert verdict(WHOLE, hit, requests=(TWO[0], Request(1, (9, 9, 8), 2)), sharing=False) == "R-DATA"


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that a command leaves lie in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_elsewhere")
def test_fuzz_chooses_by_what_the_target_is(capsys: Captured) -> None:
    assert run_command([*FUZZ, BY_NAME, "--runs", "9", "--json", "facts.json"]) == 0
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert (facts["runs"], facts["lock_step"], facts["rule"]) == (9, False, None)
    assert facts["fired"]["finish"] >= 9
    assert "judged from outside" in capsys.readouterr().out
    assert "gives" in refused(capsys, *FUZZ, "collections:ChainMap")


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("first_block", -1, "first_block is -1"),
        ("steps_ahead", 0, "steps_ahead is 0"),
        ("block_sizes", (), "block_sizes is ()"),
        ("discipline", Discipline.EVENTS, "on one stream"),
        ("not_offered", {"salt"}, "no Feature"),
        ("own_calls", "abc", "own_calls is 'abc'"),
        ("tokens_kept_back", 10**6, "keeps back 1,000,000 tokens"),
    ],
)
def test_a_wrong_claim_is_bad_input(
    attribute: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(ForeignEngine, attribute, value)
    assert words in refused(capsys, *FUZZ, BY_NAME)


@pytest.mark.usefixtures("_elsewhere")
def test_a_counterexample_is_shown_kept_and_runs_again(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    fault = planted(next(fault for fault, rule in FAULTS.items() if rule == "R-OWN-4"))
    monkeypatch.setattr(own_scheduler_outside, "OwnScheduler", fault)
    target = "pagedkv.bench.own_scheduler_outside:OwnScheduler"
    assert run_command([*FUZZ, target, "--runs", "9", "--out", "found", "--json", "facts.json"]) == 1
    shown = capsys.readouterr().out
    facts = json.loads(Path("facts.json").read_text(encoding="utf-8"))
    assert f"{facts['rule']} does not hold after {facts['counterexample_length']} operations" in shown
    saved = json.loads(Path(facts["trace"]).read_text(encoding="utf-8"))
    assert f"world: {counted(saved['blocks'], 'block')} of {counted(saved['block_size'], 'token')}; at most" in shown
    assert "finish: serve all that are there" in shown
    assert run_command(["fuzz", "--again", facts["trace"]]) == 1
    assert capsys.readouterr().out in shown


@pytest.mark.usefixtures("_elsewhere")
def test_sizes_that_it_does_not_take_are_bad_input(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert "no room" in refused(capsys, *FUZZ, BY_NAME, "--blocks", "1", "--block-size", "1")
    monkeypatch.setattr(ForeignEngine, "block_sizes", (2, 3))
    assert "--block-size is one of 2, 3" in refused(capsys, *FUZZ, BY_NAME, "--blocks", "4", "--block-size", "4")


def test_operations_are_written_and_read() -> None:
    operations = (Submit(Request(0, (1, 2), 3, salt=1)), Schedule(), Complete(), Cancel(0), Finish())
    assert tuple(from_json(json.loads(json.dumps(to_json(each)))) for each in operations) == operations
    with pytest.raises(ValueError, match="not asked of a stranger"):
        from_json(["drain"])


def test_what_a_stranger_must_write_is_short() -> None:
    for module in (foreign_scheduler_adapter, own_scheduler_outside):
        assert module.__file__ is not None
        assert len(Path(module.__file__).read_text(encoding="utf-8").splitlines()) < 100
    assert "pagedkv" not in Path(str(foreign_scheduler_sample.__file__)).read_text(encoding="utf-8")
