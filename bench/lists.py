"""Lists in one option: numbers or words with a comma between, each once, in the order in which they are given.

The form that all commands share. Whatever is wrong with a list is one line that quotes it: an empty one, a number
beyond its bounds, a word that is not offered, a value that stands twice. Digits are 0 to 9, and nothing but digits:
Python's own `int` and `float` would take 1_0 and the digits of every script.
"""

import re
from collections.abc import Collection
from typing import TypeVar

from pagedkv.bench.failures import BadInput, quoted

_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.IGNORECASE)
DIGITS_MAX = 18
VALUES_MAX = 100

Value = TypeVar("Value")


def numbers_of(option: str, text: str, most: int) -> tuple[int, ...]:
    """Read whole numbers from 1 to `most`. Errors: `BadInput`."""
    where, remedy = f"{option} {quoted(text)}", "give a list like 8,16,32"
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise BadInput(where, "not all of it are whole numbers with a comma between", remedy)
    numbers = [int(part) for part in parts]
    if not all(1 <= number <= most for number in numbers):
        raise BadInput(where, f"numbers are from 1 to {most:,}", remedy)
    return _each_once(where, numbers, remedy)


def number_of(text: str) -> float:
    """Read one number, with or without a fraction and an exponent. Errors: `ValueError`, also for nan and inf."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(text)
    return float(text)


def words_of(option: str, text: str, offered: Collection[str]) -> tuple[str, ...]:
    """Read words out of those that are offered. Errors: `BadInput`."""
    where, remedy = f"{option} {quoted(text)}", f"give a list out of {','.join(offered)}"
    words = [part.strip() for part in text.split(",")]
    for word in words:
        if word not in offered:
            raise BadInput(where, f"{quoted(word)} is none of them" if word else "a word is missing", remedy)
    return _each_once(where, words, remedy)


def _each_once(where: str, values: list[Value], remedy: str) -> tuple[Value, ...]:
    if len(values) > VALUES_MAX:
        raise BadInput(where, f"more than {VALUES_MAX} values", "give fewer, in several commands")
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise BadInput(where, f"{twice} stands twice", remedy)
    return tuple(values)
