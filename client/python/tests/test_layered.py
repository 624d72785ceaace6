"""Sessions whose layers are on two servers, beside one server of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL
from server import Server, running
from toy_server import ToyServer, client_of, tokens

import gdn_client


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folders: list[Path] = [tmp_path_factory.mktemp("part") for _ in range(2)]
    with (
        running(folders[0], "--model", f"next={MODEL}", "--layers", "0-1") as first,
        running(folders[1], "--model", f"next={MODEL}", "--layers", "2-3") as second,
    ):
        yield [first, second]


def test_each_layer_is_stepped_where_it_is(
    parts: list[Server], client: gdn_client.Client, random: np.random.Generator
) -> None:
    with (
        gdn_client.LayeredClient([one.target for one in reversed(parts)]) as layered,
        layered.session("next") as session,
        client.session() as whole,
    ):
        assert session.layers == whole.layers
        assert set(layered.layers("next").values()) == {0, 1}
        x = random.standard_normal((12, client.models()[0].dims.hidden_size)).astype(np.float32)
        for layer in whole.layers:
            np.testing.assert_array_equal(session.prefill(layer, x[:4]), whole.prefill(layer, x[:4]))
            draft = [one.decode(layer, x[4:7], draft=True) for one in (session, whole)]
            np.testing.assert_array_equal(*draft)
        session.accept(2)
        whole.accept(2)
        children = [*session.fork(), *whole.fork()]
        batches = [layered.batch([session, children[0]]), client.batch([whole, children[1]])]
        for layer in whole.layers:
            assert session.token_count(layer) == whole.token_count(layer) == 6
            np.testing.assert_array_equal(*(one.decode(layer, x[7:9]) for one in batches))
            rows = [gdn_client.StepRow(x[9:10]), gdn_client.StepRow(x[9:12], "prefill")]
            for got, want in zip(*(one.step(layer, rows) for one in batches), strict=True):
                np.testing.assert_array_equal(got.output, want.output)
        with pytest.raises(ValueError, match="layer 99 is on no server"):
            session.decode(99, x[0])
        batches[0].reset()
        assert [session.token_count(layer) for layer in whole.layers] == [0] * len(whole.layers)
        name = session.name
        children[0].delete()
        children[1].delete()
    for one in parts:
        with gdn_client.Client(one.target) as direct:
            assert name not in {left.name for left in direct.sessions()}


def test_servers_that_do_not_fit_are_told(parts: list[Server], client: gdn_client.Client, tmp_path: Path) -> None:
    with (
        gdn_client.LayeredClient([parts[0].target, client]) as layered,
        pytest.raises(ValueError, match=r"layers .* of models/next are at .* and at .*, expected each on one"),
    ):
        layered.session("next")
    with pytest.raises(ValueError, match="no servers"):
        gdn_client.LayeredClient([])


def test_if_one_server_refuses_no_session_is_left() -> None:
    servers = [ToyServer(), ToyServer()]
    clients = [client_of(server) for server in servers]
    layered = gdn_client.LayeredClient(clients)
    layered._layers["models/toy"] = {0: 0, 2: 1}
    clients[1].session("toy", session_id="a", max_lifetime=3.0)
    with pytest.raises(gdn_client.AlreadyExistsError):
        layered.session("toy", session_id="a")
    assert [list(server.sessions) for server in servers] == [[], ["a"]]
    with layered.session("toy", session_id="b") as session:
        session.decode(2, tokens())
        assert [server.calls.count("Decode") for server in servers] == [0, 1]
        session.detach()
    assert [list(server.sessions) for server in servers] == [["b"], ["a", "b"]]
