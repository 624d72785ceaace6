"""Sessions of remote layers end whatever fails; none is left behind, and none is made behind a close."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.17")

from toy_server import LAYERS, SIZE, ToyServer, client_of  # noqa: E402

import gdn_client  # noqa: E402
import gdn_client.torch as gdn_torch  # noqa: E402
from gdn_client.proto.gdn.v1 import info_pb2  # noqa: E402
from gdn_client.torch.attach import _client_of  # noqa: E402
from gdn_client.torch.sequences import RemoteSequences  # noqa: E402

REFUSED = gdn_client.InvalidArgumentError("no", reason="INVALID_SPEC")


class Fails(ToyServer):
    """Fails the call number `at` from `arm` on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.at = 0

    def call(self, rpc: Any) -> Any:
        self.at -= 1
        if self.at == 0 and not rpc.method.startswith("DeleteSession"):
            raise REFUSED
        return super().call(rpc)

    def _ListModels(self, _: Any) -> Any:  # noqa: N802
        return info_pb2.ListModelsResponse(models=[self._GetModel(None).model])

    def _GetModel(self, _: Any) -> Any:  # noqa: N802
        model = info_pb2.Model(name="models/m", gdn_layers=LAYERS)
        model.dims.hidden_size = SIZE
        return info_pb2.GetModelResponse(model=model)


def host_of(server: ToyServer) -> gdn_torch.LayerHost:
    return gdn_torch.LayerHost(client_of(server))


def rows(*lengths: int, seed: int = 1) -> list[torch.Tensor]:
    return list(
        torch.randn(sum(lengths), SIZE, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").split(lengths)
    )


def prompts(host: gdn_torch.LayerHost) -> None:
    sequences = RemoteSequences(host)
    for layer in LAYERS:
        sequences.step(layer, rows(20, 21, 22), record=False)


def beams(host: gdn_torch.LayerHost) -> None:
    sequences = RemoteSequences(host)
    for seed in range(3):
        for layer in LAYERS:
            sequences.step(layer, rows(2, 2, 2, seed=seed), record=False)
        sequences.select([0, 0, 1])
    copy.deepcopy(sequences).reset()


def assisted(host: gdn_torch.LayerHost) -> None:
    sequences = RemoteSequences(host)
    for tokens in (30, 3, 2):
        for layer in LAYERS:
            sequences.step(layer, rows(tokens, tokens), record=True)
        if tokens == 3:
            for layer in LAYERS:
                sequences.step(layer, rows(1, 1), record=True)
        sequences.crop(1)


def without_cache(host: gdn_torch.LayerHost) -> None:
    for index in LAYERS:
        gdn_torch.RemoteGatedDeltaNet(host, index)(torch.stack(rows(5, 5, 5)).to("cpu"))


@pytest.mark.parametrize("use", [prompts, beams, assisted, without_cache])
def test_whatever_call_fails_no_session_is_left(use: Callable[[gdn_torch.LayerHost], None]) -> None:
    at, failed = 0, True
    while failed:
        at += 1
        server = Fails()
        host = host_of(server)
        assert not server.sessions
        server.at = at
        try:
            use(host)
            failed = False
        except gdn_client.GdnError as error:
            assert error is REFUSED
        REFUSED.__traceback__ = REFUSED.__context__ = None  # whose frames have the sequences
        host.reaper.wait()
        if server.sessions:  # a collection takes long with torch in memory
            gc.collect()
            host.reaper.wait()
        assert not server.sessions, f"call {at} has failed: {server.calls}"
        server.at = 0
        if at % 5 == 1:
            use(host)  # the host is as it was
        host.close()
        assert not server.sessions
    assert at > 4  # calls of the shortest use


def test_closing_ends_the_sessions_of_a_cache_that_is_there() -> None:
    server = Fails()
    host = host_of(server)
    sequences = RemoteSequences(host)
    sequences.step(0, rows(3, 4), record=False)
    assert len(server.sessions) == 2
    host.close()
    host.close()
    assert not server.sessions
    for use in (
        lambda: sequences.step(0, rows(1, 1), record=False),
        lambda: sequences.step(0, rows(30, 30), record=False),
        lambda: prompts(host),
        lambda: without_cache(host),
        lambda: copy.deepcopy(sequences),
    ):
        with pytest.raises((RuntimeError, gdn_client.NotFoundError), match=r"closed|has ended"):
            use()
    assert not server.sessions


def test_a_model_that_is_attached_already_says_so() -> None:
    host = host_of(Fails())
    model = torch.nn.Module()
    model.block = torch.nn.Module()
    model.block.linear_attn = gdn_torch.RemoteGatedDeltaNet(host, LAYERS[0])
    for layers in (None, [LAYERS[0]]):
        with pytest.raises(ValueError, match=r"layers \[0\] of Module are attached already, to <models/m at toy"):
            gdn_torch.attach(model, "127.0.0.1:1", layers)
    with pytest.raises(ValueError, match="has no local Gated DeltaNet layers"):
        gdn_torch.attach(torch.nn.Module(), "127.0.0.1:1")
    host.close()


@pytest.mark.parametrize("target", ["", "x" * 5000, [], [""]])
def test_a_target_that_is_none_is_refused_before_the_model_is_looked_at(target: Any) -> None:
    with pytest.raises(ValueError, match=r"target|no servers"):
        gdn_torch.attach(torch.nn.Module(), target)


def test_what_is_no_target_is_a_type_error() -> None:
    for target in (None, 7, b"a:1"):
        with pytest.raises(TypeError, match="HOST:PORT"):
            gdn_torch.attach(torch.nn.Module(), target)
    with pytest.raises(TypeError, match="timeout cannot be set"):
        _client_of(client_of(Fails()), {"timeout": 1.0})


def test_rows_of_different_lengths_take_one_call_a_layer() -> None:
    server = Fails()
    host = host_of(server)
    sequences = RemoteSequences(host)
    prompt = rows(20, 27, 33, 40)
    server.calls.clear()
    got = [sequences.step(layer, prompt, record=False) for layer in LAYERS]
    assert server.calls == ["CreateSessions"] * 2 + ["Step"] * len(LAYERS)
    alone = RemoteSequences(host_of(Fails(knows_step=False, knows_many=False)))
    for layer, outputs in zip(LAYERS, got, strict=True):
        for output, want in zip(outputs, alone.step(layer, prompt, record=False), strict=True):
            assert torch.equal(output, want)
    sequences.select([0, 0, 1, 1, 1, 3])
    server.calls.clear()
    sequences.step(LAYERS[0], rows(*[1] * 6), record=False)
    assert [call for call in server.calls if call != "DeleteSessions"] == ["ForkSessions", "Decode"]
    host.close()
    assert not server.sessions


def test_prompts_that_fit_no_message_together_are_apart() -> None:
    server = Fails(message_bytes=(64 << 10) + 256 * 64 + 4 * SIZE * 50)
    host = host_of(server)
    sequences = RemoteSequences(host)
    prompt = rows(20, 27, 33, 40, 0, 17)
    server.calls.clear()
    got = sequences.step(LAYERS[0], prompt, record=False)
    assert sorted(call for call in server.calls if call != "CreateSessions") == ["Prefill"] * 3 + ["Step"]
    alone = RemoteSequences(host_of(Fails()))
    for output, want in zip(got, alone.step(LAYERS[0], prompt, record=False), strict=True):
        assert torch.equal(output, want)
    host.close()
