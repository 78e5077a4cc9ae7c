"""Names to rows: whatever the names are, a batch resolves to what a dictionary says, or is refused."""

import random

import numpy as np
import pytest
from pagedkv.impl.names import Names
from pagedkv.impl.refusals import Duplicate, Unknown


def bound(rows: int, names: list[int]) -> Names:
    """Return an index where the names have rows 1, 2, 3 ..."""
    index = Names(rows)
    for row, name in enumerate(names, 1):
        index.bind(name, row, epoch=100 + row)
    return index


def test_a_batch_resolves_in_its_order() -> None:
    index = bound(8, [30, 10, 20])
    batch = index.resolve(np.array([10, 20, 30]))
    assert batch.rows.tolist() == batch.device_rows.tolist() == [2, 3, 1]
    assert batch.epochs.tolist() == [102, 103, 101]
    assert index.resolve(np.array([30, 10])).rows.tolist() == [1, 2]


def test_names_that_share_a_home_are_told_apart() -> None:
    index = Names(4)  # 16 homes
    names = [5, 21, 37, -11]  # all of them 5 modulo 16
    for row, name in enumerate(names[:3], 1):
        index.bind(name, row, row)
    assert index.resolve(np.array([37, 5, 21])).rows.tolist() == [3, 1, 2]
    for stranger in (53, -11):
        with pytest.raises(Unknown):
            index.resolve(np.array([5, stranger]))


def test_a_name_whose_home_was_taken_and_left_again_is_found() -> None:
    index = Names(4)
    for first, second in ((0, 16), (5, 21), (-(2**63), 0)):
        index.bind(first, 1, 1)
        index.bind(second, 2, 2)
        index.bind(7, 3, 3)
        index.unbind(second, 2)
        assert index.resolve(np.array([7, first])).rows.tolist() == [3, 1]
        with pytest.raises(Unknown):
            index.resolve(np.array([first, second]))
        index.unbind(first, 1)
        index.unbind(7, 3)
        with pytest.raises(Unknown):
            index.resolve(np.array([first, 7]))


@pytest.mark.parametrize("nobody", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_nobodys_row_answers_to_no_name(nobody: int) -> None:
    index = bound(4, [9])
    for batch in ([nobody], [9, nobody], [nobody, 9]):
        with pytest.raises(Unknown):
            index.resolve(np.array(batch))
    assert index.resolve(np.array([9])).rows.tolist() == [1]


def test_a_name_twice_is_refused_before_a_name_unknown() -> None:
    index = bound(4, [1, 2])
    for batch in ([1, 1], [1, 2, 1], [1, 2, 1, 2, 1, 2, 1, 2], [8, 1, 1], [8, 8], [0, 0]):
        with pytest.raises(Duplicate):
            index.resolve(np.array(batch))
    with pytest.raises(Unknown):
        index.resolve(np.array([1, 8]))
    with pytest.raises(Unknown):
        index.resolve(np.array([1, 2, 3, 4, 5, 6]))
    assert index.resolve(np.array([2, 1])).rows.tolist() == [2, 1]


def test_a_remembered_batch_is_forgotten_when_a_row_changes_hands() -> None:
    index = bound(8, [1, 2, 3])
    batch = np.array([1, 2, 3])
    assert index.resolve(batch) is index.resolve(batch.copy())
    batch[0] = 3
    batch[2] = 1  # the caller's own array: what is remembered is a copy
    assert index.resolve(batch).rows.tolist() == [3, 2, 1]
    index.unbind(2, 2)
    index.bind(2, 5, 200)
    assert index.resolve(batch).rows.tolist() == [3, 5, 1]
    index.unbind(2, 5)
    with pytest.raises(Unknown):
        index.resolve(batch)


def test_random_lives_agree_with_a_dictionary() -> None:
    lots = random.Random(5)
    index, rows = Names(9), 9
    living: dict[int, int] = {}
    free = list(range(1, rows))
    pool = [*range(-4, 60), *(lots.getrandbits(64) - 2**63 for _ in range(30)), -(2**63), 2**63 - 1]
    for _ in range(3000):
        name = lots.choice(pool)
        if name in living:
            index.unbind(name, living[name])
            free.append(living.pop(name))
        elif free:
            living[name] = free.pop(lots.randrange(len(free)))
            index.bind(name, living[name], 0)
        elif rows < 60:
            free, rows = list(range(rows, 2 * rows)), 2 * rows
            index.grow(rows)
        batch = lots.sample(sorted(living), lots.randint(0, len(living)))
        assert index.resolve(np.array(batch, np.int64)).rows.tolist() == [living[name] for name in batch]
        stranger = lots.choice(pool)
        if stranger not in living:
            with pytest.raises(Unknown):
                index.resolve(np.array([*batch, stranger]))
        if batch:
            with pytest.raises(Duplicate):
                index.resolve(np.array([*batch, stranger, lots.choice(batch)]))
