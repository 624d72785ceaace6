"""A server that is killed and started again: sessions go on, with the bits that they would have had."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import running

import gdn_client

FLAGS = ["--model", f"next={MODEL}"]


def outputs(client: gdn_client.Client, x: np.ndarray, interrupt) -> tuple[list[np.ndarray], list[gdn_client.Session]]:
    """Two sessions: prefilled, decoded as a batch and alone, a draft accepted in part; `interrupt(i)` in between."""
    sessions = [client.session(affinity="both") for _ in range(2)]
    first, last = sessions[0].layers[0], sessions[0].layers[-1]
    batch = client.batch(sessions)
    out = [session.prefill(layer, x[i, :6]) for i, session in enumerate(sessions) for layer in (first, last)]
    interrupt(0)
    out.append(batch.decode(first, x[:, 6]))
    out.append(batch.decode(last, x[:, 6:8]))
    interrupt(1)
    out.append(sessions[1].decode(first, x[1, 7]))
    out.append(batch.decode(first, x[:, 8:12], draft=True))
    interrupt(2)
    batch.accept([1, 3])
    interrupt(3)
    out.append(batch.decode(first, x[:, 12]))
    return out, sessions


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("when", [0, 1, 2, 3])
def test_nothing_is_lost(tmp_path: Path, durable: bool, when: int) -> None:
    flags = [*FLAGS, *(["--disk-dir", str(tmp_path / "states")] if durable else [])]
    with running(tmp_path, *flags) as server, gdn_client.Client(server.target) as client:
        size = client.models()[0].dims.hidden_size
        x = np.random.default_rng(5).standard_normal((2, 13, size)).astype(np.float32)
        want, undisturbed = outputs(client, x, lambda at: None)
        sessions: list[gdn_client.Session] = []

        def crash(at: int) -> None:
            if at == when:
                server.kill()
                server.start()

        got, sessions = outputs(client, x, crash)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
        assert [session.token_count(session.layers[0]) for session in sessions] == [
            session.token_count(session.layers[0]) for session in undisturbed
        ]
        assert sum(session.stats.replays for session in sessions) > 0


def test_what_is_not_kept_is_told(tmp_path: Path) -> None:
    with running(tmp_path, *FLAGS) as server, gdn_client.Client(server.target) as client:
        size = client.models()[0].dims.hidden_size
        x = np.random.default_rng(5).standard_normal((20, size)).astype(np.float32)
        forgetful, careless = client.session(keep_bytes=1), client.session(keep_bytes=0)
        layer = forgetful.layers[0]
        for session in (forgetful, careless):
            session.prefill(layer, x)
            session.decode(layer, x[0])  # with the inputs before it there are too many
        server.kill()
        server.start()
        with pytest.raises(gdn_client.SessionLostError, match="prefill a new session"):
            forgetful.decode(layer, x[0])
        with pytest.raises(gdn_client.NotFoundError) as refused:
            careless.decode(layer, x[0])
        assert refused.value.reason == "SESSION_NOT_FOUND"
