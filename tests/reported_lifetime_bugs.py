"""Publicly reported bugs of work in flight: blocks and rows reused too early, missing order, copies that were not made.

`reported_bugs` says how a report is told.
"""

from pagedkv.spec.alphabet import Add, Execute, Extend, Fork, Release, Retire, Submit
from pagedkv.spec.refusals import Reason

import planted_faults as faults
from reported_bugs import Report, config, done, no, run

# ---- in flight --------------------------------------------------------------------------------------------------


def finished_one_step_behind(report: str, how: str) -> Report:
    """Return the trace of a request that leaves while its next step runs."""
    return Report(
        report,
        "R-LIFE-1",
        f"a request was {how} while its next step ran; its blocks were reused at once, and that step wrote into them",
        config(2, 2),
        (
            done(Add(1, 2), 1),
            done(Submit(((1, 2),))),
            done(Extend(((1, 1),)), 0),
            done(Submit(((1, 1),))),
            done(Extend(((1, 1),)), 0),
            done(Submit(((1, 1),))),
            done(Execute(1)),
            done(Execute(2)),
            done(Retire(2)),
            done(Release(1), 0),
            no(Add(2, 3), Reason.NO_SPACE),
            done(Execute(3)),
            no(Add(2, 3), Reason.NO_SPACE),
            done(Retire(3), 2),
            done(Add(2, 3), 0),
        ),
        faults.EarlyReuse,
    )


IN_FLIGHT = (
    finished_one_step_behind("vllm-project/vllm#45357", "finished"),
    finished_one_step_behind("vllm-project/vllm-ascend#14055", "aborted or preempted"),
    Report(
        "sgl-project/sglang#18803",
        "R-LIFE-6",
        "a request's row was given away and written anew while a launch still read it",
        config(8, 1),
        (
            done(Add(1, 2), 6),
            done(Submit(((1, 2),))),
            done(Release(1), 6),
            *(done(Add(name, 1), 7 - name) for name in range(2, 8)),
            done(Execute(1)),
            done(Retire(1), 2),
        ),
        faults.RowRecycled,
    ),
    Report(
        "sgl-project/sglang#32564",
        "R-LIFE-3",
        "an abort freed the pages of a remote write that went on, and the next request answered with their contents",
        config(4, 2, streams=2),
        (
            done(Add(1, 4), 2),
            done(Submit(((1, 4),), 1)),
            done(Release(1), 2),
            done(Add(2, 4), 0),
            done(Submit(((2, 4),), 0)),
            no(Add(3, 1), Reason.NO_SPACE),
            *run(2),
            done(Execute(1)),
            done(Retire(1), 2),
        ),
        faults.EarlyReuse,
    ),
    Report(
        "sgl-project/sglang#31357",
        "R-LIFE-3",
        "pages were released when one of two transfers was done",
        config(4, 2, streams=2),
        (
            done(Add(1, 2), 3),
            done(Submit(((1, 2),))),
            *run(1),
            done(Fork(1, 2), 3),
            done(Extend(((1, 1), (2, 1))), 1),
            done(Submit(((1, 1),), 0)),
            done(Submit(((2, 1),), 1)),
            done(Release(1), 1),
            done(Release(2), 1),
            done(Execute(3)),
            done(Execute(2)),
            done(Retire(3), 2),  # its own block alone: the shared one is read on the other stream too
            done(Retire(2), 4),
        ),
        faults.OneFence,
    ),
    Report(
        "vllm-project/vllm#45704",
        "R-LIFE-2",
        "a copy on another stream was ordered after the kernels that wrote the block in the program alone",
        config(2, 2, streams=2),
        (
            done(Add(1, 2), 1),
            done(Submit(((1, 1),), 0)),
            done(Submit(((1, 1),), 1), after=1),
        ),
        faults.MissingEdge,
    ),
    Report(
        "vllm-project/vllm#50696",
        "R-LIFE-2",
        "a load landed in a block that a queued kernel of its previous life had still to write",
        config(2, 2, streams=2),
        (
            done(Add(1, 2), 1),
            done(Submit(((1, 2),), 0)),
            done(Release(1), 1),
            done(Add(2, 2), 0),
            done(Submit(((2, 2),), 1)),
            no(Add(3, 1), Reason.NO_SPACE),
            done(Execute(1)),
            done(Retire(1), 1),
            done(Add(3, 1), 0),
            done(Submit(((3, 1),), 1)),
        ),
        faults.EarlyReuse,
    ),
    Report(
        "vllm-project/vllm#50360",
        "R-COW-3",
        "a load did not wait for the copy-on-write into the same page",
        config(3, 4, streams=2),
        (
            done(Add(1, 1), 2),
            done(Submit(((1, 1),))),
            *run(1),
            done(Fork(1, 2), 2),
            done(Extend(((2, 1),)), 1, extents=(1,)),
            done(Submit(((2, 1),), 0)),
            done(Extend(((2, 1),)), 1),
            done(Submit(((2, 1),), 1), after=2),
        ),
        faults.MissingEdge,
    ),
    Report(
        "RBLN-SW/vllm-rbln#1024",
        "R-LIFE-3",
        "a drain waited for a bounded time, and then let the blocks of an active write be used",
        config(2, 2, streams=2),
        (
            done(Add(1, 3), 0),
            done(Submit(((1, 3),), 1)),
            done(Release(1), 0),
            *(no(Add(2, 1), Reason.NO_SPACE) for _ in range(100)),
            done(Execute(1)),
            no(Add(2, 1), Reason.NO_SPACE),
            done(Retire(1), 2),
        ),
        faults.EarlyReuse,
    ),
    Report(
        "sgl-project/sglang#30093",
        "R-LIFE-7",
        "chained steps of a finished request went on through its row, which was another's by then",
        config(4, 2),
        (
            done(Add(1, 2), 3),
            done(Submit(((1, 2),))),
            done(Extend(((1, 1),)), 2),
            done(Submit(((1, 1),))),
            done(Extend(((1, 1),)), 2),
            done(Submit(((1, 1),))),
            *run(1),
            done(Release(1), 2),
            done(Add(2, 3), 0),
            done(Submit(((2, 3),))),
            done(Execute(2)),
            done(Execute(3)),
            done(Execute(4)),
            done(Retire(3), 2),
        ),
        faults.RowRecycled,
    ),
    Report(
        "vllm-project/vllm-ascend#14180",
        "R-LIFE-7",
        "the result of a step from before a preemption finished the request, which held no blocks by then",
        config(6, 2),
        (
            done(Add(2, 4), 4),
            done(Add(1, 3), 2),
            done(Submit(((1, 3),))),
            done(Release(1), 2),
            done(Add(1, 2), 1),
            done(Execute(1)),
            done(Retire(1), 3),
            done(Retire(1), 3),
            done(Submit(((1, 2),))),
            *run(2),
        ),
        faults.LateCompletion,
    ),
)

# ---- copy-on-write and boundaries -------------------------------------------------------------------------------

COPY_ON_WRITE = (
    Report(
        "xLLM-AI/xllm#1984",
        "R-COW-1",
        "beams that parted used new blocks without the contents of the old ones",
        config(4, 4),
        (
            done(Add(1, 3), 3),
            done(Submit(((1, 3),))),
            done(Fork(1, 2), 3),
            done(Extend(((2, 1),)), 2, extents=(3,)),
            done(Extend(((1, 1),)), 2),
            done(Submit(((1, 1),))),
            done(Submit(((2, 1),))),
            *map(done, map(Execute, (1, 2, 3))),
        ),
        faults.NoCopyOnWrite,
    ),
    Report(
        "neuralmagic/nm-vllm#3",
        "R-COW-4",
        "a partial tail that was shared let two continuations write one block",
        config(5, 2),
        (
            done(Add(1, 5), 2),
            done(Submit(((1, 5),))),
            done(Fork(1, 2), 2),
            done(Extend(((1, 1), (2, 1))), 1, extents=(1,)),
            done(Submit(((1, 1), (2, 1)))),
            *map(done, map(Execute, (1, 2))),
        ),
        faults.NoCopyOnWrite,
    ),
)
