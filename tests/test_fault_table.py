"""The table rule x driver x planted fault, printed: `python -m pytest -s tests/test_fault_table.py`.

The rows are those that `test_planted_faults`, `test_planted_sharing_faults` and `test_scheduler_lock_step` hold to be
true, and for each rule the steps made by hand that break it (`test_rules`, `test_scheduler_rules`).
"""

from collections import Counter

from pagedkv.spec.rules import RULES
from pagedkv.spec.rules_scheduling import SCHEDULING

import broken_steps_finer
import broken_steps_let_through
import broken_steps_sharing
import test_planted_faults as plain
import test_planted_sharing_faults as shared
import test_scheduler_lock_step as requests
import test_scheduler_rules as scheduling
from broken_steps import CASES

assert broken_steps_finer.LAUNCHED
assert broken_steps_sharing.COMPUTED
assert broken_steps_let_through.WAITING

LOCK_STEP, CONTENTS, FUZZ, BY_HAND = "explore, lock-step", "explore, contents alone", "fuzz", "a step made by hand"


def rows() -> list[tuple[str, str, str, str]]:
    """Return (rule, driver, fault, operations in the shortest counterexample)."""
    found = [(e.rule, LOCK_STEP, fault.__name__, str(e.length)) for fault, e in plain.LOCK_STEP.items()]
    found += [(e.rule, CONTENTS, fault.__name__, str(e.length)) for fault, e in plain.CONTENTS.items()]
    found += [(e.rule, LOCK_STEP, fault.__name__, str(e.length)) for fault, e in shared.LOCK_STEP.items()]
    found += [(e.rule, CONTENTS, fault.__name__, str(e.length)) for fault, e in shared.CONTENTS.items()]
    found += [(e.rule, FUZZ, fault.__name__, str(e.length)) for fault, e in shared.DEEP.items()]
    found += [("any", FUZZ, fault.__name__, "") for fault in (*plain.LOCK_STEP, *shared.LOCK_STEP)]
    found += [("any", f"{FUZZ}, contents alone", fault.__name__, "") for fault in shared.CONTENTS_BY_LOT]
    found += [
        (e.rule, f"{LOCK_STEP}, scheduler", fault.__name__, str(e.length)) for fault, e in requests.FAULTS.items()
    ]
    found += [("any", f"{FUZZ}, scheduler", fault.__name__, "") for fault in requests.FAULTS]
    steps = Counter(name.split()[0] for name in (*CASES, *scheduling.CASES))
    found += [(rule, BY_HAND, f"{count} steps", "1") for rule, count in steps.items()]
    return found


def test_the_table_names_every_rule_and_every_fault() -> None:
    table = rows()
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in sorted(table):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201  (it is what the test is for)
    assert {rule for rule, *_ in table} == {*RULES, *SCHEDULING, "any", "CRASH"}
    by_drivers = {rule for rule, driver, *_ in table if driver in {LOCK_STEP, CONTENTS}}
    assert {f"R-HASH-{number}" for number in (1, 3, 4, 5)} | {"R-EVICT-1", "R-EVICT-2", "R-LIFE-1"} <= by_drivers
