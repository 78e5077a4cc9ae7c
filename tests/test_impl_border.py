"""Where the cache meets files, memory and kernels: what a hostile reviewer broke once, and must not break again."""

import os
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from pagedkv.bench.adapter import Implementation
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.invariants import CorruptState
from pagedkv.impl.journal import JournalWriter
from pagedkv.impl.names import Names
from pagedkv.impl.refusals import InvalidArgument
from pagedkv.impl.results import Edits
from pagedkv.spec.audit import audit
from pagedkv.spec.explore import explore
from pagedkv.spec.moves import Scope
from pagedkv.spec.shards import Settings
from pagedkv.spec.state import Config


def test_a_journal_takes_the_place_of_plain_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/null"), tmp_path, tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(InvalidArgument):
            BlockCache(2, 2, journal=odd)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("odd", [5, b"name", object()])
def test_a_journal_that_is_no_path(odd: Any) -> None:
    with pytest.raises(InvalidArgument):
        JournalWriter(odd, blocks=1, block_size=1)


def test_a_journal_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    BlockCache(2, 2, journal=tmp_path / "link").close()
    assert (tmp_path / "link").is_symlink()
    assert audit(tmp_path / "file").lines == 2


def test_two_journals_of_one_name_do_not_mix(tmp_path: Path) -> None:
    first, second = BlockCache(8, 4, journal=tmp_path / "same"), BlockCache(8, 4, journal=tmp_path / "same")
    for name in range(5):
        first.add(name, 1)
    second.add(1, 1)
    first.close()
    assert audit(tmp_path / "same").operations["add"] == 5
    second.close()
    assert audit(tmp_path / "same").operations["add"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["same"]


def test_a_reused_row_waits_for_nothing_that_it_did_not_launch() -> None:
    cache = BlockCache(8, 4, streams=2)
    cache.add(1, 4)
    cache.launch([1], 4, stream=1)
    cache.fork(1, 2)
    cache.release(2)
    cache.add(3, 4)
    assert cache.launch([3], 4, stream=0).after == ()


def test_names_that_cannot_grow_are_as_before() -> None:
    names = Names(4)
    for name in range(3):
        names.bind(name, name + 1, name)
    with mock.patch("numpy.zeros", side_effect=MemoryError), pytest.raises(MemoryError):
        names._prepare(8)
    assert names.resolve(np.array([2, 0, 1], np.int64)).rows.tolist() == [3, 1, 2]


def test_conservation_is_no_assertion() -> None:
    cache = BlockCache(8, 4)
    cache._pool.held += 5
    with pytest.raises(CorruptState, match="R-OWN-5"):
        cache.add(1, 1)


class WrongSlots(Implementation):
    """A slot mapping that lies one slot off."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        def extend(self, *arguments: Any) -> Any:
            extended = super().extend(*arguments)
            return extended._replace(slots=extended.slots + 1)


class EditsLost(Implementation):
    """Edits that leave out what changed."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        def extend(self, *arguments: Any) -> Any:
            nothing = np.empty(0, np.int32)
            return super().extend(*arguments)._replace(edits=Edits(nothing, nothing, nothing))


class ShortLengths(Implementation):
    """Context lengths without the new positions."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        def launch(self, *arguments: Any) -> Any:
            launched = super().launch(*arguments)
            return launched._replace(lengths=launched.starts)


class LateStarts(Implementation):
    """First positions that are one too high."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        def launch(self, *arguments: Any) -> Any:
            launched = super().launch(*arguments)
            return launched._replace(starts=launched.starts + 1)


class NullRows(Implementation):
    """Rows of the table that are nobody's."""

    class cache_class(BlockCache):  # noqa: N801  (named as the attribute that it is)
        def launch(self, *arguments: Any) -> Any:
            launched = super().launch(*arguments)
            return launched._replace(rows=launched.rows * 0)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (WrongSlots, "slots"),
        (EditsLost, "edits"),
        (ShortLengths, "lengths"),
        (LateStarts, "starts"),
        (NullRows, "rows"),
    ],
    ids=["slots", "edits", "lengths", "starts", "rows"],
)
def test_explore_sees_what_kernels_are_told(fault: type[Implementation], said: str) -> None:
    report = explore(Settings(Scope(Config(2, 1, 1, 1), 2, 2, 1), fault))
    assert report.broken is not None
    assert f"the {said} told are" in report.broken.detail


LARGEST = 2**63 - 1


@pytest.mark.parametrize("counts", [[LARGEST, 1, LARGEST, 1], [-1, 1, 0, 0], 2**62, 2**64, -1])
def test_counts_of_ids_that_sum_to_what_is_told_by_overflow_alone(counts: Any) -> None:
    cache = BlockCache(40, 4)
    for seq in (1, 2, 3, 4):
        cache.add(seq, [seq, 2, 3])
    cache.extend([1, 2, 3, 4])
    cache.retire(cache.launch([1, 2, 3, 4], 4).id)
    with pytest.raises(InvalidArgument, match="token ids given: 0; counts must be at least 0 and sum to that"):
        cache.publish([1, 2, 3, 4], [], counts)
    assert cache.published().size == 0
    cache.check()


@pytest.mark.parametrize("counts", [1, -1, 2**64])
def test_a_count_of_nobodys_ids_says_nothing(counts: int) -> None:
    assert BlockCache(4, 4).publish([], [], counts).blocks.size == 0


def test_a_tenants_sequence_for_which_there_is_no_memory_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with BlockCache(1000, 2**45, journal=path) as cache:
        with pytest.raises(InvalidArgument, match="no memory for the token ids"):
            cache.add(1, 5, salt=7)
        assert (cache.sequences(), cache.counts.held) == ([], 0)
        cache.add(1, 5)
        cache.release(1)
        cache.check()
    assert audit(path).sequences_left == 0


def test_what_is_published_stays_as_it_is_though_a_sibling_is_told_other_ids() -> None:
    """Two forks share their contents, so one of these two is told what is not so; the first one counts (R-COW-4)."""
    cache = BlockCache(20, 2)
    cache.add(1, 2)
    cache.retire(cache.launch([1], 2).id)
    cache.fork(1, 2)
    assert cache.publish([1], [1, 1], 2).blocks.tolist() == [1]
    assert cache.publish([2], [5, 5], 2).blocks.size == 0
    cache.check()
    assert (cache.match([1, 1, 0]), cache.match([5, 5, 0])) == (2, 0)
