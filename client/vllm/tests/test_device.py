"""Hidden states in a device's memory, without vLLM: torch tensors, written and read on streams as an engine does.

On a machine without CUDA the same tests run with torch tensors on the CPU, where there are no streams.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import gdn_client
from gdn_vllm.options import Options
from gdn_vllm.service import Runtime
from gdn_vllm.sessions import EngineStep, Scheduled

torch: Any = pytest.importorskip("torch")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
BUSY_CYCLES = 100_000_000  # tens of milliseconds: whoever does not wait reads what was there before


def own_stream(device: str) -> Any:
    """Returns a context in which work goes to a stream that is not the default one."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else contextlib.nullcontext()


def stay_busy(device: str) -> None:
    """Keeps the present stream busy, so that what follows on it comes late."""
    if device == "cuda":
        torch.cuda._sleep(BUSY_CYCLES)


class Layers:
    """The layers of one request of `tokens` tokens: in an engine's way, and as a session's."""

    def __init__(self, server: Any, shared: bool) -> None:
        self.runtime = Runtime(Options(server=server.target, shared_memory=shared))
        with gdn_client.Client(server.target) as client:
            model = client.models()[0]
            self.layers, self.size = list(model.gdn_layers), model.dims.hidden_size

    def begin(self, tokens: int) -> Any:
        self.runtime.begin(EngineStep([Scheduled("a", 0, tokens, 0, [[7]], fresh=True)]))
        return self.runtime.rows([(7, 0, tokens, 0)])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_inputs_are_read_and_outputs_written_in_the_streams_order(
    server: Any, device: str, dtype: str, shared: bool
) -> None:
    tokens, kind = 33, getattr(torch, dtype)
    engine = Layers(server, shared)
    given = torch.from_numpy(np.random.default_rng(1).standard_normal((tokens, engine.size)).astype(np.float32))
    with gdn_client.Client(server.target) as client, client.session() as one:
        expected = [one.prefill(layer, given.to(kind)) for layer in engine.layers]
    try:
        rows = engine.begin(tokens)
        source, x = given.to(device=device, dtype=kind), torch.full((tokens, engine.size), 7, dtype=kind, device=device)
        out = torch.full_like(x, 7)
        if device == "cuda":
            torch.cuda.synchronize()
        with own_stream(device):
            for layer, right in zip(engine.layers, expected, strict=True):
                stay_busy(device)
                x.copy_(source)  # late, on this stream
                engine.runtime.run(layer, rows, x, out)
                x.fill_(7)  # the step has read its input
                stay_busy(device)
                kept = out.clone()  # a later kernel of the stream sees the whole output
                out.fill_(7)
                assert torch.equal(kept.cpu(), right)
        assert not engine.runtime.report()
    finally:
        engine.runtime.close()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_device_with_tokens_between_them_are_those_without(server: Any, device: str) -> None:
    engine = Layers(server, True)
    given = torch.from_numpy(np.random.default_rng(2).standard_normal((6, engine.size)).astype(np.float32))
    try:
        engine.runtime.begin(
            EngineStep([Scheduled(name, 0, 2, 0, [[block]], fresh=True) for name, block in (("a", 7), ("b", 8))])
        )
        rows = engine.runtime.rows([(7, 0, 2, 0), (8, 4, 6, 0)])
        x, out = given.to(device), torch.full((7, engine.size), 7.0, device=device)
        with own_stream(device):
            engine.runtime.run(engine.layers[0], rows, x, out)
            found = out.cpu()
        with gdn_client.Client(server.target) as client:
            for begin in (0, 4):
                with client.session() as one:
                    assert torch.equal(
                        found[begin : begin + 2], one.prefill(engine.layers[0], given[begin : begin + 2])
                    )
        assert not found[6:].any()
    finally:
        engine.runtime.close()
