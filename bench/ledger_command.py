"""`pagedkv ledger`: how many bytes so many tokens take, and how many tokens and sequences so many bytes hold.

The command around `pagedkv.spec.ledger`, which has the formulas. What the spec leaves to its caller comes from the code
that runs: the kernels' scratch from their own plans (`kernel_workspace`), the manager's state from a manager
(`manager_memory`), the model from a table or from its `config.json`.
"""

import math
from dataclasses import asdict
from fractions import Fraction
from typing import Annotated, Any

import typer
from pagedkv.bench.amounts import bytes_of, in_words
from pagedkv.bench.failures import BadInput
from pagedkv.bench.manager_memory import bytes_a_block, bytes_a_row
from pagedkv.bench.model_configs import model_files, model_of
from pagedkv.bench.model_options import Dtype, KvDtype, Model
from pagedkv.bench.options import JsonFile, Seed, invoked_as
from pagedkv.bench.result_files import output_file, write_json
from pagedkv.spec.counts import counted
from pagedkv.spec.ledger import (
    Demand,
    ModelShape,
    Terms,
    heads_on_rank,
    ledger,
    sequences_that_fit,
    token_bytes,
    tokens_that_fit,
    usable_blocks,
)
from rich.console import Console
from rich.table import Table
from rich.text import Text

TOKENS_MAX = 1 << 24  # of one sequence: plans beyond it are larger than what they plan
NOT_ASKED = "Without --tokens a sequence is as long as memory holds, which may be beyond the model's context length."
LEDGER_EXAMPLE = "Example: pagedkv ledger --model Llama-3.1-8B --tokens 8192 --sequences 32 --memory 64GiB"


def ledger_command(
    context: typer.Context,
    *,
    model: Model,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, max=TOKENS_MAX, help="Positions of a sequence; by default as many as --memory holds."),
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, max=1 << 24, help="Sequences at one time.")] = 1,
    shared_tokens: Annotated[int, typer.Option(min=0, help="Leading tokens that all sequences share.")] = 0,
    memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Also: what fits into so much a rank (24GiB), weights apart.")
    ] = None,
    kv_dtype: Dtype = KvDtype.BF16,
    block_size: Annotated[int, typer.Option(min=1, max=TOKENS_MAX, help="Tokens a block.")] = 16,
    tensor_parallel: Annotated[int, typer.Option(min=1, max=1024, help="Ranks that share the heads.")] = 1,
    step_tokens: Annotated[int, typer.Option(min=1, max=1 << 20, help="New tokens of the largest prefill.")] = 2048,
    headroom: Annotated[float, typer.Option(min=0, max=100, help="Per cent kept free, on top of the rest.")] = 0.0,
    windows: Annotated[
        bool, typer.Option("--windows/--no-windows", help="Blocks that have left a layer's window are let go, or not.")
    ] = True,
    json_file: JsonFile = None,
    seed: Seed = 0,  # noqa: ARG001  (nothing in it is random; every command takes one)
) -> None:
    """Say what a KV cache costs, line by line: bytes for tokens, and tokens and sequences for bytes.

    Subtracted is what is really not stored: heads that are on other ranks, shared whole blocks, and what has left
    a window (--no-windows: for managers that keep it, as this project's does so far). Weights are not in it.
    """
    from pagedkv.bench.kernel_workspace import workspace_of  # noqa: PLC0415  (torch takes seconds to import)

    shape = model_of(model)
    amount = None if memory is None else bytes_of(memory, "--memory")
    if json_file is not None:
        json_file = output_file(json_file, "--json", keep=model_files(model))
    _check(shape, tensor_parallel, headroom)
    terms = Terms(
        block_size=block_size,
        dtype_bytes=kv_dtype.torch.itemsize,
        ranks=tensor_parallel,
        headroom=Fraction(str(headroom)) / 100,
        drops_windows=windows,
        workspace=workspace_of(shape, tensor_parallel, step_tokens, drops_windows=windows),
        block_metadata_bytes=bytes_a_block(block_size),
        row_metadata_bytes=bytes_a_row(block_size),
    )
    asked = tokens is not None
    if tokens is None:
        tokens = _longest(shape, terms, sequences, amount)
    if shared_tokens >= tokens:
        what = f"a sequence has {counted(tokens, 'token')}, and the last is always its own"
        raise BadInput(f"--shared-tokens {shared_tokens}", what, "share fewer")
    demand = Demand(sequences, tokens, shared_tokens)
    facts = _facts(shape, terms, demand, kv_dtype, amount)
    command = invoked_as(context)
    _print(shape, facts, command, asked=asked)
    if json_file is not None:
        write_json(json_file, {"command": command} | facts)


def _check(model: ModelShape, ranks: int, headroom: float) -> None:
    if math.isnan(headroom):  # no bound of an option stops it
        raise BadInput("--headroom", "not a number", "give per cent from 0 to 100")
    if model.q_heads % ranks:
        what = f"{model.q_heads} query heads of {model.name} do not divide by it"
        raise BadInput(f"--tensor-parallel {ranks}", what, "give a number of ranks that divides them")


def _longest(model: ModelShape, terms: Terms, sequences: int, memory: int | None) -> int:
    """Give the length that memory holds, where none is asked for."""
    if memory is None:
        raise BadInput("--tokens", "neither tokens nor memory are given", "give --tokens, --memory, or both")
    longest = tokens_that_fit(model, terms, sequences, memory, TOKENS_MAX)
    if not longest:
        what = f"{in_words(memory)} do not hold {counted(sequences, 'sequence')} of one token"
        raise BadInput("--memory", what, "give more, or ask about fewer --sequences")
    return longest


def _facts(model: ModelShape, terms: Terms, demand: Demand, kv_dtype: KvDtype, memory: int | None) -> dict[str, Any]:
    counted = ledger(model, terms, demand)
    facts: dict[str, Any] = {
        "model": model.name,
        "layers": model.layers,
        "kv_heads_a_rank": [heads_on_rank(model.q_heads, group.kv_heads, terms.ranks) for group in model.groups],
        "groups": [asdict(group) for group in model.groups],
        "kv_dtype": kv_dtype.value,
        "block_size": terms.block_size,
        "tensor_parallel": terms.ranks,
        "windows": terms.drops_windows,
        **asdict(demand),
        "token_bytes": token_bytes(model, terms),
        "block_bytes": token_bytes(model, terms) * terms.block_size,
        **asdict(counted),
        "device_bytes": counted.device_bytes,
        "all_ranks_bytes": counted.device_bytes * terms.ranks,
    }
    if memory is not None:
        facts |= {
            "memory_bytes": memory,
            "fits": counted.device_bytes <= memory,
            "sequences_that_fit": sequences_that_fit(model, terms, demand.tokens, memory, demand.shared_tokens),
            "tokens_that_fit": tokens_that_fit(model, terms, demand.sequences, memory, TOKENS_MAX),
            "usable_blocks": usable_blocks(model, terms, memory),
        }
    return facts


def _print(model: ModelShape, facts: dict[str, Any], command: str, *, asked: bool) -> None:
    """Print table and lines; `asked`: the tokens of a sequence were given, and not found for the memory."""
    sequences, tokens, ranks = facts["sequences"], facts["tokens"], facts["tensor_parallel"]
    title = f"{model.name}: {sequences:,} x {counted(tokens, 'token')}, {facts['kv_dtype']}"
    table = Table(title=Text(f"{title}, blocks of {facts['block_size']:,}, rank 1 of {ranks}"), title_justify="left")
    table.add_column("figure")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    table.add_column("meaning")
    for name, meaning in _meanings(model, facts).items():
        table.add_row(name, f"{facts[name]:,}", in_words(facts[name]), meaning, end_section=name == "device_bytes")
    console = Console(emoji=False)
    console.print(table)
    if "memory_bytes" in facts:
        for line in (*_fitting(facts), *([] if asked else [NOT_ASKED])):
            console.print(line, highlight=False)
    console.print(command, markup=False, highlight=False, soft_wrap=True)


def _fitting(facts: dict[str, Any]) -> list[str]:
    """Say what fits into the memory that was named."""
    many, longest, blocks = facts["sequences_that_fit"], facts["tokens_that_fit"], facts["usable_blocks"]
    pool = f"{counted(blocks, 'usable block')}, {counted(blocks * facts['block_size'], 'token')}"
    more = " or more" if longest == TOKENS_MAX else ""
    return [
        "Weights and activations are not in it: take them off --memory first.",
        f"Into {in_words(facts['memory_bytes'])} this {'fits' if facts['fits'] else 'does not fit'}.",
        f"Sequences of {counted(facts['tokens'], 'token')} that fit: {many:,}.",
        f"Tokens that each of {facts['sequences']:,} could have, nothing shared: {longest:,}{more}.",
        f"Were all of it a pool in which every layer keeps every token, without scratch and headroom: {pool}.",
    ]


def _meanings(model: ModelShape, facts: dict[str, Any]) -> dict[str, str]:
    """Give the rows of the table that hold bytes, in order, each with what it means."""
    heads = " and ".join(
        f"{group.layers} x {heads} x {group.numbers}" + (f" (window {group.window:,})" if group.window else "")
        for group, heads in zip(model.groups, facts["kv_heads_a_rank"], strict=True)
    )
    shared = f", {facts['shared_tokens']:,} shared" if facts["shared_tokens"] else ""
    return {
        "token_bytes": f"a token in all layers: layers x heads x numbers {heads}",
        "block_bytes": f"a block of {counted(facts['block_size'], 'token')} in all layers",
        "kv_bytes": f"K and V of all positions that are kept{shared}",
        "tail_waste_bytes": f"slots that no kept position fills, of {counted(facts['blocks'], 'block')}",
        "null_block_bytes": "block 0, in every layer",
        "block_table_bytes": "int32, a row a sequence",
        "workspace_bytes": "scratch, work lists and slot mappings of the kernels",
        "headroom_bytes": "kept free",
        "device_bytes": "in all, on each rank",
        "host_metadata_bytes": "block tables and the manager's state, on the host",
        "replicated_bytes": f"K and V that several of {facts['tensor_parallel']:,} ranks store, beyond the first",
        "all_ranks_bytes": "on all devices",
    }
