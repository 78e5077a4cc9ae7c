"""transformers' continuous batching under the drivers, where it is installed: the cache holds, the scheduler does not.

A small number of operations: `pagedkv peers transformers transformers_scheduler` runs a hundred thousand of each. What
is expected was found so and then traced by hand in version 5.24.0, by the calls that its generation loop makes.
"""

import warnings

import pytest
from pagedkv.bench.peers import PEERS
from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Operation, Publish, Release, Retire
from pagedkv.spec.alphabet import Submit as Launch
from pagedkv.spec.foreign_drivers import ForeignCase
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.refusals import Broken, Refused
from pagedkv.spec.requests import Limits, Request
from pagedkv.spec.scheduler_alphabet import Cancel, Complete, Schedule, Submit
from pagedkv.spec.state import Config
from pagedkv.spec.world import world

if not PEERS["transformers"].is_installed():
    pytest.skip("transformers is not installed", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it warns of while it is imported is its owners' business
    from pagedkv.bench.peer_transformers import TransformersManager
    from pagedkv.bench.peer_transformers_scheduler import TransformersScheduler

TWO_AHEAD = Limits(max_tokens_per_step=8, max_running=4, steps_ahead=2)


def test_the_cache_holds() -> None:
    tally = fuzz(Plan(TransformersManager, lock_step=False), seed=1, runs=3)
    assert tally.finding is None
    assert min(tally.fired[word] for word in ("fork", "publish", "execute", "release")) > 10
    assert tally.refused["fork", "NoSpace"] > 0


def test_a_fork_copies_the_last_block_before_its_parent_goes_on() -> None:
    here = world(Config(4, 4, 1, 3), TransformersManager, lock_step=False)
    parent_goes_on: list[Operation] = [Extend(((1, 1),)), Launch(((1, 1),)), Release(1)]
    child_follows: list[Operation] = [Extend(((2, 1),)), Launch(((2, 1),)), Execute(1), Execute(2), Execute(3)]
    for operation in (Add(1, 3), Launch(((1, 3),)), Fork(1, 2), *parent_goes_on, *child_follows, Retire(3), Release(2)):
        here.step(operation)
    assert here.blocks() == (4, 0, 0)


def test_a_prompt_that_was_computed_is_found_again() -> None:
    here = world(Config(4, 2, 1, 2), TransformersManager, lock_step=False)
    for operation in (Add(1, (5, 6, 7)), Launch(((1, 3),)), Publish(((1, ()),))):
        here.step(operation)
    first = here.manager.block_table(1)[0]
    added = here.step(Add(2, (5, 6, 8)))
    assert not isinstance(added, Refused)
    assert added.hits == (first,)


def test_a_cancellation_in_flight_of_a_step_that_fills_a_block_ends_the_engine() -> None:
    """R-LIFE-7: `clear_cancelled_requests` drops the block table, and `update_batch` looks it up for its hashes."""
    limits = TWO_AHEAD._replace(prefix_cache=True)
    here = ForeignCase(Config(4, 2), TransformersScheduler, limits).start()
    for operation in (Submit(Request(1, (5, 6), 4)), Schedule(), Cancel(1), Submit(Request(2, (7, 8), 4)), Schedule()):
        here.step(operation)
    with pytest.raises(Broken, match="KeyError: '1'"):
        here.step(Complete())


def test_who_made_room_is_never_served_if_all_others_are_cancelled() -> None:
    """R-PRE-3: `offload_requests` blocks new requests, and nothing but a request that finishes lets them in again."""
    here = ForeignCase(Config(4, 2), TransformersScheduler, TWO_AHEAD._replace(steps_ahead=1)).start()
    for operation in (Submit(Request(1, (1, 1, 1), 4)), Submit(Request(2, (3, 4, 5), 4)), Schedule(), Complete()):
        here.step(operation)
    preempted: list[int] = []
    while not preempted:
        seen = here.step(Schedule())
        assert not isinstance(seen, Refused)
        preempted += seen.preempted
        here.step(Complete())
    here.step(Cancel(3 - preempted[0]))
    for _ in range(2):
        here.step(Schedule())
    with pytest.raises(Broken, match="R-PRE-3"):
        here.step(Schedule())
