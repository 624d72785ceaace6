"""Calls on sessions and servers other than steps, as flows: admin calls, checkpoints, prefetching.

Thread safety: free functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.proto.gdn.v1 import admin_pb2, info_pb2, session_pb2, state_pb2, trace_pb2
from gdn_client.requests import session_name, tier_code


def delete_session(name: str, subject: str, retry: Retry) -> Flow[None]:
    """Deletes a session, of the caller or of `subject`."""
    request = session_pb2.DeleteSessionRequest(name=session_name(name), subject=subject)
    yield from exact(Rpc("DeleteSession", request), retry)


def evict(name: str, subject: str, tier: str, retry: Retry) -> Flow[session_pb2.Session]:
    """Moves a session's states off the device."""
    request = state_pb2.EvictSessionRequest(name=session_name(name), subject=subject, tier=tier_code(tier))
    reply: state_pb2.EvictSessionResponse = yield from exact(Rpc("EvictSession", request), retry)
    return reply.session


def prefetch(names: Iterable[str], retry: Retry) -> Flow[tuple[int, int]]:
    """Returns how many of the sessions are on the device, and how many are being loaded."""
    request = state_pb2.PrefetchSessionsRequest(names=[session_name(name) for name in names])
    reply: state_pb2.PrefetchSessionsResponse = yield from exact(Rpc("PrefetchSessions", request), retry)
    return reply.resident, reply.started


def checkpoints(name: str, retry: Retry) -> Flow[list[state_pb2.Checkpoint]]:
    """Returns the named checkpoints."""
    request = state_pb2.ListCheckpointsRequest(name=session_name(name))
    reply: state_pb2.ListCheckpointsResponse = yield from exact(Rpc("ListCheckpoints", request), retry)
    return list(reply.checkpoints)


def delete_checkpoint(name: str, checkpoint_id: str, retry: Retry) -> Flow[None]:
    """Deletes a named checkpoint."""
    request = state_pb2.DeleteCheckpointRequest(name=session_name(name), checkpoint_id=checkpoint_id)
    yield from exact(Rpc("DeleteCheckpoint", request), retry)


def metrics(retry: Retry) -> Flow[str]:
    """Returns the metrics in Prometheus' text format."""
    reply: admin_pb2.GetMetricsResponse = yield from exact(Rpc("GetMetrics", admin_pb2.GetMetricsRequest()), retry)
    return reply.text


def drain(wait: bool, timeout: float | None) -> Flow[info_pb2.DrainProgress]:
    """Starts the server's shutdown. It is not retried."""
    reply: Any = yield Rpc("Drain", admin_pb2.DrainRequest(wait=wait), timeout)
    return reply.progress  # type: ignore[no-any-return]


def trace(keep: int | None, max_calls: int, retry: Retry) -> Flow[list[trace_pb2.CallTrace]]:
    """Returns the caller's last steps, with the time of each stage."""
    request = trace_pb2.TraceCallsRequest(keep=keep, max_calls=max_calls)
    reply: trace_pb2.TraceCallsResponse = yield from exact(Rpc("TraceCalls", request), retry)
    return list(reply.calls)
