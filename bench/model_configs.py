"""A model's shape out of its Hugging Face `config.json`: the fields that its KV cache depends on, and no guess.

What is read: `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`, `head_dim` (else `hidden_size` over
heads), the window and on which layers it is, `kv_lora_rank` and `qk_rope_head_dim` (multi-head latent attention). The
language model of a multimodal one is in its `text_config`.

Which layers have the window is said in four ways, tried in this order: `layer_types`, one word a layer (transformers
since 4.53); `sliding_window_pattern`, where every n-th layer is full (Gemma 3, Cohere 2); `use_sliding_window` with
`max_window_layers`, from which layer on (Qwen 2 and 3); or by what the model type is known to mean. A window of which
nothing says where it is, a kind of layer whose state is no K and V, or a missing number is refused: a ledger that is
wrong by a factor is worse than none.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from pagedkv.bench.failures import BadInput, quoted
from pagedkv.bench.model_shapes import latent, model_named
from pagedkv.spec.ledger import LayerGroup, ModelShape

NUMBER_MAX = 1 << 24
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# What files leave out because the model's class in transformers has it as its default.
LEFT_OUT: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
}
# Fields that say something about K and V which is not read here: heads by another name or by layer, layers that share,
# or that have a state of another kind.
NOT_UNDERSTOOD = {
    "multi_query", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_key_value_heads_per_layer",
    "block_configs", "num_kv_shared_layers", "attn_layer_period", "attn_layer_indices", "layers_block_type",
    "hybrid_override_pattern", "cross_attention_layers",
}  # fmt: skip
SLIDING_EVERYWHERE = {"mistral", "mixtral", "phi3", "starcoder2"}
SLIDING_ON_EVEN_LAYERS = {"gemma2", "gpt_oss"}


def model_of(name_or_file: str) -> ModelShape:
    """Give the model of `--model`: a file or a folder with a `config.json` where there is one, else a known name."""
    try:
        path = Path(name_or_file)
        path = path / "config.json" if path.is_dir() else path
        is_file = path.is_file()
    except (OSError, ValueError):  # a name too long, a null byte: no file, then
        is_file = False
    if is_file:
        return read_config(path)
    if name_or_file.endswith(".json"):
        raise BadInput(f"--model {quoted(name_or_file)}", "there is no such file", "name a config.json or a model")
    return model_named(name_or_file)


def model_files(name_or_file: str) -> list[Path]:
    """Give the files that `model_of` reads where they are there: no result may take their place."""
    return [Path(name_or_file), Path(name_or_file, "config.json")]


def read_config(path: Path) -> ModelShape:
    """Read a `config.json`. Errors: `BadInput` for what is no configuration of a model whose cache is understood."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(str(path), f"no JSON ({error})", "give a model's config.json") from error
    if not isinstance(config, dict):
        raise BadInput(str(path), "no JSON object", "give a model's config.json")
    inner = config.get("text_config")
    return _Config(path, inner if isinstance(inner, dict) else config).shape()


class _Config:
    """The fields of one configuration, each asked for by name."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self.type = str(fields.get("model_type", ""))
        self.fields = LEFT_OUT.get(self.type, {}) | {key: value for key, value in fields.items() if value is not None}

    def shape(self) -> ModelShape:
        """Put the model's shape together."""
        for field in sorted(NOT_UNDERSTOOD & self.fields.keys()):
            if self.fields[field] not in (False, 0):
                raise self.wrong(f"{field} is given, which changes what K and V take and is not understood")
        name = str(self.fields.get("_name_or_path") or self.path.parent.name or self.path.name)
        layers, q_heads = self.number("num_hidden_layers"), self.number("num_attention_heads")
        if "kv_lora_rank" in self.fields:
            return latent(name, layers, q_heads, self.number("kv_lora_rank"), self.number("qk_rope_head_dim"))
        kv_heads = self.number("num_key_value_heads", q_heads)
        if q_heads % kv_heads:
            raise self.wrong(f"{q_heads} num_attention_heads do not divide into {kv_heads} num_key_value_heads")
        head_size = self.number("head_dim", 0) or self.hidden_over(q_heads)
        windows = Counter(self.windows(layers))
        by_window = sorted(windows.items(), key=lambda item: item[0] or 0)  # the full ones first
        groups = tuple(LayerGroup(count, kv_heads, 2 * head_size, window) for window, count in by_window)
        return ModelShape(name, q_heads, head_size, groups)

    def windows(self, layers: int) -> list[int | None]:
        """Give each layer's window, None where it keeps all."""
        types = self.fields.get("layer_types")
        if types is not None:
            if not isinstance(types, list) or len(types) != layers:
                raise self.wrong(f"layer_types does not name {layers} layers")
            return [self.window_of(number, str(kind)) for number, kind in enumerate(types)]
        if "attention_chunk_size" in self.fields:
            raise self.wrong("attention_chunk_size is given, and nothing says on which layers", "add layer_types")
        window = self.number("sliding_window", 0)
        if not window or self.fields.get("use_sliding_window") is False:
            return [None] * layers
        if "sliding_window_pattern" in self.fields:
            pattern = self.number("sliding_window_pattern")
            return [window if (layer + 1) % pattern else None for layer in range(layers)]
        if self.fields.get("use_sliding_window") is True:
            first = self.number("max_window_layers")
            return [window if layer >= first else None for layer in range(layers)]
        if self.type in SLIDING_EVERYWHERE:
            return [window] * layers
        if self.type in SLIDING_ON_EVEN_LAYERS:
            return [None if layer % 2 else window for layer in range(layers)]
        raise self.wrong(f"sliding_window is {window}, and nothing says on which layers", "add layer_types")

    def window_of(self, layer: int, kind: str) -> int | None:
        """Give the window that a kind of layer has."""
        if kind == FULL:
            return None
        if kind == SLIDING:
            return self.number("sliding_window")
        if kind == CHUNKED:  # attention within chunks: at most one of them is kept
            return self.number("attention_chunk_size")
        raise self.wrong(f"layer {layer} is {quoted(kind)}, whose state is not known here", "use another model")

    def hidden_over(self, q_heads: int) -> int:
        """Give the head size that the hidden size implies."""
        hidden = self.number("hidden_size")
        if hidden % q_heads:
            raise self.wrong(f"no head_dim, and a hidden_size of {hidden} does not divide by {q_heads} heads")
        return hidden // q_heads

    def number(self, field: str, default: int | None = None) -> int:
        """Give a field's number, from 1 where there is no default."""
        value = self.fields.get(field, default)
        if value is None:
            raise self.wrong(f"no {field}", "add it, or name a model that is known")
        least = 0 if default == 0 or field == "max_window_layers" else 1
        if type(value) is not int or not least <= value <= NUMBER_MAX:
            raise self.wrong(f"{field} is {quoted(value)}, no number from {least} to {NUMBER_MAX:,}")
        return value

    def wrong(self, what: str, remedy: str = "is this a language model's config.json?") -> BadInput:
        """Say what is wrong with the file."""
        return BadInput(str(self.path), what, remedy)
