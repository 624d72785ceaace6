"""Calls on sessions and servers other than steps, as flows: admin calls, leases, checkpoints, prefetching.

Thread safety: free functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.proto.gdn.v1 import admin_pb2, info_pb2, lease_pb2, session_pb2, state_pb2, trace_pb2
from gdn_client.requests import lease_name, session_name, tier_code
from gdn_client.session_state import duration, new_id


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


def open_lease(lease_id: str | None, grace: float | None, retry: Retry) -> Flow[lease_pb2.Lease]:
    """Opens a lease. It has an id, so that a repeated call finds it."""
    request = lease_pb2.OpenLeaseRequest(lease_id=lease_id or new_id(), grace=duration(grace))
    reply: lease_pb2.OpenLeaseResponse = yield from exact(Rpc("OpenLease", request), retry)
    return reply.lease


def renew_lease(name: str, timeout: float) -> Flow[lease_pb2.Lease]:
    """Renews a lease in one try of `timeout` seconds."""
    reply: Any = yield Rpc("RenewLease", lease_pb2.RenewLeaseRequest(name=name), timeout)
    return reply.lease  # type: ignore[no-any-return]


def end_lease(name: str, retry: Retry) -> Flow[int]:
    """Ends a lease, and returns the number of its sessions."""
    request = lease_pb2.EndLeaseRequest(name=lease_name(name))
    reply: lease_pb2.EndLeaseResponse = yield from exact(Rpc("EndLease", request), retry)
    return reply.ended_sessions


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
