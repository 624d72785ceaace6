"""Steps through a ring: the replies and errors of messages, and messages where there is no ring."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running

import gdn_client
from gdn_client import ring
from gdn_client.proto.gdn.v1 import step_pb2


@pytest.fixture()
def ringed(server: Server) -> Iterator[gdn_client.Client]:
    with gdn_client.Client(server.target, shared_memory=1 << 20) as one:
        yield one


def link(client: gdn_client.Client) -> ring.RingLink:
    assert client.connection.ring is not None
    return client.connection.ring


def tokens(client: gdn_client.Client, count: int, seed: int = 4) -> np.ndarray:
    size = client.model("next").dims.hidden_size
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


def steps(client: gdn_client.Client, x: np.ndarray) -> list[np.ndarray]:
    sessions = [client.session("next") for _ in range(2)]
    layer, batch = sessions[0].layers[0], client.batch(sessions)
    out = [sessions[0].prefill(layer, x[:6]), sessions[1].decode(layer, x[6])]
    out.append(batch.decode(layer, x[7:9]))
    rows = [gdn_client.StepRow(x[9:12], "prefill"), gdn_client.StepRow(x[12:15], "draft")]
    out += [row.output for row in batch.step(layer, rows)]
    out += [
        row.output for row in batch.step(layer, [gdn_client.StepRow(x[15:16]), gdn_client.StepRow(x[:1], accept=2)])
    ]
    out.append(sessions[0].decode(layer, x[16:18], draft=True))
    sessions[0].accept(1)
    batch.delete()
    return out


def test_the_module_is_built() -> None:
    assert ring._ring is not None, "gdn_client._ring: a C compiler and Python's headers are missing"


def test_steps_have_the_bits_of_messages(client: gdn_client.Client, ringed: gdn_client.Client) -> None:
    x = tokens(client, 18)
    for want, got in zip(steps(client, x), steps(ringed, x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert link(ringed).is_open


def test_errors_are_those_of_messages(client: gdn_client.Client, ringed: gdn_client.Client) -> None:
    x = tokens(client, 2)
    found = []
    for one in (client, ringed):
        session = one.session("next")
        with pytest.raises(gdn_client.GdnError) as caught:
            session.decode(99, x[:1])
        found.append((caught.value.code, caught.value.reason, caught.value.metadata.get("layer"), type(caught.value)))
        session.delete()
    assert found[0] == found[1]
    assert link(ringed).is_open


def test_threads_have_their_own_replies(client: gdn_client.Client, ringed: gdn_client.Client) -> None:
    x = tokens(client, 20)
    want = steps(client, x)
    wrong: list[int] = []

    def run(number: int) -> None:
        for mine, its in zip(steps(ringed, x), want, strict=True):
            if not np.array_equal(mine, its):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert link(ringed).is_open


def test_a_server_without_shared_memory_gets_messages(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--model", f"next={MODEL}", "--shared-memory-dir", "") as server,
        gdn_client.Client(server.target, shared_memory="auto") as client,
    ):
        assert len(steps(client, tokens(client, 18))) > 0
        assert not link(client).is_open


def test_a_client_that_shares_no_memory_has_no_ring(client: gdn_client.Client) -> None:
    assert client.connection.ring is None


def test_a_call_that_is_too_large_is_a_message(ringed: gdn_client.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "AREA_BYTES", 4096)
    session = ringed.session("next")
    x = tokens(ringed, 40)
    assert session.prefill(session.layers[0], x).shape == x.shape
    session.delete()
    assert link(ringed).is_open


def test_steps_go_on_when_the_server_comes_back(tmp_path: Path) -> None:
    arguments = ("--model", f"next={MODEL}", "--disk-dir", str(tmp_path / "states"))
    with (
        running(tmp_path, *arguments) as server,
        gdn_client.Client(server.target, shared_memory=1 << 20) as client,
        gdn_client.Client(server.target) as plain,
    ):
        x = tokens(client, 8)
        session, steady = client.session("next"), plain.session("next")
        layer = session.layers[0]
        for one in (session, steady):
            one.prefill(layer, x[:5])
        assert link(client).is_open
        server.kill()
        server.start()
        for position in range(5, 8):
            np.testing.assert_array_equal(session.decode(layer, x[position]), steady.decode(layer, x[position]))


def test_a_fork_uses_no_ring_of_its_parent(client: gdn_client.Client, ringed: gdn_client.Client) -> None:
    x = tokens(client, 18)
    want = steps(client, x)
    steps(ringed, x)
    raw, request = link(ringed)._ring, b""
    child = os.fork()
    if child == 0:  # gRPC is not used here: its threads are the parent's
        uses = link(ringed).is_open or link(ringed).call("Decode", step_pb2.DecodeRequest(), 1.0)[0]
        os._exit(int(bool(uses) or raw.call(2, request, 1_000_000, 4096)[0] != ring._FORKED))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for mine, its in zip(steps(ringed, x), want, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert link(ringed).is_open
