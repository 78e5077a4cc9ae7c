"""Public models by name: what of each its KV cache depends on.

The numbers are facts out of the models' published configurations: layers, query and KV heads, head size, windows, the
sizes of a latent. Three of them are often got wrong. The head size is not hidden size over heads (Qwen3-30B-A3B,
Qwen3-32B, gpt-oss). A latent of DeepSeek-V3 is one vector of 512 + 64 numbers, however many heads read it. Gemma's and
gpt-oss' windowed layers are most or half of all, in a pattern; Mistral 7B had its window on all layers in its first
version only.

A name is found with or without its organisation, in any case. What is not here is read from its `config.json`
(`model_configs`).
"""

from difflib import get_close_matches

from pagedkv.bench.failures import BadInput, quoted
from pagedkv.spec.ledger import LayerGroup, ModelShape


def plain(name: str, layers: int, q_heads: int, kv_heads: int, head_size: int = 128) -> ModelShape:
    """Describe a model whose layers all keep K and V of every position."""
    return ModelShape(name, q_heads, head_size, (LayerGroup(layers, kv_heads, 2 * head_size),))


def windowed(
    name: str, full: int, sliding: int, window: int, q_heads: int, kv_heads: int, head_size: int
) -> ModelShape:
    """Describe a model of which `full` layers see all positions and `sliding` layers the last `window`."""
    groups = (
        LayerGroup(full, kv_heads, 2 * head_size),
        LayerGroup(sliding, kv_heads, 2 * head_size, window),
    )
    return ModelShape(name, q_heads, head_size, tuple(group for group in groups if group.layers))


def latent(name: str, layers: int, q_heads: int, latent_size: int, rotary_size: int) -> ModelShape:
    """Describe a model with multi-head latent attention: one vector a position and layer, read by all heads."""
    return ModelShape(name, q_heads, latent_size, (LayerGroup(layers, 1, latent_size + rotary_size),))


_MODELS = (
    plain("meta-llama/Llama-2-7b-hf", 32, 32, 32),
    plain("meta-llama/Llama-3.1-8B", 32, 32, 8),
    plain("meta-llama/Llama-3.1-70B", 80, 64, 8),
    plain("Qwen/Qwen2.5-7B", 28, 28, 4),
    plain("Qwen/Qwen3-8B", 36, 32, 8),
    plain("Qwen/Qwen3-30B-A3B", 48, 32, 4),
    plain("Qwen/Qwen3-32B", 64, 64, 8),
    windowed("mistralai/Mistral-7B-v0.1", 0, 32, 4096, 32, 8, 128),
    windowed("google/gemma-2-9b", 21, 21, 4096, 16, 8, 256),
    windowed("google/gemma-3-4b-it", 5, 29, 1024, 8, 4, 256),
    windowed("google/gemma-3-12b-it", 8, 40, 1024, 16, 8, 256),
    windowed("google/gemma-3-27b-it", 10, 52, 1024, 32, 16, 128),
    plain("microsoft/phi-4", 40, 40, 10),
    windowed("openai/gpt-oss-20b", 12, 12, 128, 64, 8, 64),
    windowed("openai/gpt-oss-120b", 18, 18, 128, 64, 8, 64),
    latent("deepseek-ai/DeepSeek-V3", 61, 128, 512, 64),
)
MODELS: dict[str, ModelShape] = {model.name: model for model in _MODELS}
_BY_SHORT_NAME = {alias.lower(): model for model in _MODELS for alias in (model.name, model.name.partition("/")[2])}


def model_named(name: str) -> ModelShape:
    """Give a model of the table. Errors: `BadInput` for a name that is none, with the ones that are like it."""
    if (found := _BY_SHORT_NAME.get(name.lower())) is not None:
        return found
    alike = get_close_matches(name.lower(), _BY_SHORT_NAME, n=3, cutoff=0.5)
    near = dict.fromkeys(_BY_SHORT_NAME[each].name for each in alike)
    known = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(MODELS)}"
    raise BadInput(f"--model {quoted(name)}", "no model of that name", f"{known} else give its config.json")
