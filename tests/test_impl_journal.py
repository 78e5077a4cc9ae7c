"""The journal: the exact lines, a digest worked out again here, and a file that is there in full or not at all."""

import errno
import gzip
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.journal import JournalWriter
from pagedkv.impl.refusals import InvalidArgument, NoSpace

HEADER = '{"journal":"pagedkv","version":1,"blocks":12,"block_size":4,"streams":2,"discipline":"fence","launches":3}'


def opened(path: Path) -> BlockCache:
    """Return a cache of 12 blocks of 4 on two streams that writes to `path`."""
    return BlockCache(12, 4, streams=2, launches_in_flight=3, journal=path)


def drive(cache: BlockCache) -> None:
    """Do each operation at least once, with and without the fields that are left out when empty."""
    cache.add(3, 6)
    cache.add(-5, 4)
    cache.launch([3, -5], [6, 4])
    with pytest.raises(NoSpace):
        cache.add(9, 40)
    cache.fork(3, 6)
    cache.extend([6, -5])
    cache.launch([6, -5], stream=1)
    cache.extend([3], 2)
    cache.release(6)
    cache.retire(1)
    cache.retire(2)
    cache.release(-5)
    cache.launch([])


LINES = [
    HEADER,
    '{"op":"add","seq":3,"n":6,"out":[1,2]}',
    '{"op":"add","seq":-5,"n":4,"out":[3]}',
    '{"op":"launch","id":1,"rows":[3,-5],"counts":[6,4]}',
    '{"op":"fork","parent":3,"child":6}',
    '{"op":"extend","seqs":[6,-5],"out":[4,5],"copies":[[6,2,4,2]]}',
    '{"op":"launch","id":2,"rows":[6,-5],"stream":1,"after":[1]}',
    '{"op":"extend","seqs":[3],"counts":[2]}',
    '{"op":"release","seq":6}',
    '{"op":"retire","id":1}',
    '{"op":"retire","id":2,"freed":[4]}',
    '{"op":"release","seq":-5,"freed":[3,5]}',
    '{"op":"launch","id":3}',
]


def closing_line(lines: list[str]) -> str:
    """Return the closing line that belongs to these lines."""
    body = "".join(line + "\n" for line in lines).encode()
    digest = hashlib.blake2b(body, digest_size=32).hexdigest()
    return f'{{"op":"end","lines":{len(lines)},"digest":"{digest}"}}'


def test_every_transition_is_a_line_and_a_refusal_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with opened(path) as cache:
        drive(cache)
    assert path.read_text("ascii").split("\n") == [*LINES, closing_line(LINES), ""]
    assert all(json.loads(line) for line in LINES)


def test_a_name_that_ends_in_gz_is_compressed_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gz", tmp_path / "b.gz"
    for path in (first, second):
        with opened(path) as cache:
            drive(cache)
    assert gzip.decompress(first.read_bytes()).decode().splitlines() == [*LINES, closing_line(LINES)]
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", ["run.journal", "run.journal.gz"])
def test_a_run_that_ends_in_an_exception_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    def interrupted() -> None:
        with opened(tmp_path / name) as cache:
            drive(cache)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_there_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_text("an older run")
    cache = opened(path)
    drive(cache)
    assert path.read_text() == "an older run"
    cache.close()
    cache.close()
    assert path.read_text().startswith(HEADER)
    assert list(tmp_path.iterdir()) == [path]


def test_lists_and_arrays_are_written_alike(tmp_path: Path) -> None:
    texts = []
    for name, form in (("lists", list), ("arrays", np.array)):
        with JournalWriter(tmp_path / name, blocks=9, block_size=2) as journal:
            journal.extend(form([5, 6]), form([1, 1]), [7])
            journal.extend(form([5, 6]), form([1, 2]), [], [(5, 1, 2, 1)])
            journal.launch(1, form([5, 6]), 1)
            journal.launch(2, form([6, 5]), 3, 1, (1,))
        texts.append((tmp_path / name).read_text().splitlines()[1:-1])
    assert texts[0] == texts[1]
    assert texts[0] == [
        '{"op":"extend","seqs":[5,6],"out":[7]}',
        '{"op":"extend","seqs":[5,6],"counts":[1,2],"copies":[[5,1,2,1]]}',
        '{"op":"launch","id":1,"rows":[5,6]}',
        '{"op":"launch","id":2,"rows":[6,5],"counts":[3,3],"stream":1,"after":[1]}',
    ]


def test_a_long_journal_is_written_in_parts_with_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedkv.impl.journal.BUFFER_BYTES", 100)
    path = tmp_path / "run.journal"
    with opened(path) as cache:
        drive(cache)
    assert path.read_text().splitlines() == [*LINES, closing_line(LINES)]


@pytest.mark.parametrize("name", ["missing/run.journal", "."])
def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        opened(tmp_path / name)
    assert "\n" not in str(refusal.value)


class FullDisk(io.BytesIO):
    """A file that can be opened and not be written."""

    def write(self, _: object) -> int:
        """Fail as a full disk does."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_the_journal_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagedkv.impl.journal.BUFFER_BYTES", 100)
    cache = opened(tmp_path / "run.journal")
    assert cache._journal is not None
    cache._journal._file.close()
    cache._journal._raw = cache._journal._file = FullDisk()
    drive(cache)  # the cache goes on: what it has done is done
    cache.add(77, 1)
    cache.check()
    with pytest.raises(OSError, match="No space left"):
        cache.close()
    assert list(tmp_path.iterdir()) == []


def test_a_clone_writes_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    with opened(path) as cache:
        cache.add(3, 6)
        twin = cache.clone()
        twin.add(4, 6)
        twin.close()
    assert len(path.read_text().splitlines()) == 3
