"""The ways a command of the workbench can end badly, and the one line that says so.

A command ends in one of four ways: it held (exit 0), a rule was broken (the spec's `Broken`, exit 1), what it was given
cannot be used (`BadInput`, exit 2; a refusal of a cache manager that reaches the command line is the same), or the
user stopped it (130). `BadInput` carries its three parts (where, what, what to do) apart, so that none can be
forgotten. Messages quote what a file or a caller holds, hence `one_line`: whatever was quoted, the message is a single
printable line.
"""

QUOTED_CHARACTERS_MAX = 60


class BadInput(Exception):  # noqa: N818  (the input is at fault, not the program)
    """A file or an argument cannot be used: where it is, what is wrong with it, what to do about it."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        """Keep the three parts; `str()` joins them to one line."""
        super().__init__(where, what, remedy)
        self.where = where
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.what}; {self.remedy}")


def quoted(value: object) -> str:
    """Give `value` as Python would write it, cut to a length that fits into a message."""
    text = repr(value)
    if len(text) <= QUOTED_CHARACTERS_MAX:
        return text
    return f"{text[: QUOTED_CHARACTERS_MAX - 3]}..."


def one_line(text: str) -> str:
    r"""Escape whatever is not printable: line ends, control characters, the lone surrogates of odd file names.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
