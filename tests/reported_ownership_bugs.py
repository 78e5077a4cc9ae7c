"""Publicly reported bugs of who holds what: edges counted wrong, blocks that leak, boundaries that are one off.

`reported_bugs` says how a report is told.
"""

from collections.abc import Iterator
from itertools import permutations

from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Release, Retire, Submit
from pagedkv.spec.refusals import Reason

import planted_faults as faults
from reported_bugs import (
    CompletionFiltered,
    ForkWithoutEdge,
    RefusedAddKeepsBlock,
    Report,
    SecondRelease,
    config,
    done,
    no,
    run,
)

# ---- ownership --------------------------------------------------------------------------------------------------


def removals() -> Iterator[Report]:
    """Yield one trace for each order in which three sequences that share blocks can leave; the last writes before."""
    for first, second, last in permutations((1, 2, 3)):
        yield Report(
            "apache/tvm#17045",
            "R-OWN-2",
            f"forked sequences could be removed in the reverse order of their creation alone ({first} {second} {last})",
            config(4, 2),
            (
                done(Add(1, 3), 2),
                done(Submit(((1, 3),))),
                *run(1),
                done(Fork(1, 2), 2),
                done(Fork(2, 3), 2),
                done(Release(first), 2),
                done(Extend(((last, 1),)), 1, extents=(1,)),
                done(Release(second), 1),  # the planned copy still reads what nobody else needs
                done(Release(last), 4),
            ),
            ForkWithoutEdge,
        )


OWNERSHIP = (
    Report(
        "vllm-project/vllm#1556",
        "R-OWN-2",
        "a fork counted a block more often than copy-on-write and release dropped it: freed twice",
        config(6, 2),
        (
            done(Add(1, 3), 4),
            done(Submit(((1, 3),))),
            done(Fork(1, 2), 4),
            done(Extend(((2, 1),)), 3, extents=(1,)),
            done(Release(2), 4),  # the target was never touched
            done(Release(1), 4),
            done(Execute(1)),
            done(Retire(1), 6),
            *(done(Add(name, 1), 6 - name) for name in range(1, 7)),
        ),
        faults.EdgeKept,
    ),
    Report(
        "vllm-project/vllm#42571",
        "R-OWN-3",
        "one release named a block twice, so it was queued twice and had two owners next",
        config(4, 2),
        (
            done(Add(1, 2), 3),
            done(Release(1), 4),
            no(Release(1), Reason.UNKNOWN),
            *(done(Add(name, 2), 4 - name) for name in range(1, 5)),
            no(Add(5, 1), Reason.NO_SPACE),
        ),
        SecondRelease,
    ),
    Report(
        "sgl-project/sglang-jax#982",
        "R-OWN-6",
        "two places freed the slot of a decode step in flight: one recorded it, one inferred it from lengths",
        config(8, 1),
        (
            done(Add(1, 3), 5),
            done(Submit(((1, 3),))),
            done(Extend(((1, 1),)), 4),
            done(Submit(((1, 1),))),
            done(Extend(((1, 1),)), 3),
            done(Submit(((1, 1),))),
            *run(1),
            *run(2),
            done(Release(1), 3),
            done(Execute(3)),
            done(Retire(3), 8),
        ),
        faults.EarlyReuse,
    ),
    Report(
        "apache/tvm#16666",
        "R-COW-2",
        "a fork added no edge, so removing the parent took the child's blocks",
        config(4, 2),
        (
            done(Add(1, 3), 2),
            done(Submit(((1, 3),))),
            *run(1),
            done(Fork(1, 2), 2),
            done(Release(1), 2),
            done(Extend(((2, 1),)), 2),
            done(Submit(((2, 1),))),
            *run(2),
            done(Release(2), 4),
        ),
        ForkWithoutEdge,
    ),
    *removals(),
    Report(
        "Wenyueh/MinivLLM#87",
        "R-OWN-2",
        "a fresh block counted 0 and went to -1 at its release; the last block of an exact multiple counted as empty",
        config(2, 4),
        (
            done(Add(1, 1), 1),
            done(Release(1), 2),
            done(Add(2, 8), 0),
            done(Submit(((2, 8),))),
            *run(1),
            done(Release(2), 2),
        ),
    ),
)

# ---- leaks ------------------------------------------------------------------------------------------------------

LEAKS = (
    Report(
        "vllm-project/vllm#46283",
        "R-LIFE-4",
        "blocks of an aborted remote load waited for a report that never came; a late one must free them, and once",
        config(4, 2, streams=2),
        (
            done(Add(1, 4), 2),
            done(Submit(((1, 4),), 1)),
            done(Release(1), 2),
            no(Add(2, 5), Reason.NO_SPACE),
            done(Execute(1)),
            done(Retire(1), 4),
            done(Add(2, 5), 1),
            done(Retire(1), 1),
        ),
        faults.LateCompletion,
    ),
    Report(
        "vllm-project/vllm-ascend#16662",
        "R-LIFE-4",
        "the completion of a load whose request had been cancelled was filtered out, and its blocks were lost",
        config(4, 2, streams=2),
        (
            done(Add(1, 4), 2),
            done(Submit(((1, 4),), 1)),
            done(Release(1), 2),
            done(Add(2, 2), 1),
            done(Execute(1)),
            done(Retire(1), 3),
        ),
        CompletionFiltered,
    ),
    Report(
        "kekzl/imp#1115",
        "R-OWN-4",
        "one block of each request never came back (found by a soak of 2,000 requests)",
        config(4, 4),
        tuple(
            step
            for number, tokens in enumerate((1, 3, 4, 5, 8, 9, 16) * 10, 1)
            for step in (
                done(Add(number, tokens)),
                done(Submit(((number, tokens),))),
                *run(number),
                done(Release(number), 4),
            )
        ),
    ),
    Report(
        "sgl-project/sglang#16067",
        "R-TXN-1",
        "an admission that failed kept what it had taken before it failed",
        config(2, 2),
        (
            no(Add(1, 8), Reason.TOO_LONG),
            done(Add(2, 2), 1),
            no(Add(1, 4), Reason.NO_SPACE),
            done(Add(3, 2), 0),
            done(Release(2), 1),
            done(Release(3), 2),
            done(Add(1, 4), 0),
        ),
        RefusedAddKeepsBlock,
    ),
    Report(
        "inference-sim/inference-sim#200",
        "R-TXN-1",
        "blocks were taken in a loop and orphaned when a later round of it failed",
        config(3, 2),
        (
            done(Add(1, 2), 2),
            done(Add(2, 2), 1),
            no(Extend(((1, 1), (2, 1))), Reason.NO_SPACE),
            done(Extend(((1, 1),)), 0),
        ),
        faults.RefusedBatchKeepsBlock,
    ),
    Report(
        "huggingface/transformers#46117",
        "R-TXN-1",
        "a fork took blocks step by step and brought the server down where they did not suffice",
        config(3, 2),
        (
            done(Add(1, 3), 1),
            done(Submit(((1, 3),))),
            done(Fork(1, 2), 1),
            done(Fork(1, 3), 1),
            no(Extend(((2, 1), (3, 1))), Reason.NO_SPACE),
            done(Extend(((2, 1),)), 0, extents=(1,)),
            no(Extend(((3, 1),)), Reason.NO_SPACE),
            done(Release(2), 1),
            done(Extend(((3, 1),)), 0, extents=(1,)),
            done(Extend(((1, 1),)), 0),
        ),
        faults.RefusedBatchKeepsBlock,
    ),
    Report(
        "deepspeedai/DeepSpeed-MII#497",
        "R-OWN-3",
        "a stall and the finish of one request both flushed it",
        config(2, 2),
        (
            done(Add(1, 2), 1),
            done(Submit(((1, 2),))),
            done(Release(1), 1),
            no(Release(1), Reason.UNKNOWN),
            done(Add(1, 2), 0),
            done(Execute(1)),
            done(Retire(1), 1),
        ),
        SecondRelease,
    ),
)

# ---- boundaries -------------------------------------------------------------------------------------------------

BOUNDARIES = (
    Report(
        "Wenyueh/MinivLLM#85",
        "R-CAP-2",
        "a test for a full block was one token off: a block was asked for too early, and popped too late",
        config(2, 4),
        (
            done(Add(1, 3), 1),
            done(Add(2, 1), 0),
            done(Extend(((1, 1),)), 0),
            no(Extend(((1, 1),)), Reason.NO_SPACE),
            done(Release(2), 1),
            done(Extend(((1, 1),)), 0),
            no(Extend(((1, 4),)), Reason.TOO_LONG),
        ),
        faults.OffByOne,
    ),
    Report(
        "GeeeekExplorer/nano-vllm#30",
        "R-CAP-2",
        "no bug: readers took a block at length 1 modulo B for one too early; the length held the pending token",
        config(2, 4),
        (
            done(Add(1, 4), 1),
            done(Submit(((1, 4),))),
            done(Extend(((1, 1),)), 0),
            done(Submit(((1, 1),))),
            *map(done, map(Execute, (1, 2))),
        ),
        faults.OffByOne,
    ),
    Report(
        "vllm-project/vllm#44151",
        "R-TAB-1",
        "a row was sent with its lookahead block, and the receiver lined it up by its end: every block one off",
        config(3, 4),
        (
            done(Add(1, 8), 1),
            done(Extend(((1, 1),)), 0),
            done(Submit(((1, 8),))),
            done(Execute(1)),
        ),
    ),
)
