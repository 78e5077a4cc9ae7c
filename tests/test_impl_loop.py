"""The loop by example: what is sampled, what a failure costs, what is refused.

Expected tokens come from the dense oracle: one sequence at a time, no cache, no batch, one token after the other.
"""

import contextlib
import random
import weakref
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from pagedkv.bench import loop_speed
from pagedkv.bench.lookup_model import LookupModel
from pagedkv.impl.cache import BlockCache
from pagedkv.impl.device import CudaDevice, Device, DeviceFailed, DeviceLost, ThreadDevice
from pagedkv.impl.loop import Loop, Step
from pagedkv.impl.model import Projection
from pagedkv.impl.refusals import Duplicate, InvalidArgument
from pagedkv.impl.requests import Limits, Request
from pagedkv.impl.scheduler import Scheduler
from pagedkv.impl.staging import StagingBuffer
from pagedkv.impl.storage import KvShape, Storage
from torch import Tensor

from cuda_stand_in import cuda_stand_in
from triton_cases import kernels_on

SHAPE = KvShape(2, 2, 16, torch.float32)
VOCABULARY, LONGEST, BLOCK_SIZE = 29, 80, 4
MODEL = LookupModel.make(SHAPE, 4, VOCABULARY, LONGEST)
TWO_AHEAD = Limits(max_tokens_per_step=16, max_running=6, steps_ahead=2)


def make_loop(
    limits: Limits,
    *,
    blocks: int = 24,
    model: Any = MODEL,
    device: Device | None = None,
    stop_tokens: Sequence[int] = (),
) -> Loop:
    cache = BlockCache(blocks, BLOCK_SIZE, rows=2, max_blocks_per_row=1)  # so that the table grows, too
    storage = Storage(SHAPE, blocks, BLOCK_SIZE)
    return Loop(Scheduler(cache, limits), storage, model, device or ThreadDevice(), stop_tokens=stop_tokens)


def some_requests() -> list[Request]:
    """Eight requests, some with two samples."""
    chance = random.Random(5)
    prompts = [[chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 17))] for _ in range(8)]
    return [Request(n, prompt, chance.randint(1, 9), chance.choice((1, 1, 2))) for n, prompt in enumerate(prompts)]


def expected(requests: list[Request]) -> list[list[int]]:
    """What the sequences of requests should be given, in the order of their names."""
    answers = []
    for request in requests:
        for ordinal in range(request.samples):
            tokens: list[int] = list(request.prompt)  # type: ignore[arg-type]  # a list here
            for output in range(request.outputs):
                scores = MODEL.scores(MODEL.expected(tokens, len(tokens) - 1)[1])
                tokens.append((int(scores.argmax()) + (ordinal if output == 0 else 0)) % VOCABULARY)
            answers.append(tokens[-request.outputs :])
    return answers


def run(loop: Loop, requests: list[Request]) -> tuple[list[list[int]], list[Step]]:
    """Run requests to their end; return what each sequence was given, in the order of their names, and the steps."""
    found: dict[int, list[int]] = {name: [] for request in requests for name in loop.submit(request)}
    steps = []
    with loop:
        while (step := loop.step()).busy:
            steps.append(step)
            if step.collected is not None:
                taken = step.collected.taken
                names, tokens = step.collected.names[taken].tolist(), step.collected.sampled[taken].tolist()
                for name, token in zip(names, tokens, strict=True):
                    found[name].append(token)
    loop.scheduler.cache.check()
    assert loop.scheduler.requests() == []
    assert loop.worker.staging.in_use == 0
    return list(found.values()), steps


# ---- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_tokens_per_step=4, max_running=2),
        Limits(max_tokens_per_step=4, max_running=2, steps_ahead=2),
        TWO_AHEAD,
    ],
    ids=["in chunks", "in chunks, two ahead", "two ahead"],
)
def test_tokens_are_those_of_a_run_without_cache_and_batch(limits: Limits) -> None:
    found, _ = run(make_loop(limits), some_requests())
    assert found == expected(some_requests())


def test_a_pool_that_is_too_small_changes_no_token() -> None:
    found, steps = run(make_loop(TWO_AHEAD, blocks=14), some_requests())
    assert sum(len(step.plan.preempted) for step in steps) > 0
    assert found == expected(some_requests())


def test_a_stop_token_ends_a_sample() -> None:
    unstopped = expected(some_requests())
    stop = next(tokens[1] for tokens in unstopped if len(tokens) > 2)
    found, _ = run(make_loop(TWO_AHEAD, stop_tokens=[stop]), some_requests())
    assert found == [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in unstopped]
    assert found != unstopped


def test_whoever_is_cancelled_is_given_nothing_more() -> None:
    requests = some_requests()
    with make_loop(TWO_AHEAD) as loop:
        names = [loop.submit(request) for request in requests]
        loop.plan()
        loop.plan()
        loop.scheduler.cancel(0)
        collected = loop.collect()
        assert collected is not None
        assert not set(collected.names[collected.taken].tolist()) & set(names[0])
        loop.run()
        assert loop.scheduler.cache.available == loop.scheduler.cache.blocks


def test_the_way_of_a_gpu_is_rehearsed_streams_and_triton_both() -> None:
    """Queued on streams that are stood in for; the Triton kernels interpreted, their accesses watched, unchecked."""
    requests = [Request(0, [3, 1, 4], 3, samples=2), Request(1, [3, 1, 4, 1, 5], 2)]
    unchecked = mock.patch("pagedkv.kernels.contents.is_checked", return_value=False)
    triton = mock.patch("pagedkv.kernels.dispatch.choose_backend", return_value="triton")
    with cuda_stand_in(), kernels_on("triton"), unchecked, triton:
        found, steps = run(make_loop(TWO_AHEAD, device=CudaDevice(torch.device("cpu"))), requests)
    assert found == expected(requests)
    assert sum(step.plan.launch.copies.targets.size for step in steps if step.plan.launch is not None) == 1


def test_planning_launching_and_retiring_are_ranges_on_a_gpu() -> None:
    """One step ahead, a prompt and one token more; the wait between launch and retirement is in no range."""
    with cuda_stand_in() as ranges, make_loop(Limits(), device=CudaDevice(torch.device("cpu"))) as loop:

        def wait(*_: object) -> object:
            ranges.seen.append("waits")
            return np.array([5])

        loop.submit(Request(1, [3, 4], 2))
        with mock.patch.object(Loop, "_wait_for", wait):
            loop.run()
    step = [f"pagedkv.{part} {end}" for part in ("plan", "launch") for end in ("begins", "ends")]
    step += ["waits", "pagedkv.retire begins", "pagedkv.retire ends"]
    assert ranges.seen == [*step, *step, "pagedkv.plan begins", "pagedkv.plan ends"]


def test_without_a_gpu_there_are_no_ranges() -> None:
    with cuda_stand_in() as ranges:
        run(make_loop(TWO_AHEAD), some_requests()[:2])
    assert ranges.seen == []


# ---- what goes wrong ------------------------------------------------------------------------------------------------


class FailsNowAndThen:
    """The model, which raises in every fourth launch, when layer 0 is already written."""

    q_heads = MODEL.q_heads

    def __init__(self) -> None:
        self.launches = 0

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        self.launches += 1
        return MODEL.embed(tokens, positions)

    def project(self, layer: int, hidden: Tensor) -> Projection:
        if layer == 1 and self.launches % 4 == 0:
            raise RuntimeError("out of luck")
        return MODEL.project(layer, hidden)

    def mix(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        return MODEL.mix(layer, hidden, attention)

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        return MODEL.sample(hidden, ordinals)


@pytest.mark.parametrize("steps_ahead", [1, 2])
@pytest.mark.parametrize("cuda", [False, True])
def test_a_launch_that_fails_costs_a_recompute_and_no_token(steps_ahead: int, cuda: bool) -> None:  # noqa: FBT001  (read with its name)
    limits = Limits(max_tokens_per_step=32, max_running=3, steps_ahead=steps_ahead)
    with cuda_stand_in():
        device = CudaDevice(torch.device("cpu")) if cuda else ThreadDevice()
        found, steps = run(make_loop(limits, model=FailsNowAndThen(), device=device), some_requests())
    errors = [step.collected.error for step in steps if step.collected is not None and step.collected.error]
    assert errors
    assert "out of luck" in str(errors[0])
    assert all(isinstance(error, DeviceFailed) for error in errors)
    assert found == expected(some_requests())


def test_run_says_what_failed_and_can_go_on() -> None:
    with make_loop(TWO_AHEAD, model=FailsNowAndThen()) as loop:
        for request in some_requests():
            loop.submit(request)
        with pytest.raises(DeviceFailed, match="out of luck"):
            loop.run()
        assert len(loop.scheduler.requests()) > 0
        while loop.scheduler.requests():
            with contextlib.suppress(DeviceFailed):
                loop.run()


@pytest.mark.parametrize("cuda", [False, True])
def test_where_an_upload_fails_the_device_is_lost(cuda: bool) -> None:  # noqa: FBT001  (read with its name)
    with cuda_stand_in(), make_loop(TWO_AHEAD, device=CudaDevice(torch.device("cpu")) if cuda else None) as loop:
        loop.submit(Request(1, [3, 4], 5))
        loop.plan()
        loop._in_flight[0].fence.wait()  # else its upload, on a thread, may meet the broken bus, too
        with mock.patch.object(StagingBuffer, "send", side_effect=OSError("bus off")):
            loop.plan()
            assert loop.collect() is not None
            for _ in range(2):
                with pytest.raises(DeviceLost, match="bus off"):
                    loop.collect()
        assert loop.in_flight == 1
        loop.plan()
        with pytest.raises(DeviceLost, match="bus off"):
            loop.collect()


def test_a_table_that_grows_stays_for_the_launch_in_flight() -> None:
    """On a GPU its memory would be given to the next one who asks, while a kernel reads it."""
    with cuda_stand_in(), make_loop(TWO_AHEAD, device=CudaDevice(torch.device("cpu"))) as loop:
        loop.submit(Request(1, [3, 4], 5))
        loop.plan()
        table = weakref.ref(loop.worker.mirror.table)
        loop.submit(Request(2, [5] * 30, 5))
        loop.plan()
        assert loop.worker.mirror.table is not table()
        assert table() is not None
        loop.collect()
        assert table() is None


class SamplesNonsense(FailsNowAndThen):
    """The model, but in every third launch what it samples is no token."""

    def __init__(self, nonsense: int) -> None:
        super().__init__()
        self.nonsense = nonsense

    def project(self, layer: int, hidden: Tensor) -> Projection:
        return MODEL.project(layer, hidden)

    def sample(self, hidden: Tensor, ordinals: Tensor) -> Tensor:
        sampled = MODEL.sample(hidden, ordinals)
        return torch.full_like(sampled, self.nonsense) if self.launches % 3 == 0 else sampled


@pytest.mark.parametrize("nonsense", [-97, 2**31])
@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_launch_that_samples_no_token_has_failed_and_costs_a_recompute(nonsense: int, steps_ahead: int) -> None:
    limits = Limits(max_tokens_per_step=32, max_running=3, steps_ahead=steps_ahead)
    found, steps = run(make_loop(limits, model=SamplesNonsense(nonsense)), some_requests())
    collected = [step.collected for step in steps if step.collected is not None]
    said = [str(one.error) for one in collected if one.error is not None]
    assert (
        f"launch 3 sampled what is no token: token ids must be 0 to 2147483647, and there is one of {nonsense}" in said
    )
    assert any(one.preempted for one in collected)
    assert found == expected(some_requests())


def test_a_number_for_a_prompt_is_refused_on_the_scheduler_too_and_others_go_on() -> None:
    requests = some_requests()
    loop = make_loop(TWO_AHEAD)
    for number in (5, np.int64(5)):
        with pytest.raises(
            InvalidArgument, match="request 99 has a number for a prompt: to compute it takes token ids"
        ):
            loop.scheduler.submit(Request(99, number, outputs=2))  # type: ignore[arg-type]  # numpy's, too
    with pytest.raises(InvalidArgument, match="number for a prompt"):
        loop.scheduler.clone().submit(Request(99, 5, outputs=2))
    assert loop.scheduler.requests() == []
    found, _ = run(loop, requests)
    assert found == expected(requests)


def test_a_cache_in_which_something_is_published_is_refused() -> None:
    """Its blocks would be hit, and what was computed into them is in another storage."""
    requests = some_requests()
    first = make_loop(TWO_AHEAD)
    run(first, requests)
    cache = first.scheduler.cache
    assert cache.published().size
    storage = Storage(SHAPE, cache.blocks, BLOCK_SIZE)
    with pytest.raises(InvalidArgument, match="published already"):
        Loop(Scheduler(cache, TWO_AHEAD), storage, MODEL, ThreadDevice())
    cache.clear()
    found, _ = run(Loop(Scheduler(cache, TWO_AHEAD), storage, MODEL, ThreadDevice()), requests)
    assert found == expected(requests)


def test_a_sequence_that_is_not_the_schedulers_is_refused() -> None:
    scheduler = Scheduler(BlockCache(24, BLOCK_SIZE), TWO_AHEAD)
    scheduler.cache.add(7, 3)
    with pytest.raises(InvalidArgument, match="at work already"):
        Loop(scheduler, Storage(SHAPE, 24, BLOCK_SIZE), MODEL, ThreadDevice())


def test_arguments_of_another_kind_are_refused_in_one_line() -> None:
    with make_loop(TWO_AHEAD) as loop:
        good: list[Any] = [loop.scheduler, loop.worker.storage, MODEL, loop.worker.device]
        for place, bad, said in (
            (0, loop.scheduler.cache, "a loop's scheduler must be a Scheduler, not <"),
            (1, SHAPE, "a loop's storage must be a Storage, not KvShape"),
            (2, "llama", "the model's q_heads must be an integer, not None"),
            (3, "cpu", "a loop's device must be one that open_device returns, not 'cpu'"),
            (3, torch.device("cpu"), "a loop's device must be one that open_device returns, not device"),
        ):
            arguments = [*good]
            arguments[place] = bad
            with pytest.raises(InvalidArgument, match=said) as refused:
                Loop(*arguments)
            assert "\n" not in str(refused.value)
        for submit in (loop.submit, loop.scheduler.submit):
            with pytest.raises(InvalidArgument, match=r"must be a Request\(id, prompt, outputs\), not \[1, 2\]"):
                submit([1, 2])  # type: ignore[arg-type]  # refused


def test_what_cannot_be_computed_is_refused() -> None:
    with make_loop(TWO_AHEAD) as loop:
        with pytest.raises(InvalidArgument, match="token ids"):
            loop.submit(Request(1, 12, 5))
        with pytest.raises(InvalidArgument, match="token ids"):
            loop.submit(Request(1, np.int64(12), 5))  # type: ignore[arg-type]  # a number all the same
        loop.submit(Request(1, [1, 2], 5))
        with pytest.raises(Duplicate):
            loop.submit(Request(1, [1, 2], 5))
        with pytest.raises(InvalidArgument, match="at work already"):
            Loop(loop.scheduler, loop.worker.storage, MODEL, loop.worker.device)
        odd = LookupModel.make(SHAPE, 3, VOCABULARY, LONGEST)
        with pytest.raises(InvalidArgument, match="3 query heads"):
            Loop(Scheduler(BlockCache(24, 4), TWO_AHEAD), loop.worker.storage, odd, loop.worker.device)
        meta = Storage(SHAPE, 24, 4, device="meta")
        with pytest.raises(InvalidArgument, match="the storage is on meta"):
            Loop(Scheduler(BlockCache(24, 4), TWO_AHEAD), meta, MODEL, loop.worker.device)
        with pytest.raises(InvalidArgument, match="of one size"):
            Loop(Scheduler(BlockCache(24, 2), TWO_AHEAD), loop.worker.storage, MODEL, loop.worker.device)


# ---- figures --------------------------------------------------------------------------------------------------------


def test_what_goes_up_in_a_step_of_decode_does_not_grow_with_the_context() -> None:
    with make_loop(TWO_AHEAD, blocks=200) as loop:
        loop.submit(Request(1, [1] * 8, LONGEST - 8))
        steps = []
        while (step := loop.step()).busy:
            steps.append(step.bytes_uploaded)
    decode = [uploaded for uploaded in steps[1:] if uploaded]
    assert len(set(decode)) == 2  # with a block taken, and without
    assert max(decode) - min(decode) == 32  # one cell: its place and its block, each 16 bytes at least
    assert [at for at, uploaded in enumerate(decode[:8]) if uploaded == max(decode)] == [0, 4]


def test_the_command_prints_what_a_step_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert loop_speed.main(["--sequences", "20", "--steps", "3"]) in (0, 1)
    said = capsys.readouterr().out
    assert "20 sequences decode" in said
    assert "all outside kernels" in said
    with pytest.raises(SystemExit) as ended:
        loop_speed.main(["--sequences", "0"])
    assert ended.value.code == 2
