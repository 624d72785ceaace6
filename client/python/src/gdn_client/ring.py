"""A ring to a server on this host, by which steps need no gRPC (`ShareMemoryRequest.ring_entries`).

The ring's own part is a small module in C, `gdn_client._ring`. Where it was not built, or the server gives no ring,
steps are messages; the results are the same. A client that shares memory with its server (`Client(shared_memory=...)`)
uses a ring too.
Thread safety: any thread; calls of several threads overlap. A fork of the process has no ring: its calls are messages.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gdn_client.errors import DeadlineExceededError, GdnError, UnavailableError, from_status
from gdn_client.flow import LEAST_SECONDS
from gdn_client.proto.gdn.v1 import shared_memory_pb2, state_pb2, step_pb2
from gdn_client.proto.google.rpc import status_pb2
from gdn_client.steps import StepReply

try:
    from gdn_client import _ring
except ImportError:  # it was not built for this platform
    _ring = None  # type: ignore[assignment]

ENTRIES = 64
AREA_BYTES = 16 << 20
SPIN_US = 50  # how long a call looks for its reply before it sleeps
RETRY_SECONDS = 5.0  # before the next try to open a ring after a failure
OPEN_SECONDS = 2.0  # most that a call gives to the opening of another ring
_REPLY_BYTES = 4096  # expected of a reply beside its output
_OK, _TOO_LARGE, _TIMEOUT, _FORKED = 0, 1, 2, 5  # results of a ring's call
# Numbers of the methods in a ring, and their replies.
METHODS: dict[str, tuple[int, Any]] = {
    "Step": (1, step_pb2.StepResponse),
    "Decode": (2, step_pb2.DecodeResponse),
    "Prefill": (3, step_pb2.PrefillResponse),
    "AcceptTokens": (4, state_pb2.AcceptTokensResponse),
}


class RingLink:
    """The ring of one connection. It is opened at the first step."""

    def __init__(
        self, share: Callable[[shared_memory_pb2.ShareMemoryRequest, float], tuple[Any, Callable[[], Any]]]
    ) -> None:
        """Takes a function that makes the ShareMemory call, and waits for its reply for so many seconds.

        The function returns the reply and a function that ends the call.
        """
        self._share = share
        self._ring: Any = None
        self._end: Callable[[], Any] | None = None
        self._not_before = 0.0 if _ring is not None else float("inf")
        self._lock = threading.Lock()
        self._owner = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether calls go through the ring now."""
        return self._ring is not None and bool(self._ring.is_open())

    def close(self) -> None:
        """Ends the ring; calls are messages from now on."""
        self._not_before = float("inf")
        self._ring = None
        if self._end is not None and os.getpid() == self._owner:  # in a fork the call is the parent's
            self._end()

    def _opened(self, timeout: float) -> tuple[Any, float]:
        """Returns the ring, or None, and the seconds of the timeout that are left.

        Opens a ring if there is none. While one call does that, the others are messages.
        """
        ring = self._ring
        if ring is not None and ring.is_open():  # never in a fork
            return ring, timeout
        begun = time.monotonic()
        if os.getpid() != self._owner or begun < self._not_before or not self._lock.acquire(blocking=False):
            return None, timeout
        try:
            if self._ring is None or not self._ring.is_open():  # no other thread was faster
                self._ring = None
                self._ring = self._open(timeout / 2 if self._end is None else min(timeout / 2, OPEN_SECONDS))
        except (GdnError, OSError):
            self._not_before = time.monotonic() + RETRY_SECONDS
        finally:
            self._lock.release()
        return self._ring, max(timeout - (time.monotonic() - begun), LEAST_SECONDS)

    def _open(self, seconds: float) -> Any:
        """Returns another ring, which the server has to give within `seconds`."""
        until = time.monotonic() + seconds
        request = shared_memory_pb2.ShareMemoryRequest(bytes=AREA_BYTES, ring_entries=ENTRIES)
        reply, end = self._share(request, seconds)
        try:
            if not reply.HasField("ring"):
                raise OSError("the server is older than rings")
            left_us = max(0, int(1e6 * (until - time.monotonic())))
            ring = _ring.Ring(reply.ring.socket_path, reply.ring.token, SPIN_US, left_us)
        except BaseException:
            end()
            raise
        self._end = end
        return ring

    def call(self, method: str, request: Any, timeout: float) -> tuple[Any, float]:
        """Makes the call and returns its reply, or None: it has to be a message, and the server has not seen it.

        Also returns the seconds of `timeout` that are left for the message. Opening a ring takes half of them at most.

        Raises:
            GdnError: the server's error; UnavailableError if the ring ends meanwhile, after which the call may have
                been applied or not.

        """
        number, kind = METHODS[method]
        ring, left = self._opened(timeout)
        if ring is None:
            return None, left
        message = request.SerializeToString()
        left_us = max(1, int(left * 1e6))
        end, code, told, output = ring.call(number, message, left_us, len(message) + _REPLY_BYTES)
        if end in (_TOO_LARGE, _FORKED):
            return None, left
        if end == _TIMEOUT:
            raise DeadlineExceededError(f"the server has not answered within {timeout} seconds")
        if end != _OK:
            raise UnavailableError("the ring to the server has ended; the call may have been applied or not")
        if code != 0:
            raise from_status(status_pb2.Status.FromString(told))
        reply = kind.FromString(told)
        return (StepReply(reply, memoryview(output)) if output else reply), left
