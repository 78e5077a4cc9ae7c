"""Numbers with what they count, as people write them: `1 block`, `2 blocks`, `2,588 blocks`.

Every scope, every operation in words and every message that a user reads names amounts, and most of them can be one. So
they are all made here, the spec's and the workbench's, and none has to think of it. Cost: under a microsecond.
"""


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number and what it counts; `things` is for a word that takes more than an s.

    >>> counted(1, "block"), counted(2588, "block"), counted(0, "block"), counted(2, "class", "classes")
    ('1 block', '2,588 blocks', '0 blocks', '2 classes')
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def nth(number: int) -> str:
    """Return a place in an order.

    >>> nth(1), nth(2), nth(11), nth(1023)
    ('1st', '2nd', '11th', '1,023rd')
    """
    return f"{number:,}" + ("th" if 10 < number % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th"))
