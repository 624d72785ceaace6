"""The layers of an engine on a real server, without vLLM: numpy arrays stand in for its hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdn_client
from gdn_vllm.options import Options
from gdn_vllm.service import Runtime
from gdn_vllm.sessions import EngineStep, Scheduled

MODEL = Path(__file__).resolve().parents[3] / "tests" / "golden" / "qwen3_next_5"


@pytest.fixture()
def runtime(server: Any) -> Iterator[Runtime]:
    one = Runtime(Options(server=server.target, retry_seconds=1.0))
    yield one
    one.close()


def new(name: str, tokens: int, *blocks: int, computed: int = 0) -> Scheduled:
    return Scheduled(name, computed, tokens, 0, [list(blocks)], fresh=True)


class Engine:
    """Steps all layers, and remembers what each request's rows gave."""

    def __init__(self, runtime: Runtime, server: Any) -> None:
        self.runtime = runtime
        with gdn_client.Client(server.target) as client:
            self.layers = list(client.models()[0].gdn_layers)
            self.size = client.models()[0].dims.hidden_size
        random = np.random.default_rng(1)
        self.inputs = random.standard_normal((64, self.size)).astype(np.float32)

    def step(self, step: EngineStep, *batch: tuple[int, int, int]) -> list[list[np.ndarray[Any, Any]]]:
        """Steps rows of (slot, tokens, computed). Returns each layer's output of each row."""
        self.runtime.begin(step)
        rows, begin, x = [], 0, []
        for slot, tokens, computed in batch:
            rows.append((slot, begin, begin + tokens, computed))
            x.append(self.inputs[computed : computed + tokens])
            begin += tokens
        bound = self.runtime.rows(rows)
        outputs = []
        for layer in self.layers if batch else ():
            out = np.full((begin + 1, self.size), 7, np.float32)  # vLLM may pad
            self.runtime.run(layer, bound, np.concatenate(x), out)
            assert not out[begin:].any()
            outputs.append([out[one[1] : one[2]] for one in rows])
        return outputs


def test_a_prefill_and_decodes_are_those_of_a_session(runtime: Runtime, server: Any) -> None:
    engine = Engine(runtime, server)
    first = engine.step(EngineStep([new("a", 5, 7), new("b", 3, 8)]), (7, 5, 0), (8, 3, 0))
    second = engine.step(EngineStep([Scheduled("b", 3, 1), Scheduled("a", 5, 4, 3)]), (8, 1, 3), (7, 4, 5))
    third = engine.step(EngineStep([Scheduled("a", 7, 1)]), (7, 1, 7))
    x = engine.inputs
    with gdn_client.Client(server.target) as client, client.session() as one:
        for at, layer in enumerate(engine.layers):
            np.testing.assert_array_equal(first[at][0], one.prefill(layer, x[:5]))
            np.testing.assert_array_equal(second[at][1], one.decode(layer, x[5:9], draft=True))
        one.accept(2)
        for at, layer in enumerate(engine.layers):
            np.testing.assert_array_equal(third[at][0], one.decode(layer, x[7:8]))
    assert runtime.counts.step_calls == 3 * len(engine.layers)
    assert (runtime.counts.housekeeping, runtime.counts.most) == (1, 1)
    assert not runtime.report()


def test_a_cached_prefix_goes_on_from_its_snapshot(runtime: Runtime, server: Any) -> None:
    runtime.use(4, [0])
    engine = Engine(runtime, server)
    engine.step(EngineStep([new("a", 4, 7)]), (7, 4, 0))
    owner = engine.step(EngineStep([Scheduled("a", 4, 2, 0, [[8]])]), (8, 2, 4))
    other = engine.step(EngineStep([new("b", 2, 7, 9, computed=4)], ["a"]), (9, 2, 4))
    for own, cached in zip(owner, other, strict=True):
        np.testing.assert_array_equal(own[0], cached[0])
    assert not runtime.report()


def test_a_snapshot_that_the_server_lost_is_reported_and_the_row_is_zero(runtime: Runtime, server: Any) -> None:
    runtime.use(4, [0])
    engine = Engine(runtime, server)
    engine.step(EngineStep([new("a", 4, 7)]), (7, 4, 0))
    engine.step(EngineStep([], ["a"]))
    with gdn_client.Client(server.target) as client:
        client.delete_snapshots([one.key for one in client.snapshots().snapshots])
    lost = engine.step(EngineStep([new("b", 2, 7, 9, computed=4), new("c", 2, 10)]), (9, 2, 4), (10, 2, 0))
    assert list(runtime.report().lost) == ["b"]
    assert "SNAPSHOT_NOT_FOUND" in runtime.report().lost["b"]
    assert all(not row[0].any() and row[1].any() for row in lost)


def test_evicted_snapshots_are_reported_with_their_blocks(tmp_path: Any) -> None:
    from server import running

    with running(tmp_path, "--model", f"next={MODEL}", "--snapshot-bytes=60000") as server:
        runtime = Runtime(Options(server=server.target))
        runtime.use(4, [0])
        engine = Engine(runtime, server)
        evicted: list[int] = []
        for at in range(12):
            engine.step(EngineStep([new(str(at), 4, 20 + at)]), (20 + at, 4, 0))
            evicted += runtime.report().evict
            engine.step(EngineStep([], [str(at)]))
            evicted += runtime.report().evict
        assert evicted and set(evicted) <= {20 + at for at in range(12)}
        runtime.close()


def test_a_server_that_has_restarted_is_used_again(runtime: Runtime, server: Any) -> None:
    engine = Engine(runtime, server)
    engine.step(EngineStep([new("a", 4, 7)]), (7, 4, 0))
    server.kill()
    server.start()
    engine.step(EngineStep([Scheduled("a", 4, 1)]), (7, 1, 4))
    assert list(runtime.report().lost) == ["a"]
    again = engine.step(EngineStep([new("a", 5, 9)], ["a"]), (9, 5, 0))
    assert not runtime.report()
    assert all(row[0].any() for row in again)


def test_without_a_server_the_requests_fail(runtime: Runtime, server: Any) -> None:
    engine = Engine(runtime, server)
    engine.step(EngineStep([new("a", 4, 7)]), (7, 4, 0))
    server.kill()
    engine.step(EngineStep([Scheduled("a", 4, 1)]), (7, 1, 4))
    assert list(runtime.report().failed) == ["a"]


def test_all_sessions_end_with_the_runtime(runtime: Runtime, server: Any) -> None:
    engine = Engine(runtime, server)
    engine.step(EngineStep([new("a", 4, 7), new("b", 4, 8)]), (7, 4, 0), (8, 4, 0))
    with gdn_client.Client(server.target) as client:
        assert client.info().session_count == 2
        runtime.close()
        assert client.info().session_count == 0


def test_sessions_that_have_ended_are_deleted(runtime: Runtime, server: Any) -> None:
    engine = Engine(runtime, server)
    for at in range(5):
        ended = [str(at - 1)] if at else []
        engine.step(EngineStep([new(str(at), 4, 7)], ended), (7, 4, 0))
    with gdn_client.Client(server.target) as client:
        assert client.info().session_count == 1
    assert runtime.counts.most == 2


def test_a_rank_beside_the_first_computes_nothing_on_one_whole_server(server: Any) -> None:
    runtime = Runtime(Options(server=server.target), rank=1, ranks=2)
    assert not runtime.active
    runtime.close()


def test_wrong_numbers_of_servers_are_refused(server: Any) -> None:
    with pytest.raises(ValueError, match="there are 2 servers, expected 1, or 3 with a slice"):
        Runtime(Options(server=f"{server.target},{server.target}"), rank=0, ranks=3)
    with pytest.raises(ValueError, match="is on two servers"):
        Runtime(Options(server=f"{server.target},{server.target}"))
