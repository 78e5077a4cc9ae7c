"""Numbers with what they count, as they stand in what a user reads."""

import pytest
from pagedkv.spec.alphabet import Add, describe
from pagedkv.spec.counts import counted, nth
from pagedkv.spec.moves import Scope
from pagedkv.spec.moves_sharing import Sharing
from pagedkv.spec.requests import Limits, Request
from pagedkv.spec.scheduler_alphabet import Submit
from pagedkv.spec.scheduler_alphabet import describe as describe_request
from pagedkv.spec.scheduler_moves import Scope as RequestScope
from pagedkv.spec.state import Config


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 blocks"), (1, "1 block"), (2, "2 blocks"), (2588, "2,588 blocks")]
)
def test_one_is_not_many(number: int, words: str) -> None:
    assert counted(number, "block") == words


def test_some_words_take_more_than_an_s() -> None:
    assert [counted(number, "launch", "launches") for number in (1, 2)] == ["1 launch", "2 launches"]


def test_places_in_an_order() -> None:
    assert [nth(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 111, 1023)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th", "1,023rd"]
    )


def test_a_world_of_ones_is_told_as_one() -> None:
    sharing = Sharing(letters=1, salts=1, retentions=1, pins=1)
    assert Scope(Config(1, 1, 1, 1), 1, 1, 1, sharing).describe() == (
        "1 block, B = 1, 1 sequence of up to 1 token, 1 launch in flight, 1 stream, batches of up to 1 row"
        "; 1 letter, 1 salt, 1 retention class, 1 pin"
    )
    assert RequestScope(Config(1, 1), Limits(1, 1), (Request(0, 1, 1),), 1).describe() == (
        "1 block, B = 1; 1 request of 1 kind; 1 token a step, 1 running, 1 step ahead, watermark 0, fcfs, "
        "prefix cache off"
    )


def test_operations_of_one_are_told_as_one() -> None:
    assert describe(Add(3, 1)) == "add 3 with 1 token"
    assert describe(Add(3, 2)) == "add 3 with 2 tokens"
    assert describe_request(Submit(Request(0, 1, 1))) == "submit 0: prompt 1 token, 1 output"
    assert describe_request(Submit(Request(0, 2, 3))) == "submit 0: prompt 2 tokens, 3 outputs"
