"""vLLM and SGLang, as far as their caches and schedulers go: imported without the rest of them, and made.

Both are imported on first use, with stand-ins for what their other parts need (`peer_imports`). What is made here is
theirs, unchanged, and can be used without any adapter. Their block 0 is never handed out, and extra: `blocks` are the
usable ones. Tried on vLLM 0.33.0 and SGLang 0.5.23, each installed from PyPI without its dependencies.
"""

from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from pagedkv.bench.peer_imports import NOTHING, import_peer
from pagedkv.spec.requests import Limits

VLLM = {
    "managers": "vllm.v1.core.kv_cache_manager",
    "utils": "vllm.v1.core.kv_cache_utils",
    "interface": "vllm.v1.kv_cache_interface",
    "requests": "vllm.v1.request",
    "sampling": "vllm.sampling_params",
    "hashing": "vllm.utils.hashing",
    "configs": "vllm.config",
    "schedulers": "vllm.v1.core.sched.scheduler",
    "async_schedulers": "vllm.v1.core.sched.async_scheduler",
    "outputs": "vllm.v1.outputs",
}
VLLM_ABSENT = [
    "aiohttp",
    "cachetools",
    "cbor2",
    "fastapi",
    "llguidance",
    "msgspec",
    "openai",
    "openai_harmony",
    "partial_json_parser",
    "prometheus_client",
    "pybase64",
    "requests",
    "urllib3",
    "uvloop",
    "xgrammar",
    "zmq",
]
SGLANG = {
    "allocators": "sglang.srt.mem_cache.allocator",
    "pools": "sglang.srt.mem_cache.memory_pool",
    "radix": "sglang.srt.mem_cache.radix_cache",
    "parameters": "sglang.srt.mem_cache.cache_init_params",
    "common": "sglang.srt.mem_cache.common",
    "batches": "sglang.srt.managers.schedule_batch",
}
SGLANG_ABSENT = [
    "aiohttp",
    "compressed_tensors",
    "gguf",
    "IPython",
    "msgspec",
    "openai",
    "orjson",
    "partial_json_parser",
    "pybase64",
    "requests",
    "sentencepiece",
    "starlette",
    "torchvision",
    "tvm_ffi",
    "zmq",
]


@cache
def vllm() -> Any:
    """Return the modules of `VLLM` under their names, and what stood in as `stood_in`. Errors: `BadInput`."""
    engine = _parts(VLLM, VLLM_ABSENT, "pip install --no-deps vllm==0.33.0")
    engine.utils.init_none_hash(engine.hashing.sha256)
    return engine


@cache
def sglang() -> Any:
    """Return the modules of `SGLANG` under their names, and what stood in as `stood_in`. Errors: `BadInput`."""
    how = "pip install --no-deps sglang==0.5.23"
    return _parts(SGLANG, SGLANG_ABSENT, how, {"dill": "pickle"}, ("torch", "transformers"))


def _parts(
    names: Mapping[str, str],
    absent: Sequence[str],
    how: str,
    instead: Mapping[str, str] = NOTHING,
    first: Sequence[str] = (),
) -> Any:
    modules, stood_in = import_peer((*names.values(),), absent, how, instead, first)
    return SimpleNamespace(stood_in=stood_in, **dict(zip(names, modules, strict=True)))


def make_vllm_config(blocks: int, block_size: int) -> Any:
    """Return a KVCacheConfig of one group of full attention."""
    spec = vllm().interface.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=None)
    return vllm().interface.KVCacheConfig(blocks + 1, [], [vllm().interface.KVCacheGroupSpec(["layer"], spec)])


def make_vllm_manager(blocks: int, block_size: int, caching: bool = True) -> Any:  # noqa: FBT001, FBT002  (vLLM's word)
    """Return a KVCacheManager for requests as long as all blocks."""
    config, longest = make_vllm_config(blocks, block_size), (blocks + 1) * block_size
    return vllm().managers.KVCacheManager(config, longest, block_size, block_size, enable_caching=caching)


def make_vllm_request(name: int, ids: Sequence[int], block_size: int, salt: int = 0, **sampled: Any) -> Any:
    """Return a Request, which hashes its blocks as the engine has it do; what is left are its SamplingParams."""
    hasher = vllm().utils.get_request_block_hasher(block_size, vllm().hashing.sha256)
    params, salted = vllm().sampling.SamplingParams(**{"max_tokens": 1} | sampled), str(salt) if salt else None
    return vllm().requests.Request(str(name), [*ids], params, None, cache_salt=salted, block_hasher=hasher)


def make_vllm_scheduler(blocks: int, block_size: int, limits: Limits, **options: Any) -> Any:
    """Return a Scheduler, or an AsyncScheduler where two steps may be in flight; options are its SchedulerConfig's.

    What it reads of the model is that this is a plain decoder: one group of full attention, nothing speculative, no
    connector, no images.
    """
    longest, ahead, engine = (blocks + 1) * block_size, limits.steps_ahead > 1, vllm()
    off = "kv_transfer_config kv_events_config lora_config speculative_config ec_transfer_config"
    zero = "num_lookahead_tokens num_hash_lookahead_tokens num_prefill_lookahead_tokens num_speculative_tokens"
    no = "uses_mrope is_encoder_decoder is_diffusion supports_multimodal_inputs return_sampling_mask"
    scheduling = engine.configs.SchedulerConfig(
        max_model_len=longest,
        is_encoder_decoder=False,
        max_num_batched_tokens=min(limits.max_tokens_per_step, limits.max_running * longest),
        max_num_seqs=limits.max_running,
        async_scheduling=ahead,
        **options,
    )
    caching = engine.configs.CacheConfig(block_size=block_size, enable_prefix_caching=limits.prefix_cache)
    caching.num_gpu_blocks = blocks + 1
    config = SimpleNamespace(
        **dict.fromkeys(off.split()),
        **dict.fromkeys(zero.split(), 0),
        model_config=SimpleNamespace(max_model_len=longest, runner_type="generate", **dict.fromkeys(no.split(), False)),
        scheduler_config=scheduling,
        cache_config=caching,
        parallel_config=engine.configs.ParallelConfig(),
        observability_config=engine.configs.ObservabilityConfig(),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        use_v2_model_runner=True,
        max_concurrent_batches=limits.steps_ahead,
        max_in_flight_tokens=limits.steps_ahead * limits.max_tokens_per_step,
    )
    kind = engine.async_schedulers.AsyncScheduler if ahead else engine.schedulers.Scheduler
    grammars = SimpleNamespace(accept_tokens=lambda *_: True)
    return kind(config, make_vllm_config(blocks, block_size), grammars, block_size)


def make_sglang_manager(
    blocks: int,
    block_size: int,
    caching: bool = True,  # noqa: FBT001, FBT002  (as vLLM's)
    requests: int = 64,
    longest: int = 0,
) -> Any:
    """Return a RadixCache over a PagedTokenToKVPoolAllocator, with rows for so many requests, all on the CPU.

    Pages of one token have an allocator of their own, TokenToKVPoolAllocator, as SGLang chooses.
    """
    engine, slots = sglang(), blocks * block_size
    if block_size == 1:
        pages = engine.allocators.TokenToKVPoolAllocator(slots, None, "cpu", None, need_sort=False)
    else:
        paged = engine.allocators.PagedTokenToKVPoolAllocator
        pages = paged(slots, block_size, None, "cpu", None, need_sort=False)
    rows = engine.pools.ReqToTokenPool(requests, longest or slots + block_size, "cpu", enable_memory_saver=False)
    return engine.radix.RadixCache(engine.parameters.CacheInitParams(not caching, rows, pages, block_size))


def make_sglang_request(name: int, ids: Sequence[int], salt: int = 0) -> Any:
    """Return what the cache looks at of a Req, with its ReqKvInfo."""
    prompt, salted = array("q", ids), str(salt) if salt else None
    return SimpleNamespace(
        rid=name,
        kv=sglang().batches.ReqKvInfo(),
        origin_input_ids=prompt,
        full_untruncated_fill_ids=prompt[:],
        cache_salt=salted,
        extra_key=None,
        priority=0,
    )
