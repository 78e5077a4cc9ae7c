"""The exhaustive driver: the same numbers from any number of processes, states told apart, holes, shortest traces."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import combinations
from random import Random
from typing import Any

import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.spec import shards
from pagedkv.spec.alphabet import KINDS, Add, Operation, Submit, apply
from pagedkv.spec.canonical import StateKey, canonical
from pagedkv.spec.explore import Report, explore
from pagedkv.spec.fuzz import run as run_seed
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.moves import Scope, all_moves, draw_move, possible
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.reference import Reference
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config, Copy, State, initial
from pagedkv.spec.traces import Case, tell

from planted_faults import EarlyReuse, MissingEdge, OffByOne

SMALL = Scope(Config(2, 1, 2, 2), sequences=2, tokens=2, rows=1)
TWO_EACH = Scope(Config(3, 2, 2, 2), sequences=2, tokens=3, rows=2)


# ---- one walk, however it is shared out -----------------------------------------------------------------------------


@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "contents alone"])
def test_the_numbers_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch, *, lock_step: bool) -> None:
    monkeypatch.setattr(shards, "ENOUGH", 3)  # share out after a few levels, small as this world is
    scope = SMALL if lock_step else SMALL._replace(config=Config(2, 1, 2, 1))
    settings = Settings(scope, Reference, lock_step)
    one, again, two, three = (explore(settings, workers=workers) for workers in (1, 1, 2, 3))
    assert one.complete
    for other in (again, two, three):
        assert asdict(other) | {"seconds": 0} == asdict(one) | {"seconds": 0}


def test_processes_find_a_fault_as_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "ENOUGH", 1)
    settings = Settings(SMALL, MissingEdge)
    one, two = explore(settings, workers=1), explore(settings, workers=2)
    assert one.broken is not None
    assert two.broken is not None
    assert (one.broken.rule, len(one.trace)) == (two.broken.rule, len(two.trace))


def test_a_walk_stops_at_its_limit_and_says_so() -> None:
    report = explore(Settings(SMALL, Reference), max_states=20)
    assert not report.complete
    assert 20 <= report.states < 273


# ---- states that differ in names alone ------------------------------------------------------------------------------


def reachable(seed: int) -> Iterator[State]:
    """Yield the states of a random run of the spec, early and late ones."""
    random, state = Random(seed), initial(Config(4, 2, 2, 3))
    for _ in range(60):
        operation = draw_move(state, 3, random)
        assert possible(state, operation)
        with suppress(Refused):
            state, _ = apply(state, operation)
            yield state


STATES = [state for seed in range(12) for state in reachable(seed)]


def renamed(state: State, random: Random) -> State:
    """Return a state under other names of everything: sequences, blocks, contents, streams, launches."""
    numbers = range(1, state.config.blocks + 1)
    block = {0: 0, **dict(zip(numbers, random.sample(numbers, len(numbers)), strict=True))}
    name = dict(zip(state.sequences, random.sample(range(-50, 50), len(state.sequences)), strict=True))
    epoch = dict(zip(range(state.epochs), random.sample(range(900), state.epochs), strict=True))
    stream = random.sample(range(state.config.streams), state.config.streams)
    gaps = [random.randint(1, 3) if state.issued > len(state.launches) else 1 for _ in range(state.issued)]
    launch = [sum(gaps[:number]) for number in range(state.issued + 1)]  # later ones stay later; none has left: from 1

    def text(contents: Any) -> Any:
        return tuple(
            (epoch[old], position) if found else None for found in contents for old, position in [found or (0, 0)]
        )

    def copied(copy: Copy) -> Copy:
        return Copy(name.get(copy.sequence, 99), block[copy.source], block[copy.target], copy.extent)

    def touched(blocks: Mapping[int, Any]) -> dict[int, Any]:
        return {block[old]: slots for old, slots in blocks.items()}

    def row(blocks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(block[old] for old in blocks)

    sequences = [
        (
            name[old],
            each._replace(
                epoch=epoch[each.epoch],
                text=text(each.text),
                row=row(each.row),
                copy=copied(each.copy) if each.copy else None,
            ),
        )
        for old, each in state.sequences.items()
    ]
    random.shuffle(sequences)
    launches = tuple(
        each._replace(
            id=launch[each.id],
            stream=stream[each.stream],
            after=frozenset(launch[edge] for edge in each.after),
            copies=tuple(map(copied, each.copies)),
            computations=tuple(
                part._replace(
                    sequence=name.get(part.sequence, 99),
                    epoch=epoch[part.epoch],
                    row=row(part.row),
                    text=text(part.text),
                )
                for part in each.computations
            ),
            reads=touched(each.reads),
            writes=touched(each.writes),
        )
        for each in state.launches
    )
    return State(
        state.config,
        dict(sequences),
        frozenset(block[old] for old in state.free),
        {block[old]: launch[fence] for old, fence in state.quarantine.items()},
        launches,
        {block[old]: text(held) for old, held in state.memory.items()},
        launch[-1],
        1000,
    )


def test_renaming_everything_leaves_the_key() -> None:
    random = Random(1)
    assert sum(len(state.launches) > 1 and len(state.sequences) > 1 for state in STATES) > 30
    for state in STATES:
        key = canonical(state)[0]
        assert all(canonical(renamed(state, random))[0] == key for _ in range(3))


def altered(state: State) -> Iterator[State]:
    """Yield states that differ from this one in a number which no renaming changes."""
    for at, launch in enumerate(state.launches):
        flipped = launch._replace(executed=not launch.executed)
        yield state._replace(launches=(*state.launches[:at], flipped, *state.launches[at + 1 :]))
        yield state._replace(launches=state.launches[:at] + state.launches[at + 1 :], issued=state.issued + 9)
    for name, sequence in state.sequences.items():
        others = {other: each for other, each in state.sequences.items() if other != name}
        yield state._replace(sequences=others)
        yield state._replace(sequences={**others, name: sequence._replace(launched=sequence.launched + 1)})
        yield state._replace(sequences={**others, name: sequence._replace(text=sequence.text[:-1])})
        if sequence.copy:
            yield state._replace(sequences={**others, name: sequence._replace(copy=None)})
            longer = sequence.copy._replace(extent=sequence.copy.extent + 1)
            yield state._replace(sequences={**others, name: sequence._replace(copy=longer)})
        for block in sequence.row:
            held = [content in sequence.text for content in state.memory[block]]
            if any(held):
                yield state._replace(memory={**state.memory, block: (None,) * len(held)})
    for block in state.quarantine:
        rest = {other: fence for other, fence in state.quarantine.items() if other != block}
        yield state._replace(quarantine=rest, free=state.free | {block})


def swapped_fences(state: State) -> Iterator[State]:
    """Yield states where two blocks have each other's fence; launches in flight tell the two apart."""
    rows = {block for launch in state.launches for part in launch.computations for block in part.row}

    def keepers(block: int) -> int:
        return sum(launch.id <= state.quarantine[block] for launch in state.launches)

    for one, other in combinations(sorted(rows & state.quarantine.keys()), 2):
        if keepers(one) != keepers(other):
            swapped = {one: state.quarantine[other], other: state.quarantine[one]}
            yield state._replace(quarantine={**state.quarantine, **swapped})


def test_what_matters_changes_the_key() -> None:
    tried: Counter[str] = Counter()
    for state in STATES:
        key = canonical(state)[0]
        swapped = list(swapped_fences(state))
        for other in (*altered(state), *swapped):
            assert canonical(other)[0] != key, (state, other)
        tried.update(altered=sum(1 for _ in altered(state)), swapped=len(swapped))
    assert tried["altered"] > 2000
    assert tried["swapped"] > 5


def futures(state: State) -> Counter[tuple[str, str | StateKey]]:
    """Return what every operation leads to: its refusal, or the key of the next state."""
    after: Counter[tuple[str, str | StateKey]] = Counter()
    for operation in all_moves(state, TWO_EACH):
        try:
            after[KINDS[type(operation)], canonical(apply(state, operation)[0])[0]] += 1
        except Refused as refusal:
            after[KINDS[type(operation)], str(refusal.reason)] += 1
    return after


def without_leftovers(state: State) -> State:
    """Return a state where blocks that nobody names hold nothing: what is left in them, nobody reads before writing."""
    named = canonical(state)[1].blocks
    empty = (None,) * state.config.block_size
    return state._replace(memory={block: held if block in named else empty for block, held in state.memory.items()})


def test_states_of_one_key_have_the_same_futures() -> None:
    """What is left out of the key (old epochs, contents that nobody will read or ask for) cannot matter later."""
    first: dict[StateKey, State] = {}
    compared = 0
    for seed in range(40):
        random, state = Random(seed), initial(TWO_EACH.config)
        for _ in range(80):
            operation = random.choice(list(all_moves(state, TWO_EACH)))
            with suppress(Refused):
                state, _ = apply(state, operation)
                key, plain = canonical(state)[0], without_leftovers(state)
                assert canonical(plain)[0] == key
                if first.setdefault(key, plain) != plain:
                    assert futures(first[key]) == futures(plain)
                    compared += 1
    assert compared > 100


# ---- what a report says ---------------------------------------------------------------------------------------------


def nothing_met(sharing: Sharing | None) -> Report:
    """Return the report of a walk that met nothing, in a scope that shares prefixes or does not."""
    settings = Settings(Scope(Config(1, 1), sharing=sharing), Implementation)
    return Report("nothing at all", vocabulary=settings.vocabulary(), refusals=settings.refusals())


def test_holes_are_what_the_table_of_operations_has_and_the_run_had_not() -> None:
    """Seven operations; add can be refused for 4 reasons, extend 5, fork 3, launch 4, retire 1, release 1.

    Where prefixes are shared four more: publish can be refused for 3, pin 2, unpin 1.
    """
    assert len(nothing_met(Sharing()).holes()) == 11 + 4 + 5 + 3 + 4 + 1 + 1 + 3 + 2 + 1
    report = nothing_met(None)
    assert len(report.holes()) == 7 + 4 + 5 + 3 + 4 + 1 + 1
    assert "execute never fired" in report.holes()
    for hole in report.holes():
        words = hole.split()
        if words[1:] == ["never", "fired"]:
            report.fired[words[0]] = 1
        else:
            report.refused[words[0], words[-1]] = 1
    assert report.holes() == []
    del report.refused["launch", "Busy"]
    assert report.holes() == ["launch was never refused as Busy"]


# ---- breadth first is shortest --------------------------------------------------------------------------------------


def broken_within(case: Case, scope: Scope, depth: int) -> list[tuple[Operation, ...]]:
    """Return every trace of so many operations that breaks a rule, by trying them all, no two states taken for one."""
    traces: list[tuple[Operation, ...]] = [()]
    broken = []
    for _ in range(depth):
        grown = []
        for trace in traces:
            here = case.start()
            for operation in trace:
                here.step(operation)
            grown += [(*trace, operation) for operation in all_moves(here.state, scope)]
        broken += [trace for trace in grown if tell(case, trace)[1]]
        traces = [trace for trace in grown if trace not in broken]
    return broken


@pytest.mark.parametrize("fault", [EarlyReuse, OffByOne])
def test_breadth_first_finds_the_shortest(fault: type[Implementation]) -> None:
    """Nothing shorter breaks a rule, and a random run that breaks the same takes longer."""
    config = Config(2, 1, 1, 1)
    scope = Scope(config, sequences=1, tokens=2, rows=1)
    report = explore(Settings(scope, fault, pairs=True))
    assert report.broken is not None
    case = Case(config, fault)
    assert broken_within(case, scope, len(report.trace) - 1) == []
    assert tuple(report.trace) in broken_within(case, scope, len(report.trace))
    found = (run_seed(Plan(fault, config), seed).finding for seed in range(50))
    longer = next(finding for finding in found if finding and len(finding.trace) > len(report.trace))
    assert isinstance(tell(case, longer.trace)[1], Broken)


def test_every_order_of_a_batch_is_tried() -> None:
    state, _ = apply(initial(SMALL.config), Add(1, 1))
    state, _ = apply(state, Add(2, 1))
    batches = [move.rows for move in all_moves(state, SMALL._replace(rows=2)) if isinstance(move, Submit)]
    assert {((1, 1), (2, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 1))} <= set(batches)
