"""What others wrote, put into a message: on one line, and no longer than a person reads.

A manager under test may answer anything, a journal or an argument may hold anything, and a message that quotes it goes
to a terminal.
"""


def cut(text: str, characters_max: int) -> str:
    """Return a text, its end replaced by three dots where it is longer.

    >>> cut("copy-on-write", 10)
    'copy-on...'
    """
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


def one_line(text: str) -> str:
    r"""Escape whatever is not printable: line ends, control characters, the lone surrogates of odd file names.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
