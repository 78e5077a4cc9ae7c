"""The dense oracle against numbers worked by hand, torch's own attention, and identities of the softmax."""

import math

import pytest
import torch
from pagedkv.spec.attention import dense_attention
from torch.nn.functional import scaled_dot_product_attention


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _by_hand(scores: list[float], values: list[float], sink: float | None = None) -> tuple[float, float]:
    """Softmax of a few scores in plain Python."""
    weights = [math.exp(s) for s in scores]
    total = sum(weights) + (math.exp(sink) if sink is not None else 0.0)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / total, math.log(total)


SCORES, VALUES = [0.5, -1.0, 2.0], [1.0, 10.0, 100.0]


def _scalar_case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One head of size 1, one query of value 1: the scores are the keys."""
    query = torch.ones(1, 1, 1)
    return query, torch.tensor(SCORES).reshape(3, 1, 1), torch.tensor(VALUES).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("options", "scores", "values", "sink"),
    [
        ({}, SCORES, VALUES, None),
        ({"scale": 0.25}, [0.25 * s for s in SCORES], VALUES, None),
        ({"window": 1}, SCORES[2:], VALUES[2:], None),
        ({"window": 2}, SCORES[1:], VALUES[1:], None),
        ({"soft_cap": 1.5}, [1.5 * math.tanh(s / 1.5) for s in SCORES], VALUES, None),
        ({"alibi_slopes": torch.tensor([0.5])}, [0.5 - 1.0, -1.0 - 0.5, 2.0], VALUES, None),
        ({"sinks": torch.tensor([1.0])}, SCORES, VALUES, 1.0),
        ({"key_scale": 2.0, "value_scale": 3.0}, [2 * s for s in SCORES], [3 * v for v in VALUES], None),
    ],
)
def test_each_option_by_hand(
    options: dict[str, object], scores: list[float], values: list[float], sink: float | None
) -> None:
    query, key, value = _scalar_case()
    output, log_sum_exp = dense_attention(query, key, value, **options)  # type: ignore[arg-type]  # one dict, many types
    expected_output, expected_lse = _by_hand(scores, values, sink)
    assert output.item() == pytest.approx(expected_output, rel=1e-12)
    assert log_sum_exp.item() == pytest.approx(expected_lse, rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "positions"), [(1, 7), (4, 7), (7, 7)])
def test_agrees_with_torch(queries: int, positions: int, causal: bool) -> None:  # noqa: FBT001  (pytest passes it)
    query, key, value = _draw(queries, 6, 16), _draw(positions, 2, 16, seed=1), _draw(positions, 2, 16, seed=2)
    mask = torch.ones(queries, positions, dtype=torch.bool)
    if causal:
        mask = mask.tril(positions - queries)
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
    output, _ = dense_attention(query, key, value, causal=causal)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_length_zero_is_the_identity() -> None:
    query, nothing = _draw(2, 4, 16), torch.empty(0, 2, 16)
    output, log_sum_exp = dense_attention(query, nothing, nothing, causal=False)
    assert torch.equal(output, torch.zeros(2, 4, 16, dtype=torch.float64))
    assert bool((log_sum_exp == -math.inf).all())


def test_a_sink_alone_takes_all_the_weight() -> None:
    nothing = torch.empty(0, 2, 16)
    output, log_sum_exp = dense_attention(
        _draw(1, 2, 16), nothing, nothing, causal=False, sinks=torch.tensor([3.0, -2.0])
    )
    assert output.abs().max().item() == 0.0
    assert log_sum_exp.tolist() == [[3.0, -2.0]]


def test_values_no_query_sees_do_not_count() -> None:
    query, key, value = _draw(1, 2, 16), _draw(6, 2, 16, seed=1), _draw(6, 2, 16, seed=2)
    poisoned = value.clone()
    poisoned[:3] = math.nan
    expected, _ = dense_attention(query, key, value, window=3)
    output, _ = dense_attention(query, key, poisoned, window=3)
    assert torch.equal(output, expected)


def test_chunks_of_a_prompt_make_the_prompt() -> None:
    query, key, value = _draw(9, 4, 16), _draw(9, 2, 16, seed=1), _draw(9, 2, 16, seed=2)
    whole, whole_lse = dense_attention(query, key, value)
    parts = [dense_attention(query[a:b], key[:b], value[:b]) for a, b in ((0, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat([out for out, _ in parts]), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([lse for _, lse in parts]), whole_lse, rtol=0, atol=1e-12)


def test_scales_a_head_are_applied_to_their_head() -> None:
    query, key, value = _draw(2, 4, 16), _draw(5, 2, 16, seed=1), _draw(5, 2, 16, seed=2)
    key_scale, value_scale = torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.25])
    expected, _ = dense_attention(
        query, key * key_scale[None, :, None].double(), value * value_scale[None, :, None].double()
    )
    output, _ = dense_attention(query, key, value, key_scale=key_scale, value_scale=value_scale)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
