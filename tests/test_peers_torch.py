"""torch's `PagedAttention` under the drivers: its page table holds, and what its mask sees of it does not.

torch is always there. What is expected of it: `page_table`, by which K and V are written, is sound; but `erase` clears
a copy of `physical_to_logical`, by which its mask and score functions tell whose a page is, so a row that is used again
still counts its old pages, whoever has them now.
"""

import pytest
import torch
from pagedkv.bench.peer_torch import TorchPagedAttention, TorchPagedAttentionMask, make_torch_manager
from pagedkv.spec.alphabet import Add, Extend, Release
from pagedkv.spec.fuzz import fuzz
from pagedkv.spec.fuzz_plan import Plan
from pagedkv.spec.refusals import Broken
from pagedkv.spec.state import Config
from pagedkv.spec.world import world

ROW, OTHER, PAGE = torch.tensor([0]), torch.tensor([1]), torch.tensor([4])


def test_page_tables_hold() -> None:
    tally = fuzz(Plan(TorchPagedAttention, lock_step=False), seed=1, runs=2)
    assert tally.finding is None
    assert tally.fired["execute"] > 20, "launches were executed, so contents were compared"
    assert tally.refused["extend", "NoSpace"] > 0


def test_a_mask_that_is_asked_whose_a_page_is_gives_an_old_answer() -> None:
    here = world(Config(2, 4, 1, 1), TorchPagedAttentionMask, lock_step=False)
    for operation in (Add(1, 4), Extend(((1, 4),)), Release(1)):
        here.step(operation)
    with pytest.raises(Broken, match=r"R-OWN-3: .*are free, and sequence 1 holds them"):
        here.step(Add(1, 4))


def test_the_same_in_its_own_calls() -> None:
    pages = make_torch_manager(blocks=2, block_size=4, sequences=2)
    pages.reserve(ROW, PAGE)
    pages.erase(ROW)
    pages.reserve(OTHER, PAGE)
    assert pages.page_table.tolist() == [[-1, -1], [0, -1]], "page 0 is of the other row"
    counts = pages.get_mask_mod(None)
    zero = torch.tensor(0)
    assert bool(counts(torch.tensor(1), zero, zero, zero))
    if not bool(counts(torch.tensor(0), zero, zero, zero)):
        pytest.fail("erase has been mended: physical_to_logical is cleared now; tell the table of findings")
