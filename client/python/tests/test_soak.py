"""The short form of soak.py: real servers, kills and connections that are cut."""

from __future__ import annotations

import pytest
import soak


@pytest.mark.parametrize("seed", range(2), ids=["threads", "asyncio"])
def test_whatever_happens_to_the_server(seed: int) -> None:
    told = soak.run(seed, calls=30, kill_share=0.15)
    assert told["kills"] > 0
    assert told["outputs"] > 10
