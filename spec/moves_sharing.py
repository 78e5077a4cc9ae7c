"""Which token ids to tell next, and what to do with prefixes: all of it (exhaustive), or one by lot (random).

Token ids and salts are names: what matters is which are equal. So `texts` offers, at each position, the ids that the
state knows to follow there and one that is new, up to as many as the scope has letters; and of the salts those in use
and one that is new. Where nothing is known yet that is one text a length, not 2 ** length: states that differ in ids
alone are visited once (`canonical`), and lead to the same.

An id is told of a *content*, and several sequences may share one (forks). Who tells two different ids of one content
lies, and no implementation can know: what then is found in the index is the liar's. So no driver does (`is_true`).
"""

from collections.abc import Iterator, Mapping
from itertools import permutations, product
from random import Random
from typing import NamedTuple

from .alphabet import Add, Clear, Operation, Pin, Publish, Unpin
from .counts import counted
from .outcome import Telling
from .state import Content, Key, Name, Root, State, Tokens, told


class Sharing(NamedTuple):
    """How far prefix sharing goes in a scope."""

    letters: int = 2  # different ids that may follow one prefix
    salts: int = 2
    retentions: int = 2
    pins: int = 1

    def describe(self) -> str:
        """Return the scope as a person would say it."""
        amounts = {"letter": self.letters, "salt": self.salts, "pin": self.pins}
        letters, salts, pins = (counted(number, thing) for thing, number in amounts.items())
        return f"; {letters}, {salts}, {counted(self.retentions, 'retention class', 'retention classes')}, {pins}"


Prefixes = set[Tokens]


def known_prefixes(state: State, root: Root) -> Prefixes:
    """Return every beginning of what was told or is published under a root."""
    whole = [told(state, sequence.text) for sequence in state.sequences.values() if sequence.root == root]
    whole += [key.tokens for key in state.prefixes if key.root == root]
    return {tokens[:stop] for tokens in whole for stop in range(1, len(tokens) + 1)}


def following(prefixes: Prefixes, tokens: Tokens, letters: int) -> list[int]:
    """Return the ids that may follow some tokens: those that do somewhere, and a new one while there are letters."""
    found = sorted(other[-1] for other in prefixes if other[:-1] == tokens)
    new = next(letter for letter in range(len(found) + 1) if letter not in found)
    return [*found, new][:letters]


def continuations(prefixes: Prefixes, tokens: Tokens, length: int, letters: int) -> Iterator[Tokens]:
    """Yield the texts of a length that may follow some tokens."""
    if not length:
        yield ()
        return
    for letter in following(prefixes, tokens, letters):
        for rest in continuations(prefixes, (*tokens, letter), length - 1, letters):
            yield (letter, *rest)


def salts(state: State, sharing: Sharing) -> list[int]:
    """Return the salts in use under the weights of now, and a new one while there are any."""
    roots = {*(sequence.root for sequence in state.sequences.values()), *(key.root for key in state.prefixes)}
    found = sorted(root.salt for root in roots if root.weights == state.weights)
    new = next(salt for salt in range(len(found) + 1) if salt not in found)
    return [*found, new][: sharing.salts]


def texts(state: State, length: int, sharing: Sharing) -> Iterator[tuple[int, Tokens]]:
    """Yield the texts of up to a length to begin a sequence with, each under each salt."""
    for salt in salts(state, sharing):
        prefixes = known_prefixes(state, Root(salt, state.weights))
        for stop in range(1, length + 1):
            yield from ((salt, text) for text in continuations(prefixes, (), stop, sharing.letters))


def known_texts(state: State) -> list[Key]:
    """Return what live sequences know: what may be published, where the index is not to be seen."""
    return sorted({Key(each.root, each.known) for each in state.sequences.values() if each.known})


def is_true(state: State, operation: Publish) -> bool:
    """Whether a publication tells of no content another id than was told of it before."""
    ids: dict[Content, int] = {}
    for name, tokens in operation.rows:
        sequence = state.sequences.get(name)
        if sequence:
            text = sequence.text[len(sequence.known) :]
            ids |= {content: ids.get(content, token) for content, token in zip(text, told(state, text), strict=False)}
            if any(ids.setdefault(content, token) != token for content, token in zip(text, tokens, strict=False)):
                return False
    return True


def truly(state: State, wished: Mapping[Name, Tokens]) -> Telling:
    """Return a batch that tells live sequences ids: those that were told before of what they share, else as wished."""
    ids: dict[Content, int] = {}
    rows: list[tuple[Name, Tokens]] = []
    for name, tokens in wished.items():
        sequence = state.sequences[name]
        text = sequence.text[len(sequence.known) :]
        for content, token in (*zip(text, told(state, text), strict=False), *zip(text, tokens, strict=False)):
            ids.setdefault(content, token)
        rows.append((name, tuple([ids[content] for content in text[: len(tokens)]])))
    return tuple(rows)


def sharing_moves(state: State, live: list[Name], stranger: Name, rows: int, sharing: Sharing) -> Iterator[Operation]:
    """Yield every operation on prefixes within a scope, in batches of at least one row, and examples of each refusal.

    A publication of no row, which publishes nothing, is left out as well.
    """
    for size in range(1, rows + 1):
        for batch in permutations(live, size):
            for tokens in product(*(list(_tellings(state, name, sharing)) for name in batch)):
                for retention in range(sharing.retentions):
                    publication = Publish(tuple(zip(batch, tokens, strict=True)), retention)
                    if is_true(state, publication):
                        yield publication
    yield Publish(((stranger, ()),))
    if live:
        one = live[0]
        yield Publish(((one, ()), (one, ())))
        yield Publish(((one, _too_many(state, one)),))
        yield Publish(((one, ()),), 4)
    yield from _pins(state, sharing)
    yield Clear()


def _too_many(state: State, name: Name) -> Tokens:
    """Return an id more than there are positions without one; those of positions are true."""
    sequence = state.sequences[name]
    ((_, tokens),) = truly(state, {name: (0,) * (sequence.allocated - len(sequence.known))})
    return (*tokens, 0)


def _tellings(state: State, name: Name, sharing: Sharing) -> Iterator[Tokens]:
    """Yield what a sequence may be told next: nothing, or ids of some of the positions that have none."""
    sequence = state.sequences[name]
    prefixes = known_prefixes(state, sequence.root)
    for length in range(sequence.allocated - len(sequence.known) + 1):
        yield from continuations(prefixes, sequence.known, length, sharing.letters)


def _pins(state: State, sharing: Sharing) -> Iterator[Operation]:
    """Yield a pin of each chain that there is, and what is refused."""
    fresh = [handle for handle in range(1, sharing.pins + 1) if handle not in state.pins][:1]
    now = [key for key in state.prefixes if key.root.weights == state.weights] or known_texts(state)
    yield from (Pin(handle, key.tokens, key.root.salt) for handle in fresh for key in sorted(now))
    yield from (Unpin(handle) for handle in (*state.pins, sharing.pins + 1))
    yield from (Pin(handle, (0,)) for handle in state.pins)
    yield Pin(sharing.pins + 1, ())


# ---- by lot -------------------------------------------------------------------------------------------------------

_ROWS_MOST = 3
_SALTS = (0, 0, 0, 1)
_RETENTIONS = (0, 0, 1, 3)
_HANDLES = range(1, 4)


def fresh_names(state: State, names: int) -> list[Name]:
    """Return the names that no live sequence has."""
    return [name for name in range(names) if name not in state.sequences]


def draw_batch(names: list[Name], random: Random) -> list[Name]:
    """Draw up to three of these names, in any order; at least one, if there is one."""
    left = [*names]
    rows = random.randint(1, min(_ROWS_MOST, len(left))) if left else 0
    return [left.pop(random.randint(0, len(left) - 1)) for _ in range(rows)]


def draw_text(length: int, random: Random) -> Tokens:
    """Draw ids: all the same, all the same but the last one, or anything of two letters."""
    if random.random() < 1 / 3:
        return tuple([random.randrange(2) for _ in range(length)])
    return (*[0] * (length - 1), random.choice((0, 0, 1)))


def _draw_prompt(state: State, names: int, random: Random) -> Operation | None:
    fresh = fresh_names(state, names)
    capacity = state.config.blocks * state.config.block_size
    length = random.randint(1, min(capacity, 3 * state.config.block_size + 1))
    return Add(random.choice(fresh), draw_text(length, random), random.choice(_SALTS)) if fresh else None


def _draw_publish(state: State, _names: int, random: Random) -> Operation | None:
    """Draw a batch to tell the next ids, each sequence those of all its positions, or of a few, or none."""
    batch = draw_batch([*state.sequences], random)
    wished = {}
    for name in batch:
        unknown = state.sequences[name].allocated - len(state.sequences[name].known)
        length = min(unknown, random.choice((unknown, unknown, 1, 0)))
        wished[name] = draw_text(length, random) if length else ()
    return Publish(truly(state, wished), random.choice(_RETENTIONS)) if batch else None


def _draw_pin(state: State, _names: int, random: Random) -> Operation | None:
    unused = [handle for handle in _HANDLES if handle not in state.pins]
    keys = sorted(state.prefixes) or known_texts(state)
    if not (keys and unused):
        return None
    key = random.choice(keys)
    return Pin(random.choice(unused), key.tokens, key.root.salt)


def _draw_unpin(state: State, _names: int, random: Random) -> Operation | None:
    return Unpin(random.choice([*state.pins])) if state.pins else None


def _draw_clear(state: State, _names: int, random: Random) -> Operation | None:
    return Clear() if (state.prefixes or known_texts(state)) and random.random() < 1 / 4 else None


# Each kind as often as it is drawn, beside those of an alphabet without sharing.
DRAWN_TOO = (*[_draw_prompt] * 4, *[_draw_publish] * 6, _draw_pin, *[_draw_unpin] * 2, _draw_clear)


def odd_sharing_move(state: State, names: int, random: Random) -> Operation:
    """Draw an operation on prefixes that is likely to be refused."""
    live = list(state.sequences) or [names]
    one, stranger = random.choice(live), random.choice([n for n in range(names + 2) if n not in state.sequences])
    unknown = state.sequences[one].allocated - len(state.sequences[one].known) if one in state.sequences else 0
    return random.choice(
        (
            lambda: Add(one, (0,)),
            lambda: Add(stranger, ()),
            lambda: Add(stranger, (0,) * (state.config.blocks * state.config.block_size + 1), 1),
            lambda: Publish(((one, ()), (random.choice((stranger, one)), ()))),
            lambda: Publish(((one, (0,) * (unknown + 1)),)),
            lambda: Publish(((one, ()),), random.choice((-1, 4))),
            lambda: Pin(random.choice([*state.pins, 9]), ()),
            lambda: Pin(9, (2,) * state.config.block_size),
            lambda: Unpin(9),
        )
    )()
