"""A call that makes or ends several sessions, and fails at one of them, leaves none that nobody has."""

from __future__ import annotations

from typing import Any

import pytest
from toy_server import LAYERS, ToyServer, client_of, tokens

import gdn_client


class Refuses(ToyServer):
    """Refuses the first call of a method that comes behind `after` others of it."""

    def __init__(self, method: str, after: int = 0, **server: Any) -> None:
        super().__init__(**server)
        self.method, self.left = method, after

    def call(self, rpc: Any) -> Any:
        if rpc.method == self.method:
            self.left -= 1
            if self.left == -1:
                raise gdn_client.PermissionDeniedError("no", reason="PERMISSION_DENIED")
        return super().call(rpc)


def test_children_of_a_durable_fork_end_if_one_cannot_be_made_durable() -> None:
    server = Refuses("CheckpointSession", after=1)
    client = client_of(server)
    session = client.attach(client.session("m", session_id="a").name)  # an attached session cannot be made anew
    session.prefill(LAYERS[0], tokens(3))
    with pytest.raises(gdn_client.PermissionDeniedError):
        session.fork(3, durable=True)
    assert list(server.sessions) == ["a"]
    assert len(session.fork(2, durable=True)) == 2


@pytest.mark.parametrize("method", ["ForkSession"])
def test_parts_of_a_sliced_fork_end_if_one_server_refuses(method: str) -> None:
    servers = [ToyServer(), Refuses(method)]
    clients = [client_of(server) for server in servers]
    with gdn_client.SlicedClient(clients) as client:
        parts = [one.session("m", session_id="a") for one in clients]
        session = gdn_client.SlicedSession(client, parts)
        with pytest.raises(gdn_client.PermissionDeniedError):
            session.fork(2)
        assert [list(server.sessions) for server in servers] == [["a"], ["a"]]
        assert len(session.fork(2)) == 2


@pytest.mark.parametrize("knows_many", [True, False])
def test_a_batch_ends_all_sessions_that_can_be_ended(knows_many: bool) -> None:
    server = Refuses("" if knows_many else "DeleteSession", knows_many=knows_many)
    client = client_of(server)
    batch = client.batch([client.session("m", session_id=name) for name in "abc"])
    if knows_many:
        server.refuses["a"] = gdn_client.PermissionDeniedError("no", reason="PERMISSION_DENIED")
    with pytest.raises(gdn_client.PermissionDeniedError):
        batch.delete()
    assert list(server.sessions) == ["a"]
    batch.delete()
    assert not server.sessions
