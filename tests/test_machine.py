"""The Hypothesis driver: it looks for new examples even under CI, holds on the sound, and finds what is planted."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from hypothesis import settings
from pagedkv.bench.adapter import Implementation
from pagedkv.spec.alphabet import Add, Release, Submit
from pagedkv.spec.machine import ROUND_EXAMPLES, hunt, machine
from pagedkv.spec.outcome import Outcome
from pagedkv.spec.reference import Reference
from pagedkv.spec.state import Config, Name
from pagedkv.spec.traces import Case, tell

from hostile_managers import RaisesWhenMade
from planted_faults import EarlyReuse, MissingEdge, OffByOne
from watched_manager import Watched

WORLD = Config(3, 2, 2, 2)

HUNTS = """
from watched_manager import Watched
from hypothesis import settings
from pagedkv.spec.machine import hunt
from pagedkv.spec.state import Config
from pagedkv.spec.traces import Case

class Remembering(Watched):
    tried = []

    def __init__(self, config):
        super().__init__(config)
        type(self).tried.append(self.calls)

def examples(number):
    Remembering.tried = []
    assert hunt(Case(Config(3, 2, 2, 2), Remembering), number=number, examples=15) is None
    return Remembering.tried

assert settings.default.derandomize, "the profile of CI is loaded"
once, again, other = examples(1), examples(1), examples(2)
assert len(once) >= 15
assert once == again, "one number is one hunt"
assert once != other, "another number tries other examples"
"""


def test_under_ci_it_still_looks_for_new_examples(tmp_path: Path) -> None:
    """Profiles are chosen when Hypothesis is imported, so a process of its own; and it leaves nothing on the disk."""
    environment = os.environ | {"CI": "true", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HUNTS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_its_profile_is_its_own() -> None:
    profile = settings.get_profile("pagedkv-fuzz")
    assert (profile.derandomize, profile.database, profile.deadline) == (False, None, None)


@pytest.mark.parametrize("lock_step", [True, False], ids=["lock-step", "contents alone"])
def test_the_sound_manager_holds(*, lock_step: bool) -> None:
    assert hunt(Case(WORLD, Implementation, lock_step), examples=60) is None


def test_it_is_a_test_case_as_well() -> None:
    """For a project's own test suite: `TestCase = machine(case).TestCase`."""
    kind = machine(Case(WORLD, Implementation)).TestCase
    kind.settings = settings(settings.get_profile("pagedkv-fuzz"), max_examples=5)
    outcome = unittest.TestResult()
    kind("runTest").run(outcome)
    assert (outcome.testsRun, outcome.failures, outcome.errors) == (1, [], [])


def test_every_operation_is_tried_and_completions_come_in_every_way() -> None:
    Watched.met.clear()
    tried: set[object] = set()

    class Noting(Watched):
        def _asked(self, *call: object) -> None:
            tried.add(call[0])
            super()._asked(*call)

    assert hunt(Case(WORLD, Noting), examples=60) is None
    assert tried == {"add", "extend", "fork", "launch", "execute", "retire", "release"}
    for way in ("late", "twice", "of none", "after its sequence"):
        assert Noting.met[way] > 0, way


@pytest.mark.parametrize(("fault", "rule", "length"), [(EarlyReuse, "R-LIFE-1", 3), (MissingEdge, "R-LIFE-2", 3)])
def test_it_finds_what_is_planted(fault: type[Implementation], rule: str, length: int) -> None:
    """The lengths are the shortest there are: add, launch, release; add, launch, launch."""
    finding = hunt(Case(WORLD, fault), number=1, examples=2000)
    assert finding is not None
    assert (finding.broken.rule, len(finding.trace)) == (rule, length)
    _, broken = tell(finding.case, finding.trace)
    assert broken is not None
    assert broken.rule == rule


def test_what_it_finds_is_minimal_in_every_number() -> None:
    finding = hunt(Case(WORLD, EarlyReuse), number=1, examples=2000)
    assert finding is not None
    add, launch, release = finding.trace
    assert isinstance(add, Add)
    assert add.tokens == 1
    assert isinstance(launch, Submit)
    assert launch.rows == ((add.name, 1),)
    assert release == Release(add.name)


def test_two_faults_at_once_are_one_finding() -> None:
    """Hypothesis would tell of both, in a group; one counterexample is what a person reads."""

    class Both(EarlyReuse, OffByOne):
        pass

    finding = hunt(Case(WORLD, Both), examples=500)
    assert finding is not None
    assert finding.broken.rule in {"R-LIFE-1", "R-CAP-1"}


def test_what_breaks_only_once_is_still_a_finding() -> None:
    """Hypothesis calls it flaky; a manager that is not deterministic has not held."""

    class Once(Reference):
        raised = False

        def fork(self, parent: Name, child: Name) -> Outcome:
            if not type(self).raised:
                type(self).raised = True
                raise RuntimeError("this time")
            return super().fork(parent, child)

    finding = hunt(Case(WORLD, Once), examples=200)
    assert finding is not None
    assert finding.broken.rule == "CRASH"
    assert tell(finding.case, finding.trace)[1] is None


def test_what_cannot_be_made_is_a_finding() -> None:
    finding = hunt(Case(WORLD, RaisesWhenMade))
    assert finding is not None
    assert (finding.broken.rule, finding.trace) == ("CRASH", ())


def test_time_ends_it_between_two_rounds() -> None:
    done: list[tuple[int, int, float]] = []
    case = Case(WORLD, Reference)
    assert hunt(case, examples=10**9, seconds=0, progress=done.append) is None
    [(examples, operations, _)] = done
    assert examples == ROUND_EXAMPLES < operations
