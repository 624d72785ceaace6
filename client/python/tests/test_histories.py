"""Random histories on a server in this process, whose every call may fail."""

from __future__ import annotations

import numpy as np
import pytest
from histories import AioClient, History
from toy_server import LAYERS, SIZE, ToyServer, aio_client_of, client_of

FAULTS = ["away", "lose", "drop", "crash", "crash after", "roll back", "take state"]
WITH_DURABLE = ["durable", "durable lose", "durable drop", "durable crash after"]


@pytest.mark.parametrize("asyncio", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("policy", [False, True], ids=["checkpoints by calls", "by the server too"])
@pytest.mark.parametrize("knows_epochs", [True, False], ids=["epochs are checked", "an older server"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_fails(seed: int, knows_epochs: bool, policy: bool, asyncio: bool) -> None:
    server = ToyServer(knows_epochs=knows_epochs, knows_step=knows_epochs)
    random = np.random.default_rng(1000 + seed)
    faults = FAULTS + (WITH_DURABLE if policy else [])

    left = 0

    def fault(_: str) -> str:
        nonlocal left
        if left == 0 or random.random() > 0.3:
            return ""
        left -= 1
        return str(random.choice(faults))

    def disturb(may_fail: bool) -> None:
        nonlocal left
        left = int(random.integers(0, 5)) if may_fail else 0

    server.faults = fault

    mine = AioClient(lambda: aio_client_of(server), random) if asyncio else client_of(server)
    history = History(
        *(mine, client_of(ToyServer()), seed, disturb),
        newest=not policy,
        size=SIZE,
        layers=LAYERS,
        model="toy",
        whole_steps=knows_epochs,
    )
    history.run(60)
    mine.close()
    assert history.outputs > 20
