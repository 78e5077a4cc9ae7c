"""The journal's lines on prefixes: a journal written by hand holds; altered in one place it is found, with the rule."""

import hashlib
import json
from pathlib import Path

import pytest
from pagedkv.spec.alphabet import Add, Clear, Pin, Publish, Unpin
from pagedkv.spec.audit import audit
from pagedkv.spec.journal import open_journal
from pagedkv.spec.outcome import Merge, Outcome
from pagedkv.spec.refusals import Broken

# 4 blocks of 2. Sequence 1 computes 5 6 7 in blocks 1 and 2 and publishes 1; 2 hits it. 3, of another tenant, does not,
# and is evicted for nobody. 4 began by a count and is merged into block 1 when its ids are told. A pin keeps block 1
# when 1, 2 and 4 have left; then the weights change.
JOURNAL = """\
{"journal":"pagedkv","version":1,"blocks":4,"block_size":2,"streams":1,"discipline":"fence","launches":4}
{"op":"add","seq":1,"n":3,"tokens":[5,6,7],"out":[1,2]}
{"op":"launch","id":1,"rows":[1],"counts":[3]}
{"op":"retire","id":1}
{"op":"publish","seqs":[1],"tokens":[[]],"retention":1,"published":[1]}
{"op":"add","seq":2,"n":3,"tokens":[5,6,8],"hits":[1],"out":[3]}
{"op":"release","seq":1,"freed":[2]}
{"op":"add","seq":3,"n":2,"tokens":[5,6],"salt":7,"out":[2]}
{"op":"release","seq":3,"freed":[2]}
{"op":"add","seq":4,"n":3,"out":[4,2]}
{"op":"launch","id":2,"rows":[4],"counts":[3]}
{"op":"retire","id":2}
{"op":"publish","seqs":[4],"tokens":[[5,6]],"merged":[[4,0,4,1]],"freed":[4]}
{"op":"pin","pin":9,"tokens":[5,6,1],"hits":[1]}
{"op":"release","seq":2,"freed":[3]}
{"op":"release","seq":4,"freed":[2]}
{"op":"unpin","pin":9,"freed":[1]}
{"op":"add","seq":5,"n":8,"out":[2,3,4,1]}
{"op":"release","seq":5,"freed":[1,2,3,4]}
{"op":"clear"}
""".splitlines(keepends=True)


def written(path: Path, lines: list[str]) -> Path:
    """Write a journal of these lines with a last line that fits them."""
    before = "".join(lines).encode()
    end = {"op": "end", "lines": len(lines), "digest": hashlib.blake2b(before, digest_size=32).hexdigest()}
    path.write_bytes(before + json.dumps(end, separators=(",", ":")).encode() + b"\n")
    return path


def test_the_journal_holds(tmp_path: Path) -> None:
    audited = audit(written(tmp_path / "j.jsonl", JOURNAL))
    assert audited.operations == {
        "add": 5, "launch": 2, "retire": 2, "publish": 2, "release": 5, "pin": 1, "unpin": 1, "clear": 1,
    }  # fmt: skip
    assert (audited.sequences_left, audited.in_flight_left, audited.blocks_taken) == (0, 0, 10)


def test_lines_are_read_as_operations(tmp_path: Path) -> None:
    with open_journal(written(tmp_path / "j.jsonl", JOURNAL)) as journal:
        records = [(operation, outcome) for _, operation, outcome in journal]
    assert records[0] == (Add(1, (5, 6, 7)), Outcome(blocks=(1, 2)))
    assert records[3] == (Publish(((1, ()),), 1), Outcome(published=(1,)))
    assert records[4] == (Add(2, (5, 6, 8)), Outcome(blocks=(3,), hits=(1,)))
    assert records[6] == (Add(3, (5, 6), 7), Outcome(blocks=(2,)))
    assert records[11] == (Publish(((4, (5, 6)),)), Outcome(merges=(Merge(4, 0, 4, 1),), freed=frozenset({4})))
    assert records[12] == (Pin(9, (5, 6, 1)), Outcome(hits=(1,)))
    assert records[15] == (Unpin(9), Outcome(freed=frozenset({1})))
    assert records[18] == (Clear(), Outcome())


@pytest.mark.parametrize(
    ("line", "old", "new", "rule"),
    [
        (5, '"published":[1]', '"published":[2]', "R-HASH-4"),
        (5, '"published":[1]', '"published":[1,2]', "R-HASH-4"),
        (5, ',"published":[1]', "", "R-HASH-3"),
        (5, '"retention":1', '"retention":4', "R-TXN-1"),
        (5, '"tokens":[[]]', '"tokens":[[8,9]]', "R-TXN-1"),  # more ids than positions without
        (6, ',"hits":[1],"out":[3]', ',"out":[3,4]', "R-HASH-5"),
        (6, '"hits":[1]', '"hits":[2]', "R-HASH-1"),
        (6, '"tokens":[5,6,8]', '"tokens":[6,6,8]', "R-HASH-1"),
        (6, '"tokens":[5,6,8],', '"tokens":[5,6,8],"salt":3,', "R-HASH-1"),
        (6, '"n":3,"tokens":[5,6,8]', '"n":2,"tokens":[5,6]', "R-HASH-5"),
        (6, '"hits":[1],"out":[3]', '"hits":[1],"out":[3,4]', "R-CAP-1"),
        (7, '"freed":[2]', '"freed":[1,2]', "R-OWN-3"),
        (13, ',"merged":[[4,0,4,1]],"freed":[4]', ',"published":[4]', "R-HASH-4"),
        (13, '"merged":[[4,0,4,1]]', '"merged":[[4,0,1,4]]', "R-EVICT-3"),
        (13, ',"freed":[4]', "", "R-LIFE-4"),
        (14, '"hits":[1]', '"hits":[]', "R-HASH-5"),
        (14, '"tokens":[5,6,1]', '"tokens":[6,6,1]', "R-TXN-1"),
        (17, '"pin":9', '"pin":8', "R-TXN-1"),
        (17, ',"freed":[1]', "", "R-LIFE-4"),
        (18, '"out":[2,3,4,1]', '"out":[2,1,3,4]', "R-EVICT-1"),
    ],
)
def test_what_contradicts_the_state_is_found_with_its_rule(
    line: int, old: str, new: str, rule: str, tmp_path: Path
) -> None:
    assert old in JOURNAL[line - 1]
    altered = [*JOURNAL[: line - 1], JOURNAL[line - 1].replace(old, new), *JOURNAL[line:]]
    with pytest.raises(Broken) as verdict:
        audit(written(tmp_path / "j.jsonl", altered))
    assert (verdict.value.rule, verdict.value.detail.partition(":")[0]) == (rule, f"line {line}")


@pytest.mark.parametrize(
    ("line", "old", "new", "said"),
    [
        (2, '"n":3', '"n":4', "3 token ids, and `n` is 4"),
        (2, "[5,6,7]", '"567"', "`tokens` must be a list"),
        (2, "[5,6,7]", "[5,6,true]", "`tokens` must be integers"),
        (5, "[[]]", "[[],[]]", "a list of token ids for each of 1 sequences"),
        (5, "[[]]", "[7]", "a list of token ids for each of 1 sequences"),
        (5, "[[]]", "[[1.5]]", "`tokens` must be integers"),
        (13, "[[4,0,4,1]]", "[[4,0,4]]", "`merged` must be a list of [sequence, index, old, new]"),
        (14, '"pin":9,', "", "no field `pin`"),
        (20, '{"op":"clear"}', '{"op":"clear","all":1}', "no such field here: 'all'"),
    ],
)
def test_what_is_not_in_order_is_said(line: int, old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in JOURNAL[line - 1]
    altered = [*JOURNAL[: line - 1], JOURNAL[line - 1].replace(old, new), *JOURNAL[line:]]
    with pytest.raises(Broken) as verdict:
        audit(written(tmp_path / "j.jsonl", altered))
    assert verdict.value.rule == "JOURNAL"
    assert said in verdict.value.detail


def test_a_victim_of_higher_rank_is_found(tmp_path: Path) -> None:
    """Blocks 1 and 2 are idle, 1 of class 1: to evict it first is wrong."""
    lines = [
        JOURNAL[0],
        '{"op":"add","seq":1,"n":2,"tokens":[1,1],"out":[1]}\n',
        '{"op":"add","seq":2,"n":2,"tokens":[2,2],"out":[2]}\n',
        '{"op":"launch","id":1,"rows":[1,2],"counts":[2,2]}\n',
        '{"op":"retire","id":1}\n',
        '{"op":"publish","seqs":[1],"tokens":[[]],"retention":1,"published":[1]}\n',
        '{"op":"publish","seqs":[2],"published":[2]}\n',
        '{"op":"release","seq":1,"freed":[1]}\n',
        '{"op":"release","seq":2,"freed":[2]}\n',
        '{"op":"add","seq":3,"n":6,"out":[3,4,2]}\n',
    ]
    assert audit(written(tmp_path / "right.jsonl", lines)).blocks_taken == 5
    wrong = [*lines[:-1], lines[-1].replace("[3,4,2]", "[3,4,1]")]
    with pytest.raises(Broken) as verdict:
        audit(written(tmp_path / "wrong.jsonl", wrong))
    assert verdict.value.rule == "R-EVICT-2"
