"""Engines that speculate. In a process of their own: vLLM's n-gram proposer imports numba, after which no engine starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
from conftest import SMALL_BLOCKS, recording_of

pytestmark = pytest.mark.engine
Make = Callable[..., Any]
NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.mark.parametrize("cached", [False, True], ids=["", "prefix caching"])
def test_speculation(tried: Make, cached: bool) -> None:
    one = tried(
        "qwen3_next!",
        speculative_config=NGRAMS,
        gdn=recording_of("speculation_prefix" if cached else "speculation"),
        **(SMALL_BLOCKS if cached else {}),
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
    name = f"speculation{' and prefix caching' if cached else ''}"
    one.check(prompts, 64, name)
    print(f"{name}: {drafted} drafted, {accepted} accepted (per KV cache group)")
    assert 0 < accepted < drafted, "the tokens must be such that some drafts are accepted, and some are not"
    if cached:
        one.check([[*prompt, 5] for prompt in prompts], 64, "speculation, hits")
        want = tiny.greedy(one.folder, prompts[:4], 64)
        longer = [prompt + answer[:50] for prompt, answer in zip(prompts[:4], want, strict=True)]
        one.check(longer, 32, "speculation, hits in generated text")
