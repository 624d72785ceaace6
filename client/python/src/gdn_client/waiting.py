"""How the client waits: on threads. Its twin is `aio_waiting`, for asyncio.

The two modules have what the two clients do differently. The rest of the asyncio client is generated from the client
for threads (scripts/generate_aio.py).
Thread safety: as that of the caller.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from gdn_client.errors import DeadlineExceededError, UnavailableError, from_rpc
from gdn_client.flow import Flow
from gdn_client.requests import StateSnapshot
from gdn_client.state_calls import Watched

GRPC: Any = grpc  # makes the channels
CANCELLED: tuple[type[BaseException], ...] = ()  # raised in a task that is cancelled; threads have no such error
sleep = time.sleep


def region_reply(call: Any, timeout: float) -> Any:
    """Returns the reply of a ShareMemory call, which goes on. Cancels the call if `timeout` seconds pass first."""
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        call.cancel()

    too_late = threading.Timer(timeout, give_up)
    too_late.daemon = True
    too_late.start()
    try:
        return next(call)
    except StopIteration:
        raise UnavailableError("the server has ended the memory that it was asked for") from None
    except grpc.RpcError:
        if is_late.is_set():
            raise DeadlineExceededError("the server has shared no memory in time") from None
        raise
    finally:
        too_late.cancel()


def snapshots(run: Callable[[Flow[Watched]], Watched], flow: Flow[Watched]) -> Iterator[StateSnapshot]:
    """Starts a watch at once, and returns its snapshots."""
    check, first, others = run(flow)
    return itertools.chain([first], map(check, others))


class Repeated:
    """Calls `once` again and again on a thread of its own, first after `first` seconds.

    `once` returns the seconds until its next call, or None if there is none. The thread keeps no process alive.
    """

    def __init__(self, once: Callable[[], float | None], first: float) -> None:
        self._once = once
        self._stopped = threading.Event()
        threading.Thread(target=self._run, args=(first,), name="gdn-repeated", daemon=True).start()

    def _run(self, pause: float | None) -> None:
        while pause is not None and not self._stopped.wait(pause):
            pause = self._once()

    def stop(self) -> None:
        """Lets no further call begin. A call that runs goes on."""
        self._stopped.set()


class MessageStream:
    """A call that sends and receives messages. Thread safety: for one thread."""

    def __init__(self, method: Callable[..., Any], metadata: list[tuple[str, str]], timeout: float) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._timeout = timeout
        self._moved = time.monotonic()
        self._call = method(iter(self._requests.get, None), metadata=metadata)
        self._watch = self._start_watch(timeout)

    def _start_watch(self, seconds: float) -> threading.Timer:
        watch = threading.Timer(seconds, self._end_if_idle)
        watch.daemon = True
        watch.start()
        return watch

    def _end_if_idle(self) -> None:
        left = self._moved + self._timeout - time.monotonic()
        if left <= 0:
            self._call.cancel()
        elif self._call.is_active():
            self._watch = self._start_watch(left)

    def send(self, message: Any) -> None:
        """Sends a message, without waiting."""
        self._moved = time.monotonic()
        self._requests.put(message)

    def receive(self) -> Any:
        """Returns the next reply.

        Raises:
            GdnError: the call has ended.

        """
        try:
            reply = next(self._call)
        except StopIteration:
            raise UnavailableError("the server has ended the stream") from None
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        self._moved = time.monotonic()
        return reply

    def close(self) -> None:
        """Ends the call."""
        self._requests.put(None)
        self._watch.cancel()
        self._call.cancel()
