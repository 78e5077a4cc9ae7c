"""Journals read back and audited: what is accepted, and which line and which rule each alteration shows.

The journal here is written by hand, with outcomes worked out by hand; its last line is made by hashlib alone.
"""

import gzip
import re
from pathlib import Path
from random import Random

import pytest
from pagedkv.bench import adapter
from pagedkv.bench.adapter import Implementation
from pagedkv.impl.journal import JournalWriter
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Release, Retire, Submit
from pagedkv.spec.audit import Audited, audit
from pagedkv.spec.journal import LINE_BYTES_MAX, NO_LIMIT, InvalidJournal, Record, open_journal
from pagedkv.spec.lock_step import LockStep
from pagedkv.spec.moves import draw_move
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config, Copy

from hand_written_journal import CHOICES, JOURNAL, Alteration, change, ended, insert, lose, swap


def audited(tmp_path: Path, journal: bytes, name: str = "run.jsonl") -> Audited:
    path = tmp_path / name
    path.write_bytes(journal)
    return audit(path)


def test_the_journal_is_read_as_it_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(ended(JOURNAL))
    with open_journal(path) as journal:
        records = list(journal)
    assert journal.config == Config(blocks=6, block_size=4, streams=2, launches=3)
    assert records == [
        Record(2, Add(1, 6), Outcome(blocks=(1, 2))),
        Record(3, Submit(((1, 6),)), Outcome(launch=1)),
        Record(4, Fork(1, 2), Outcome()),
        Record(5, Extend(((1, 1), (2, 1))), Outcome(blocks=(3,), copies=(Copy(1, 2, 3, 2),))),
        Record(6, Submit(((1, 1),)), Outcome(launch=2)),
        Record(7, Submit(((2, 1),), 1), Outcome(launch=3, after=frozenset({1}))),
        Record(8, Retire(1), Outcome()),
        Record(9, Release(1), Outcome()),
        Record(10, Retire(2), Outcome(freed=frozenset({3}))),
        Record(11, Release(2), Outcome()),
        Record(12, Retire(3), Outcome(freed=frozenset({1, 2}))),
        Record(13, Add(3, 4), Outcome(blocks=(2,))),
        Record(14, Release(3), Outcome(freed=frozenset({2}))),
    ]


def test_the_journal_holds(tmp_path: Path) -> None:
    found = audited(tmp_path, ended(JOURNAL))
    assert found.lines == 15
    assert found.operations == {"add": 2, "launch": 3, "fork": 1, "extend": 1, "retire": 3, "release": 3}
    assert (found.blocks_taken, found.copies, found.sequences_left, found.in_flight_left) == (4, 1, 0, 0)
    assert audited(tmp_path, gzip.compress(ended(JOURNAL)), "run.jsonl.gz") == found
    assert audited(tmp_path, gzip.compress(ended(JOURNAL)), "packed.jsonl") == found


def test_a_header_without_a_limit_has_none(tmp_path: Path) -> None:
    header = JOURNAL[0].replace(',"launches":3', "")
    assert audited(tmp_path, ended([header, *JOURNAL[1:]])).config.launches == NO_LIMIT


# ---- alterations that contradict --------------------------------------------------------------------------------

CONTRADICTIONS: dict[str, tuple[Alteration, int, str]] = {
    "a block taken twice in one line": (change(2, "[1,2]", "[1,1]"), 2, "R-OWN-1"),
    "a held block taken": (insert(6, '{"op":"add","seq":9,"n":4,"out":[3]}'), 6, "R-OWN-1"),
    "a block beyond the pool taken": (change(2, "[1,2]", "[1,7]"), 2, "R-OWN-1"),
    "the null block taken": (change(2, "[1,2]", "[0,2]"), 2, "R-OWN-1"),
    "a negative block taken": (change(2, "[1,2]", "[1,-2]"), 2, "R-OWN-1"),
    "a block taken out of quarantine": (insert(10, '{"op":"add","seq":9,"n":4,"out":[3]}'), 10, "R-LIFE-5"),
    "a block too few taken": (change(2, "[1,2]", "[1]"), 2, "R-CAP-1"),
    "a block too many taken": (change(5, "[3]", "[3,4]"), 5, "R-CAP-1"),
    "a sequence longer than the pool": (change(2, '"n":6', '"n":25'), 2, "R-CAP-1"),
    "an extension beyond the pool": (change(5, '"seqs":[1,2]', '"seqs":[1,2],"counts":[1,40]'), 5, "R-CAP-1"),
    "a growth without its block": (change(5, '"seqs":[1,2]', '"seqs":[1,2],"counts":[1,3]'), 5, "R-CAP-1"),
    "an add count too large": (change(2, '"n":6', '"n":9'), 2, "R-CAP-1"),
    "an add of nothing": (change(2, '"n":6', '"n":0'), 2, "R-TXN-1"),
    "an add of a living name": (insert(3, '{"op":"add","seq":1,"n":4,"out":[4]}'), 3, "R-TXN-1"),
    "a launch count too large": (change(3, "[6]", "[7]"), 3, "R-TXN-1"),
    "a launch count of zero": (change(3, "[6]", "[0]"), 3, "R-TXN-1"),
    "an extension by less than nothing": (change(5, '"seqs":[1,2]', '"seqs":[1,2],"counts":[1,-1]'), 5, "R-TXN-1"),
    "a launch of an unknown sequence": (change(6, '"rows":[1]', '"rows":[4]'), 6, "R-TXN-1"),
    "a launch of another sequence": (change(6, '"rows":[1]', '"rows":[2]'), 7, "R-TXN-1"),
    "a sequence twice in a batch": (change(5, '"seqs":[1,2]', '"seqs":[2,2]'), 5, "R-TXN-1"),
    "a fork of an unknown sequence": (change(4, '"parent":1', '"parent":5'), 4, "R-TXN-1"),
    "a fork onto a living name": (change(4, '"child":2', '"child":1'), 4, "R-TXN-1"),
    "a fork with planned positions": (swap(3), 3, "R-TXN-1"),
    "a launch before its extension": (swap(5), 5, "R-TXN-1"),
    "a release of an unknown sequence": (change(9, '"seq":1', '"seq":5'), 9, "R-TXN-1"),
    "a release of another sequence": (change(9, '"seq":1', '"seq":2'), 10, "R-OWN-3"),
    "a release twice": (insert(10, '{"op":"release","seq":1}'), 10, "R-TXN-1"),
    "a release lost": (lose(9), 9, "R-OWN-3"),
    "the last release lost": (lose(11), 11, "R-OWN-3"),
    "an extension lost": (lose(5), 5, "R-TXN-1"),
    "a fork lost": (lose(4), 4, "R-TXN-1"),
    "an add lost": (lose(2), 2, "R-TXN-1"),
    "a launch lost": (lose(3), 3, "R-TXN-1"),
    "a retirement lost": (lose(10), 11, "R-LIFE-1"),
    "too many launches in flight": (change(1, '"launches":3', '"launches":2'), 7, "R-TXN-1"),
    "a launch id out of sequence": (change(6, '"id":2', '"id":3'), 6, "R-LIFE-7"),
    "a launch without its edge": (change(7, ',"after":[1]', ""), 7, "R-LIFE-2"),
    "an edge to a launch never issued": (change(7, '"after":[1]', '"after":[1,4]'), 7, "R-LIFE-2"),
    "a retirement of a launch never issued": (change(8, '"id":1', '"id":4'), 8, "R-TXN-1"),
    "a copy missing": (change(5, ',"copies":[[1,2,3,2]]', ""), 5, "R-COW-1"),
    "a copy for another sequence": (change(5, "[[1,2,3,2]]", "[[2,2,3,2]]"), 5, "R-COW-1"),
    "a copy from another block": (change(5, "[[1,2,3,2]]", "[[1,1,3,2]]"), 5, "R-COW-2"),
    "a copy too many": (change(5, "[[1,2,3,2]]", "[[1,2,3,2],[2,2,4,2]]"), 5, "R-COW-2"),
    "a copy to another block": (change(5, "[[1,2,3,2]]", "[[1,2,4,2]]"), 5, "R-COW-3"),
    "a copy too short": (change(5, "[[1,2,3,2]]", "[[1,2,3,1]]"), 5, "R-COW-3"),
    "a copy too long": (change(5, "[[1,2,3,2]]", "[[1,2,3,3]]"), 5, "R-COW-3"),
    "a block freed in flight": (change(9, '"seq":1', '"seq":1,"freed":[3]'), 9, "R-LIFE-1"),
    "a held block freed": (change(8, '"id":1', '"id":1,"freed":[1]'), 8, "R-OWN-3"),
    "a free block freed": (change(12, "[1,2]", "[1,2,3]"), 12, "R-OWN-3"),
    "a block beyond the pool freed": (change(12, "[1,2]", "[1,2,9]"), 12, "R-OWN-3"),
    "a block freed too late": (change(12, "[1,2]", "[1]"), 12, "R-LIFE-4"),
    "an untouched block not freed": (change(14, ',"freed":[2]', ""), 14, "R-LIFE-4"),
    "a second completion that frees": (insert(13, '{"op":"retire","id":3,"freed":[2]}'), 13, "R-LIFE-4"),
    "a stream that is not there": (change(7, '"stream":1', '"stream":2'), 7, "JOURNAL"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_contradiction_is_named_with_its_line_and_rule(tmp_path: Path, kind: str) -> None:
    alter, line, rule = CONTRADICTIONS[kind]
    with pytest.raises(Broken, match=rf"^{rule}: line {line}: ") as found:
        audited(tmp_path, ended(alter(JOURNAL)))
    assert found.value.rule == rule
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("kind", CHOICES)
def test_a_legal_choice_is_accepted_and_only_the_digest_can_tell(tmp_path: Path, kind: str) -> None:
    altered = CHOICES[kind](JOURNAL)
    audited(tmp_path, ended(altered))
    true_end = ended(JOURNAL).splitlines(keepends=True)[-1].replace(b'"lines":14', b'"lines":%d' % len(altered))
    with pytest.raises(Broken, match=rf"^JOURNAL: line {len(altered) + 1}: the digest"):
        audited(tmp_path, "".join(altered).encode() + true_end)


# ---- alterations of bytes and lines -----------------------------------------------------------------------------


def test_any_byte_altered_fails(tmp_path: Path) -> None:
    journal = ended(JOURNAL)
    for at in range(len(journal)):
        for flip in (0x01, 0x20, 0x80):
            altered = bytearray(journal)
            altered[at] ^= flip
            with pytest.raises((Broken, InvalidJournal)):
                audited(tmp_path, bytes(altered))


def test_cut_off_anywhere_it_fails(tmp_path: Path) -> None:
    journal = ended(JOURNAL)
    for length in range(len(JOURNAL[0]), len(journal)):
        line = journal[:length].count(b"\n") + 1
        with pytest.raises(Broken, match=rf"^JOURNAL: line {line}: "):
            audited(tmp_path, journal[:length])
    packed = gzip.compress(journal, mtime=0)
    for length in range(len(packed) - 1):
        with pytest.raises((Broken, InvalidJournal)):
            audited(tmp_path, packed[:length], "run.jsonl.gz")


def test_any_line_lost_doubled_or_swapped_fails(tmp_path: Path) -> None:
    lines = ended(JOURNAL).splitlines(keepends=True)
    for at in range(1, len(lines)):
        for altered in (lines[:at] + lines[at + 1 :], [*lines[:at], lines[at], *lines[at:]]):
            with pytest.raises(Broken, match=r"^[A-Z0-9-]+: line \d+: "):
                audited(tmp_path, b"".join(altered))
        if at + 1 < len(lines):
            with pytest.raises(Broken):
                audited(tmp_path, b"".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]))


# ---- what is no journal, and what is malformed -------------------------------------------------------------------

HEADER = JOURNAL[0]
NO_JOURNALS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the file is empty"),
    "a line end": (b"\n", "not that of a journal"),
    "a picture": (bytes(range(256)) * 8, "not that of a journal"),
    "latin-1": ("caf\u00e9,1\n".encode("latin-1"), "not that of a journal"),
    "a trace": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "not that of a journal"),
    "a list": (b"[1,2]\n", "not that of a journal"),
    "other JSON": (b'{"timestamp":1}\n', "not that of a journal"),
    "nested": (b"[" * 100_000 + b"\n", "not that of a journal"),
    "no line ends": (b"x" * (LINE_BYTES_MAX + 2), "not that of a journal"),
    "half a header": (HEADER.encode()[:40], "not that of a journal"),
    "another version": (ended([HEADER.replace('"version":1', '"version":2')]), "of version 2"),
    "a version that is none": (ended([HEADER.replace('"version":1', '"version":true')]), "of version True"),
    "another discipline": (ended([HEADER.replace('"fence"', '"stream"')]), "discipline 'stream'"),
    "gzip that is none": (b"\x1f\x8bgarbage garbage garbage", "gzip data is broken"),
    "gzip cut off": (gzip.compress(ended(JOURNAL))[:20], "gzip data is broken"),
}


@pytest.mark.parametrize("kind", NO_JOURNALS)
def test_what_never_was_a_journal_is_bad_input(tmp_path: Path, kind: str) -> None:
    content, what = NO_JOURNALS[kind]
    with pytest.raises(InvalidJournal, match=what) as found:
        audited(tmp_path, content)
    assert str(found.value).startswith(str(tmp_path / "run.jsonl"))
    assert str(found.value).isprintable()
    assert found.value.remedy


def test_what_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    for path, what in (
        (tmp_path, "cannot be read"),
        (tmp_path / "missing", "No such file"),
        (tmp_path / "no\0name", "cannot be read"),
    ):
        with pytest.raises(InvalidJournal, match=what):
            audit(path)
    with pytest.raises(InvalidJournal, match="no gzip data"):
        audited(tmp_path, ended(JOURNAL), "run.jsonl.gz")


HEADERS = {
    "no size": HEADER.replace('"blocks":6,', ""),
    "no blocks": HEADER.replace('"blocks":6', '"blocks":0'),
    "negative": HEADER.replace('"block_size":4', '"block_size":-4'),
    "no number": HEADER.replace('"blocks":6', '"blocks":"6"'),
    "a fraction": HEADER.replace('"blocks":6', '"blocks":6.0'),
    "beyond 64 bits": HEADER.replace('"blocks":6', '"blocks":10000000000000000000'),
    "more": HEADER.replace('"version":1', '"version":1,"colour":3'),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_is_not_in_order_fails(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Broken, match=r"^JOURNAL: line 1: "):
        audited(tmp_path, ended([HEADERS[kind], *JOURNAL[1:]]))


def test_a_pool_of_any_size_costs_nothing(tmp_path: Path) -> None:
    header = HEADER.replace('"blocks":6', f'"blocks":{2**62}').replace('"streams":2', f'"streams":{2**62}')
    assert audited(tmp_path, ended([header, *JOURNAL[1:]])).blocks_taken == 4


HUGE = "9" * 5000
MALFORMED = {
    "nothing": "",
    "blanks": "   ",
    "no JSON": "hello",
    "half": '{"op":"retire"',
    "two": '{"op":"retire","id":1}{"op":"retire","id":1}',
    "a list": '["retire",1]',
    "null": "null",
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "nested to the end": "[" * 900 + "]" * 900,
    "no operation": '{"id":1}',
    "unknown operation": '{"op":"evict","id":1}',
    "an operation that is a list": '{"op":["retire"],"id":1}',
    "executed": '{"op":"execute","id":1}',
    "a header": HEADER.rstrip(),
    "unknown field": '{"op":"retire","id":1,"why":2}',
    "a field of another operation": '{"op":"release","seq":1,"id":2}',
    "a field twice": '{"op":"retire","id":1,"id":1}',
    "missing": '{"op":"retire"}',
    "missing in fork": '{"op":"fork","parent":1}',
    "null id": '{"op":"retire","id":null}',
    "text": '{"op":"retire","id":"1"}',
    "true": '{"op":"retire","id":true}',
    "a fraction": '{"op":"retire","id":1.0}',
    "NaN": '{"op":"retire","id":NaN}',
    "Infinity": '{"op":"retire","id":Infinity}',
    "an exponent": '{"op":"retire","id":1e400}',
    "beyond 64 bits": '{"op":"retire","id":9223372036854775808}',
    "below 64 bits": '{"op":"add","seq":-9223372036854775809,"n":1,"out":[4]}',
    "huge": f'{{"op":"retire","id":{HUGE}}}',
    "huge in a list": f'{{"op":"release","seq":1,"freed":[{HUGE[:4000]}]}}',
    "true in a list": '{"op":"release","seq":1,"freed":[true]}',
    "a list in a list": '{"op":"release","seq":1,"freed":[[3]]}',
    "no list": '{"op":"release","seq":1,"freed":3}',
    "freed twice": '{"op":"release","seq":1,"freed":[3,3]}',
    "counts amiss": '{"op":"extend","seqs":[1,2],"counts":[1]}',
    "copies no list": '{"op":"extend","seqs":[1],"copies":{"1":2}}',
    "a copy of three": '{"op":"extend","seqs":[1],"copies":[[1,2,3]]}',
    "a copy of text": '{"op":"extend","seqs":[1],"copies":[[1,2,3,"2"]]}',
    "a stream below": '{"op":"launch","id":4,"stream":-1}',
    "not ASCII": '{"op":"r\u00e9tire","id":1}',
    "a NUL": '{"op":"retire","id":1\0}',
    "an early end": '{"op":"end","lines":8,"digest":"00"}',
    "an end without a digest": '{"op":"end","lines":7}',
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_line_is_named(tmp_path: Path, kind: str) -> None:
    lines = [*JOURNAL[:7], MALFORMED[kind] + "\n", *JOURNAL[7:]]
    with pytest.raises(Broken, match=r"^JOURNAL: line 8: ") as found:
        audited(tmp_path, ended(lines))
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 400


def test_lines_after_the_end_fail(tmp_path: Path) -> None:
    for more in (b"\n", b" ", JOURNAL[7].encode(), ended(JOURNAL)):
        with pytest.raises(Broken, match=r"^JOURNAL: line 16: "):
            audited(tmp_path, ended(JOURNAL) + more)


def test_a_longer_way_of_saying_it_is_accepted(tmp_path: Path) -> None:
    """Blanks, and fields that may be left out and are not: other writers may have other habits."""
    wordy = [re.sub(r'"(id|seq)":', r'"\1": ', line) for line in JOURNAL]
    wordy[2] = '{"op":"launch","id":1,"rows":[1],"counts":[6],"stream":0,"after":[]}\n'
    wordy[7] = '{"op":"retire","id":1,"freed":[]}\n'
    assert audited(tmp_path, ended(wordy)).lines == 15


def test_what_the_implementation_writes_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run by lot, two streams, forks, copies: read back, its operations and outcomes are those of the run."""
    monkeypatch.setattr(adapter, "_ALIASES", {})  # the names of the run are those of the journal
    monkeypatch.setattr(adapter, "_NAMES", {})
    config = Config(blocks=12, block_size=3, streams=2, launches=4)
    path = tmp_path / "run.jsonl.gz"
    random = Random(1)
    done: list[tuple[Operation, Outcome]] = []
    with JournalWriter(path, **config._asdict()) as writer:
        manager = Implementation(config)
        manager.cache._journal = writer
        world = LockStep(config, manager)
        for _ in range(1500):
            operation = draw_move(world.state, 4, random)
            outcome = world.step(operation)
            if isinstance(outcome, Outcome) and not isinstance(operation, Execute):
                done.append((operation, outcome._replace(copies=()) if isinstance(operation, Submit) else outcome))
    with open_journal(path) as journal:
        assert journal.config == config
        assert [(record.operation, record.outcome) for record in journal] == done
    found = audit(path)
    assert found.lines == len(done) + 2
    assert min(found.copies, found.operations["fork"], found.operations["release"]) > 20
