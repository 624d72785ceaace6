"""What calls carry for routers: the affinity of a session, else the id of the first one that they name."""

import pytest

from gdn_client.flow import Rpc
from gdn_client.proto.gdn.v1 import info_pb2, session_pb2, state_pb2, step_pb2


@pytest.mark.parametrize(
    ("request_", "route"),
    [
        (session_pb2.GetSessionRequest(name="sessions/a"), "a"),
        (step_pb2.PrefillRequest(session="sessions/b"), "b"),
        (step_pb2.DecodeRequest(sessions=["sessions/c", "sessions/d"]), "c"),
        (state_pb2.AcceptTokensRequest(acceptances=[state_pb2.DraftAcceptance(session="sessions/e")]), "e"),
        (state_pb2.PrefetchSessionsRequest(names=["sessions/f"]), "f"),
        (step_pb2.DecodeRequest(), ""),
        (info_pb2.GetModelRequest(name="models/qwen"), ""),
        (info_pb2.GetServerInfoRequest(), ""),
        (session_pb2.GetSessionRequest(name="sessions/\u00fc"), ""),  # the server says what is wrong with it
    ],
)
def test_a_call_is_routed_by_the_session_that_it_names(request_, route: str) -> None:
    assert Rpc("Method", request_).route == route
    assert Rpc("Method", request_, affinity="mine").route == "mine"
