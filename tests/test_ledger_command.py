"""`pagedkv ledger` as a user meets it: models from a table or a config.json, both directions, what can be wrong."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench.command_line import run
from pagedkv.bench.model_configs import model_of
from pagedkv.bench.model_shapes import MODELS
from pagedkv.spec.ledger import LayerGroup

Captured = pytest.CaptureFixture[str]

# Fields of published config.json files, those that matter; gemma-3 leaves out what its class has as a default.
CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "meta-llama/Llama-2-7b-hf": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "Qwen/Qwen2.5-7B": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    "Qwen/Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "mistralai/Mistral-7B-v0.1": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "google/gemma-2-9b": {
        "model_type": "gemma2",
        "hidden_size": 3584,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 4096,
    },
    "google/gemma-3-4b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    },
    "google/gemma-3-12b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 3840,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "sliding_window": 1024,
        },
    },
    "openai/gpt-oss-20b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "head_dim": 64,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "deepseek-ai/DeepSeek-V3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
}


def written(folder: Path, config: object, name: str = "config.json") -> Path:
    """Write a configuration and return its file."""
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_the_table_says(tmp_path: Path, name: str) -> None:
    found = model_of(str(written(tmp_path, CONFIGS[name])))
    known = MODELS[name]
    assert (found.q_heads, found.head_size, found.groups) == (known.q_heads, known.head_size, known.groups)
    assert model_of(str(tmp_path)) == found, "a folder stands for its config.json"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "llama-3.1-8b", "LLAMA-3.1-8B"])
def test_a_name_is_found_with_or_without_its_organisation(name: str) -> None:
    assert model_of(name) is MODELS["meta-llama/Llama-3.1-8B"]


def test_a_field_that_says_no_changes_nothing(tmp_path: Path) -> None:
    config = CONFIGS["meta-llama/Llama-3.1-8B"] | {"multi_query": False, "num_kv_shared_layers": 0}
    assert model_of(str(written(tmp_path, config))).groups == (LayerGroup(32, 8, 256),)


def test_windows_from_a_certain_layer_on(tmp_path: Path) -> None:
    config = CONFIGS["Qwen/Qwen2.5-7B"] | {"use_sliding_window": True, "max_window_layers": 20, "sliding_window": 512}
    assert model_of(str(written(tmp_path, config))).groups == (LayerGroup(20, 4, 256), LayerGroup(8, 4, 256, 512))


def test_chunks_are_kept_one_at_a_time(tmp_path: Path) -> None:
    kinds = ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"] * 8
    config = CONFIGS["meta-llama/Llama-3.1-8B"] | {"layer_types": kinds, "attention_chunk_size": 8192}
    assert model_of(str(written(tmp_path, config))).groups == (LayerGroup(8, 8, 256), LayerGroup(24, 8, 256, 8192))


LLAMA = CONFIGS["meta-llama/Llama-3.1-8B"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
        ({}, "no num_hidden_layers"),
        ({"num_hidden_layers": 32}, "no num_attention_heads"),
        (LLAMA | {"hidden_size": None}, "no hidden_size"),
        (LLAMA | {"hidden_size": 4100}, "does not divide by 32 heads"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers is True"),
        (LLAMA | {"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824"),
        (LLAMA | {"num_key_value_heads": 5}, "do not divide into 5"),
        (LLAMA | {"num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        (LLAMA | {"sliding_window": 4096}, "nothing says on which layers"),
        (LLAMA | {"layer_types": ["full_attention"]}, "does not name 32 layers"),
        (LLAMA | {"layer_types": ["linear_attention"] * 32}, "'linear_attention', whose state is not known"),
        (LLAMA | {"layer_types": ["sliding_attention"] * 32}, "no sliding_window"),
        ({**LLAMA, "num_key_value_heads": None, "multi_query": True}, "multi_query is given"),
        (LLAMA | {"num_kv_shared_layers": 15}, "num_kv_shared_layers is given"),
        (LLAMA | {"attention_chunk_size": 8192}, "attention_chunk_size is given, and nothing says"),
        (CONFIGS["deepseek-ai/DeepSeek-V3"] | {"qk_rope_head_dim": None}, "no qk_rope_head_dim"),
    ],
)
def test_a_config_that_says_too_little_is_one_line(capsys: Captured, tmp_path: Path, config: object, said: str) -> None:
    file = written(tmp_path, config)
    assert run(["ledger", "--model", str(file), "--tokens", "10"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"pagedkv: {file}: ")
    assert said in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "Llama-3.1-9"], "did you mean meta-llama/Llama-3.1-8B"),
        (["--model", "zzz"], "known are meta-llama/Llama-2-7b-hf"),
        (["--model", "missing/config.json"], "there is no such file"),
        (["--model", "a\0b"], "no model of that name"),
        (["--model", "x" * 5000], "no model of that name"),
        (["--model", "phi-4", "--tensor-parallel", "3"], "40 query heads of microsoft/phi-4 do not divide"),
        (["--model", "phi-4", "--shared-tokens", "10"], "the last is always its own"),
        (["--model", "phi-4", "--memory", "lots"], "'lots' is no amount of memory"),
        (["--model", "phi-4", "--memory", "1iB"], "is no amount of memory"),
        (["--model", "phi-4", "--memory", "0"], "is not from 1 byte"),
        (["--model", "phi-4", "--memory", "9999999999TB"], "is not from 1 byte"),
        (["--model", "phi-4", "--block-size", "0"], "--block-size"),
        (["--model", "phi-4", "--headroom", "-1"], "--headroom"),
        (["--model", "phi-4", "--headroom", "nan"], "--headroom"),
        (["--model", "phi-4", "--kv-dtype", "int3"], "--kv-dtype"),
        (["--model", "phi-4", "--json", "missing/x.json"], "there is no folder"),
    ],
)
def test_bad_input_is_one_line(capsys: Captured, arguments: list[str], said: str) -> None:
    assert run(["ledger", "--tokens", "10", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err
    assert output.err.count("\n") == 1


def _facts(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = tmp_path / "ledger.json"
    assert run(["ledger", *arguments, "--json", str(result)]) == 0
    facts: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return facts


def test_json_has_every_line_and_the_command(tmp_path: Path) -> None:
    arguments = ["--model", "Llama-3.1-8B", "--tokens", "100", "--sequences", "3", "--no-windows"]
    facts = _facts(tmp_path, *arguments, "--tensor-parallel", "16", "--dtype", "fp8_e4m3")
    assert shlex.split(facts["command"])[:4] == ["pagedkv", "ledger", "--model", "Llama-3.1-8B"]
    assert (facts["token_bytes"], facts["kv_heads_a_rank"], facts["blocks"]) == (131_072 // 8 // 2, [1], 21)
    assert facts["kv_bytes"] == 300 * facts["token_bytes"]
    assert facts["tail_waste_bytes"] == (21 * 16 - 300) * facts["token_bytes"]
    parts = ("kv", "tail_waste", "null_block", "block_table", "workspace", "headroom")
    assert sum(facts[f"{part}_bytes"] for part in parts) == facts["device_bytes"]
    assert facts["all_ranks_bytes"] == 16 * facts["device_bytes"]
    assert facts["replicated_bytes"] == 300 * 65_536
    assert "memory_bytes" not in facts


def test_both_ways_agree(tmp_path: Path) -> None:
    """What a ledger says so many sequences take holds so many sequences, and one byte less does not."""
    arguments = ["--model", "Qwen3-8B", "--tokens", "1000", "--sequences", "7", "--headroom", "12.5"]
    needed = _facts(tmp_path, *arguments)["device_bytes"]
    exact, short = (_facts(tmp_path, *arguments, "--memory", str(needed - less)) for less in (0, 1))
    assert (exact["fits"], exact["sequences_that_fit"]) == (True, 7)
    assert (short["fits"], short["sequences_that_fit"]) == (False, 6)
    assert exact["tokens_that_fit"] >= 1000 > short["tokens_that_fit"]


def test_memory_alone_is_asked_how_long_a_sequence_may_be(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["--model", "Qwen3-8B", "--sequences", "3"]
    facts = _facts(tmp_path, *arguments, "--memory", "8GiB")
    assert "as long as memory holds, which may be beyond the model's context length" in " ".join(
        capsys.readouterr().out.split()
    )
    assert facts["tokens"] == facts["tokens_that_fit"]
    assert facts["fits"]
    longer = _facts(tmp_path, *arguments, "--memory", "8GiB", "--tokens", str(facts["tokens"] + 1))
    assert not longer["fits"]
    capsys.readouterr()
    assert run(["ledger", *arguments]) == run(["ledger", *arguments, "--memory", "512"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "neither tokens nor memory are given" in first
    assert "512 B do not hold 3 sequences of one token" in second


def test_the_table_and_what_fits(capsys: Captured) -> None:
    command = ["ledger", "--model", "gemma-3-12b-it", "--tokens", "32768", "--memory", "24GiB"]
    assert run(command) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = {line.split()[1]: line.split()[3] for line in output.out.splitlines() if line.startswith("│ ")}
    assert [rows[name] for name in ("kv_bytes", "token_bytes")] == ["2,483,027,968", "393,216"]
    assert "Into 24.00 GiB this fits." in output.out
    assert "Weights and activations are not in it: take them off --memory first." in output.out
    assert "context length" not in output.out, "its tokens were asked for"
    assert output.out.splitlines()[-1] == shlex.join(["pagedkv", *command])


def test_a_window_has_no_end(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["--model", "Mistral-7B-v0.1", "--tokens", "8192", "--memory", "1GiB"]
    assert _facts(tmp_path, *arguments)["tokens_that_fit"] == 1 << 24
    assert "16,777,216 or more." in capsys.readouterr().out
