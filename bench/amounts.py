"""Amounts of memory as people write and read them: `24GiB` in, `24.00 GiB` out.

Binary units have an i (KiB, MiB, GiB, TiB), decimal ones have none, a bare number is bytes. Nothing is rounded on the
way in beyond the byte below, so that what a ledger is asked about is what was written.
"""

import re
from decimal import Decimal

from pagedkv.bench.failures import BadInput, quoted

_AMOUNT = re.compile(r"\s*([0-9]{1,24}(?:\.[0-9]{1,12})?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
BYTES_MAX = 1 << 60


def bytes_of(text: str, where: str) -> int:
    """Read an amount of memory. Errors: `BadInput`.

    >>> bytes_of("24GiB", "--memory"), bytes_of("1.5 GB", "--memory"), bytes_of("4096", "--memory")
    (25769803776, 1500000000, 4096)
    """
    found = _AMOUNT.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        raise BadInput(where, f"{quoted(text)} is no amount of memory", "write it like 24GiB, 80GB or 4096")
    amount = int(Decimal(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].upper()])
    if not 1 <= amount <= BYTES_MAX:
        raise BadInput(where, f"{quoted(text)} is not from 1 byte to 2^60", "write it like 24GiB, 80GB or 4096")
    return amount


def in_words(amount: float) -> str:
    """Write bytes in the largest binary unit that leaves at least 1.

    >>> in_words(131072), in_words(24 * 2**30), in_words(-2048), in_words(7)
    ('128.00 KiB', '24.00 GiB', '-2.00 KiB', '7 B')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(amount) >= 1 << power:
            return f"{amount / (1 << power):,.2f} {unit}"
    return f"{amount:,.0f} B"
