"""One thing changed in a right step is named by a rule, whatever it is: no field is looked at by none.

The steps are drawn by lot, those of a cache that shares prefixes and those of one that does not, and of steps that are
alike the first few are changed; how, says `mutated_steps`. A rule that is loosened lets something through, and what it
lets through is printed.
"""

from collections import Counter
from functools import cache
from random import Random
from typing import NamedTuple

import pytest
from pagedkv.spec.alphabet import KINDS, SHARING
from pagedkv.spec.outcome import Merge, Outcome
from pagedkv.spec.refusals import Broken
from pagedkv.spec.rules import Step, check
from pagedkv.spec.state import Computation, Config, Copy, Key, Launch, Published, Root, Sequence, State

from mutated_steps import drawn_steps, mutated

# What no rule of a single step names, with the reason. There is none: keep it so.
LET_THROUGH: dict[str, str] = {}

ALIKE = 12  # so many steps of one operation, with answers in the same fields, are changed

# What a step is made of, by the place where it stands: each of its fields is to be changed.
PARTS: dict[str, type[NamedTuple]] = {
    "state": State,
    "state.config": Config,
    "state.sequences[one]": Sequence,
    "state.sequences[one].copy": Copy,
    "state.sequences[one].root": Root,
    "state.launches[one]": Launch,
    "state.launches[one].copies[one]": Copy,
    "state.launches[one].computations[one]": Computation,
    "state.prefixes under a key": Key,
    "state.prefixes under a key.root": Root,
    "state.prefixes[one]": Published,
    "said": Outcome,
    "said.copies[one]": Copy,
    "said.merges[one]": Merge,
}
MOVES = [
    (one, other)
    for one in ("free", "quarantine", "evictable")
    for other in ("free", "quarantine", "evictable", "pinned")
]


class Tried(NamedTuple):
    """What was changed in how many steps, and what of it passed."""

    steps: Counter[str]  # by operation
    changed: Counter[str]  # by place
    passed: dict[str, Step]


@cache
def tried(*, sharing: bool) -> Tried:
    """Change right steps, and ask the rules."""
    steps: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    passed: dict[str, Step] = {}
    alike: Counter[tuple[object, ...]] = Counter()
    for seed in range(40):
        lots = Random(seed)
        for right in drawn_steps(seed, 60, sharing=sharing):
            check(right)
            word, answer = KINDS[type(right.operation)], right.decided
            assert isinstance(answer, Outcome)
            fields = [field for field, said in zip(answer._fields, answer, strict=True) if said]
            alike[word, *fields] += 1
            if alike[word, *fields] <= ALIKE:
                steps[word] += 1
                for place, wrong in mutated(right, lots):
                    changed[place] += 1
                    if not _is_named(wrong):
                        passed[place] = wrong
    return Tried(steps, changed, passed)


def _is_named(wrong: Step) -> bool:
    try:
        check(wrong)
    except Broken:
        return True
    return False


@pytest.mark.parametrize("sharing", [True, False], ids=["sharing", "without"])
def test_whatever_is_changed_is_named(*, sharing: bool) -> None:
    passed = {place: step for place, step in tried(sharing=sharing).passed.items() if place not in LET_THROUGH}
    assert not passed, "\n".join(f"{place}: {step.operation} {step.decided}" for place, step in passed.items())


def test_what_is_let_through_with_a_reason_is_let_through() -> None:
    assert LET_THROUGH.keys() <= tried(sharing=True).passed.keys() | tried(sharing=False).passed.keys()


@pytest.mark.parametrize("part", PARTS)
def test_each_field_was_changed(part: str) -> None:
    changed = tried(sharing=True).changed
    missed = [field for field in PARTS[part]._fields if not any(_is_at(place, f"{part}.{field}") for place in changed)]
    assert not missed


def _is_at(place: str, field: str) -> bool:
    """Whether a place is a field, or in it."""
    return place.startswith(field) and not place[len(field) :][:1].isalnum()


def test_a_block_was_moved_from_each_state_to_each() -> None:
    changed = tried(sharing=True).changed
    assert [move for move in MOVES if f"state: {move[0]} to {move[1]}" not in changed] == [("free", "free")]


@pytest.mark.parametrize("sharing", [True, False], ids=["sharing", "without"])
def test_steps_of_each_operation_were_changed(*, sharing: bool) -> None:
    steps = tried(sharing=sharing).steps
    due = [word for word in KINDS.values() if sharing or word not in SHARING]
    assert [word for word in due if steps[word] < ALIKE // 2] == []
    assert steps.total() > 150
