"""Engines that speculate, in a process of their own: vLLM's n-gram proposer imports numba, and then no engine starts.

vLLM 0.32 cannot cache prefixes beside speculation on a CPU: it has no Triton kernel there (`mamba_utils`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
from tiny import recording_of

pytestmark = pytest.mark.engine
Make = Callable[..., Any]
NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def test_speculation(tried: Make) -> None:
    one = tried(
        "qwen3_next!",
        speculative_config=NGRAMS,
        gdn=recording_of("speculation"),
    )
    drafted = accepted = 0
    run = one.runtime.rows

    def rows(batch: Any) -> Any:
        nonlocal drafted, accepted
        bound = run(batch)
        accepted += sum(max(0, row.row.accept - 1) for row in bound if row.row.accept is not None)
        drafted += sum(row.end - row.begin - 1 for row in bound if row.row.kind == "draft")
        return bound

    one.runtime.rows = rows
    prompts = [word * 2 for word in tiny.prompts([12, 9, 15, 7, 11, 10, 13, 8], seed=5)]
    one.check(prompts, 64, "speculation")
    print(f"speculation: {drafted} drafted, {accepted} accepted (per KV cache group)")
    assert 0 < accepted < drafted, "the tokens must be such that some drafts are accepted, and some are not"
