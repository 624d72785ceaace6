"""Snapshots: read-only states that the server keeps under the client's own keys, as flows.

    session.snapshot("prompt-17")
    with client.session(snapshot="prompt-17") as other: ...
    if client.snapshot_loss_mark != seen:
        told = client.snapshots(lost_after=seen)       # told.snapshots, told.lost
        seen = told.snapshot_loss_mark

Thread safety: free functions; `take` is as its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gdn_client.calls import uses
from gdn_client.errors import GdnError, from_status
from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.proto.gdn.v1 import session_pb2, snapshot_pb2
from gdn_client.session_state import SessionState

_PAGE = 1000


def take(state: SessionState, key: str) -> Flow[snapshot_pb2.Snapshot]:
    """Takes a snapshot of the session's present state."""

    def send() -> Flow[snapshot_pb2.Snapshot]:
        reply: snapshot_pb2.SnapshotSessionResponse = yield state.rpc("SnapshotSession", _request(state, key))
        return reply.snapshot

    return (yield from uses(state, send))


def _request(state: SessionState, key: str) -> snapshot_pb2.SnapshotSessionRequest:
    counts = {layer.count for layer in state.layers.values()}
    expected = counts.pop() if len(counts) == 1 else None
    return snapshot_pb2.SnapshotSessionRequest(
        session=state.name, key=key, session_epoch=state.epoch, expected_token_count=expected
    )


def take_many(states: Sequence[SessionState], keys: Sequence[str]) -> Flow[list[snapshot_pb2.Snapshot | GdnError]]:
    """Takes a snapshot of each session in one call. Returns the snapshot or the error of each."""
    if len(keys) != len(states):
        raise ValueError(f"there are {len(keys)} keys for {len(states)} sessions; give one for each")
    for state in states:
        state.check_not_ended()
    requests = [_request(state, key) for state, key in zip(states, keys, strict=True)]
    call = Rpc(
        "SnapshotSessions", snapshot_pb2.SnapshotSessionsRequest(requests=requests), None, states[0].session.affinity
    )
    reply: snapshot_pb2.SnapshotSessionsResponse = yield from exact(call, states[0].retry)
    return [from_status(one.error) if one.HasField("error") else one.snapshot for one in reply.results]


def create(request: session_pb2.CreateSessionRequest, key: str, retry: Retry) -> Flow[session_pb2.Session]:
    """Creates a session that starts from a snapshot. The request must name an id, so that it can be repeated."""
    request.snapshot = key
    reply: session_pb2.CreateSessionResponse = yield from exact(
        Rpc("CreateSession", request, None, request.affinity or request.session_id), retry
    )
    return reply.session


def listing(lost_after: int, retry: Retry) -> Flow[snapshot_pb2.ListSnapshotsResponse]:
    """Returns all pages as one, with the losses after the one with this mark."""
    request = snapshot_pb2.ListSnapshotsRequest(page_size=_PAGE, lost_after=lost_after)
    told: snapshot_pb2.ListSnapshotsResponse = yield from exact(Rpc("ListSnapshots", request), retry)
    while told.next_page_token:
        request.page_token = told.next_page_token
        page: snapshot_pb2.ListSnapshotsResponse = yield from exact(Rpc("ListSnapshots", request), retry)
        told.snapshots.extend(page.snapshots)
        told.next_page_token = page.next_page_token
    return told


def delete(keys: Iterable[str], retry: Retry) -> Flow[list[GdnError | None]]:
    """Deletes snapshots. Returns None or the error for each key."""
    request = snapshot_pb2.DeleteSnapshotsRequest(keys=keys)
    reply: snapshot_pb2.DeleteSnapshotsResponse = yield from exact(Rpc("DeleteSnapshots", request), retry)
    return [from_status(status) if status.code else None for status in reply.statuses]
