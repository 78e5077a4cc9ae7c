"""The ways a command of the workbench can end badly, and the one line that says so.

A command ends in one of four ways: it held (exit 0), a rule was broken (the spec's `Broken`, exit 1), what it was given
cannot be used (`BadInput`, exit 2; a refusal of a cache manager that reaches the command line is the same), or the
user stopped it (130). `BadInput` carries its three parts (where, what, what to do) apart, so that none can be
forgotten. Messages quote what a file or a caller holds, hence `one_line`: whatever was quoted, the message is a single
printable line.
"""

from pagedkv.spec.quoting import cut, one_line

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
    return cut(repr(value), QUOTED_CHARACTERS_MAX)
