"""How the client waits: in tasks of asyncio. Its twin is `waiting`, for threads.

Thread safety: for the event loop that it is used on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from gdn_client.errors import DeadlineExceededError, UnavailableError, from_rpc
from gdn_client.flow import Flow
from gdn_client.requests import StateSnapshot
from gdn_client.state_calls import Watched

GRPC: Any = grpc.aio
CANCELLED: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
sleep = asyncio.sleep


async def region_reply(call: Any, timeout: float) -> Any:
    """Returns the reply of a ShareMemory call, which goes on."""
    try:
        reply = await asyncio.wait_for(call.read(), timeout)
    except asyncio.TimeoutError:
        raise DeadlineExceededError("the server has shared no memory in time") from None
    if reply is GRPC.EOF:
        raise UnavailableError("the server has ended the memory that it was asked for")
    return reply


async def snapshots(
    run: Callable[[Flow[Watched]], Awaitable[Watched]], flow: Flow[Watched]
) -> AsyncIterator[StateSnapshot]:
    """Starts a watch when the first snapshot is asked for, and yields its snapshots."""
    check, first, others = await run(flow)
    yield first
    async for snapshot in others:
        yield check(snapshot)


class Repeated:
    """Calls `once` again and again in a task of its own, first after `first` seconds.

    `once` returns the seconds until its next call, or None if there is none.
    """

    def __init__(self, once: Callable[[], Awaitable[float | None]], first: float) -> None:
        self._once = once
        self._task = asyncio.create_task(self._run(first))

    async def _run(self, pause: float | None) -> None:
        while pause is not None:
            await asyncio.sleep(pause)
            pause = await self._once()

    def stop(self) -> None:
        """Ends the task."""
        self._task.cancel()


class MessageStream:
    """A call that sends and receives messages."""

    def __init__(self, method: Callable[..., Any], metadata: list[tuple[str, str]], timeout: float) -> None:
        self._call = method(metadata=metadata)
        self._timeout = timeout

    async def send(self, message: Any) -> None:
        """Sends a message. Waits if the server is slower than the caller. Raises GdnError."""
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            raise UnavailableError("the server has ended the stream") from None
        except grpc.RpcError as error:
            raise from_rpc(error) from None

    async def receive(self) -> Any:
        """Returns the next reply. Raises GdnError."""
        try:
            reply = await asyncio.wait_for(self._call.read(), self._timeout)
        except asyncio.TimeoutError:
            raise DeadlineExceededError("the server has not answered in time") from None
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        if reply is GRPC.EOF:
            raise UnavailableError("the server has ended the stream")
        return reply

    def close(self) -> None:
        """Ends the call."""
        self._call.cancel()
