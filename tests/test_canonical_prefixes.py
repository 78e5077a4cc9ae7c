"""States that share prefixes and differ in names alone are one: in ids, salts, pins, ticks, the number of the weights.

Beside `test_explore`, which renames everything else.
"""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

from pagedkv.spec.alphabet import Add, Execute, Fork, Publish, Retire, Submit, apply
from pagedkv.spec.canonical import canonical
from pagedkv.spec.moves import Scope, all_moves, draw_move, possible
from pagedkv.spec.moves_sharing import Sharing, texts
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Refused
from pagedkv.spec.state import Config, Key, Root, State, Tokens, initial

SCOPE = Scope(Config(3, 1, 1, 1), sequences=2, tokens=3, rows=1, sharing=Sharing(2, 2, 2, 1))


def reachable(seed: int, config: Config, steps: int = 80) -> Iterator[State]:
    """Yield the states of a random run of the spec."""
    random, state = Random(seed), initial(config)
    for _ in range(steps):
        with suppress(Refused):
            state, _ = apply(state, draw_move(state, 3, random, sharing=True))
            yield state


STATES = [state for seed in range(60) for state in reachable(seed, Config(5, 1 + seed % 2, 2, 3))]


def renamed(state: State, random: Random) -> State:
    """Return a state under other token ids, salts, handles, ticks and weights."""
    letters = dict(zip(range(3), random.sample(range(50), 3), strict=True))
    salts = dict(zip(range(3), random.sample(range(50), 3), strict=True))
    handles = dict(zip(range(10), random.sample(range(50), 10), strict=True))
    older = random.randrange(5)

    def told(tokens: Tokens) -> Tokens:
        return tuple(letters[token] for token in tokens)

    def root(old: Root) -> Root:
        return Root(salts[old.salt], old.weights + older)

    return state._replace(
        sequences={
            name: each._replace(root=root(each.root), known=told(each.known)) for name, each in state.sequences.items()
        },
        prefixes={Key(root(key.root), told(key.tokens)): entry for key, entry in state.prefixes.items()},
        evictable={block: 7 * since + 2 for block, since in state.evictable.items()},
        pins={handles[handle]: blocks for handle, blocks in state.pins.items()},
        weights=state.weights + older,
        ids={epoch: {at: letters[token] for at, token in ids.items()} for epoch, ids in state.ids.items()},
    )


def test_renaming_what_is_known_leaves_the_key() -> None:
    random = Random(1)
    assert sum(len(state.prefixes) > 1 and len(state.evictable) > 1 for state in STATES) > 50
    assert sum(len(state.pins) > 0 for state in STATES) > 50
    for state in STATES:
        assert canonical(renamed(state, random))[0] == canonical(state)[0]


def altered(state: State) -> Iterator[State]:
    """Yield states that differ from this one in something that no renaming changes."""
    for key, entry in state.prefixes.items():
        others = {other: each for other, each in state.prefixes.items() if other != key}
        yield state._replace(prefixes=others)
        yield state._replace(prefixes={**others, key: entry._replace(retention=entry.retention + 1)})
        yield state._replace(memory={**state.memory, entry.block: (None,) * state.config.block_size})
    for block in state.evictable:
        kept = {other: since for other, since in state.evictable.items() if other != block}
        yield state._replace(evictable=kept, quarantine={**state.quarantine, block: 0})
    for handle in state.pins:
        yield state._replace(pins={other: blocks for other, blocks in state.pins.items() if other != handle})
    for name, sequence in state.sequences.items():
        if sequence.known and sequence.root.weights == state.weights:
            shorter = sequence._replace(known=sequence.known[:-1])
            yield state._replace(sequences={**state.sequences, name: shorter})
            elsewhere = sequence._replace(root=Root(99, state.weights))
            if any(key.root == sequence.root for key in state.prefixes):
                yield state._replace(sequences={**state.sequences, name: elsewhere})


def test_what_matters_of_prefixes_changes_the_key() -> None:
    tried = 0
    for state in STATES:
        key = canonical(state)[0]
        for other in altered(state):
            assert canonical(other)[0] != key, (state, other)
            tried += 1
    assert tried > 2000


def test_the_order_of_eviction_changes_the_key() -> None:
    """Two blocks of different classes, idle since different moments, change places in the order."""
    tried = 0
    for state in STATES:
        classes = {entry.block: entry.retention for entry in state.prefixes.values()}
        idle = sorted(state.evictable, key=lambda block: (classes[block], state.evictable[block]))
        one, other = (idle[0], idle[-1]) if idle else (0, 0)
        if idle and classes[one] != classes[other] and state.evictable[one] != state.evictable[other]:
            turned = {**state.evictable, one: state.evictable[other], other: state.evictable[one]}
            assert canonical(state._replace(evictable=turned))[0] != canonical(state)[0]
            tried += 1
    assert tried > 4


def test_states_of_one_key_lead_to_the_same() -> None:
    """Of two states that differ in names, every operation of the scope leads to states that differ in names."""
    random = Random(3)
    compared = 0
    for seed in range(12):
        for state in reachable(seed, SCOPE.config, 40):
            twin = renamed(state, random)._replace(pins=state.pins)  # a scope names its pins from 1 on
            if compared % 7 == 0:
                assert futures(state) == futures(twin)
            compared += 1
    assert compared > 100


def futures(state: State) -> list[str]:
    """Return what the operations of the scope lead to, in an order of its own."""
    found: list[str] = []
    for operation in all_moves(state, SCOPE):
        assert possible(state, operation)
        try:
            after, _ = apply(state, operation)
            found.append(f"{type(operation).__name__} {canonical(after)[0]}")
        except Refused as refusal:
            found.append(f"{type(operation).__name__} {refusal.reason}")
    return sorted(set(found))


def test_texts_are_those_that_go_on_from_what_there_is_and_one_new() -> None:
    sharing = Sharing(letters=2, salts=2)
    empty = initial(SCOPE.config)
    assert list(texts(empty, 2, sharing)) == [(0, (0,)), (0, (0, 0))]  # of ids that nobody knows one is like another

    state, outcome = apply(empty, Add(1, (0, 0)))
    assert outcome == Outcome(blocks=(1, 2))
    assert list(texts(state, 2, sharing)) == [
        (0, (0,)),
        (0, (1,)),
        (0, (0, 0)),
        (0, (0, 1)),
        (0, (1, 0)),
        (1, (0,)),
        (1, (0, 0)),
    ]


def test_no_driver_tells_two_ids_of_one_content() -> None:
    """Nor after a merge has given the contents of one sequence other names, while its fork still has the old ones."""
    told = 0
    for seed in range(20):
        before: dict[tuple[int, int], int] = {}
        for state in reachable(seed, Config(5, 2, 1, 2), 120):
            now = {(epoch, at): token for epoch, ids in state.ids.items() for at, token in ids.items()}
            assert now.items() >= before.items()
            told += len(now) > len(before)
            before = now
    assert told > 100
    merged = (Add(1, (5, 6)), Add(2, 2), Submit(((1, 2), (2, 2))), Execute(1), Retire(1), Fork(2, 3))
    state = initial(Config(5, 2, 1, 2))
    for operation in (*merged, Publish(((1, ()),)), Publish(((2, (5, 6)),))):
        assert possible(state, operation)
        state, outcome = apply(state, operation)
    assert outcome.merges
    assert not possible(state, Publish(((3, (5, 7)),)))  # it is told of what 2 was told of
    assert possible(state, Publish(((3, (5, 6)),)))
