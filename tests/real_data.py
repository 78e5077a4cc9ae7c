"""Where real traces are, for the tests that want them: the project holds none and runs without."""

import os
from pathlib import Path

import pytest

AZURE = "AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "conversation_trace.jsonl"
SHAREGPT = "sharegpt-llama-3.1-8b-300-sps10.hash8.jsonl"
BURSTGPT = "BurstGPT_1_first60.csv"


def real_data(name: str) -> Path:
    """Give the path of a data file, or skip the test: `PAGEDKV_DATA`, else `../shared/data` beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("PAGEDKV_DATA", beside)) / name
    if not path.is_file():
        pytest.skip(f"{name} is not here; set PAGEDKV_DATA to the folder that has it")
    return path
