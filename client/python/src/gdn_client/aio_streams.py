"""Steps that follow each other in a stream, for asyncio: the twin of `streams.outputs`.

Thread safety: as that of a session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from gdn_client.errors import DeadlineExceededError, GdnError, UnavailableError, from_rpc
from gdn_client.inputs import Input
from gdn_client.streams import Pipeline
from gdn_client.tensors import Array

if TYPE_CHECKING:
    from gdn_client.aio_connection import Connection


class MessageStream:
    """A call that sends and receives messages."""

    def __init__(self, call: Any, timeout: float) -> None:
        self._call = call
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
        if reply is cast(Any, grpc.aio).EOF:
            raise UnavailableError("the server has ended the stream")
        return reply

    def close(self) -> None:
        """Ends the call."""
        self._call.cancel()


async def outputs(
    connection: Connection, pipeline: Pipeline, inputs: Iterable[Input], timeout: float | None
) -> AsyncIterator[Array]:
    """Yields the outputs, in order.

    If the caller stops early, steps in flight are still applied. If the caller's task is cancelled, they are undone.
    """
    stream: MessageStream | None = None

    async def from_stream(open_stream: MessageStream) -> Array | None:
        """Returns the oldest step's output, or None if the stream has failed."""
        nonlocal stream
        try:
            output = pipeline.take(await open_stream.receive())
            if output is not None:
                return output
            for _ in range(len(pipeline.under_way) - 1):  # these fail too, because of their counts; no state changes
                await open_stream.receive()
        except GdnError:
            pass  # the stream has ended; the calls report why
        open_stream.close()
        stream = None
        return None

    async def oldest() -> Array:
        output = await from_stream(stream) if stream is not None else None
        return await connection.run(pipeline.again(timeout)) if output is None else output

    try:
        for x in inputs:
            message = pipeline.add(x)
            if stream is None:
                stream = connection.open_stream(pipeline.method, pipeline.affinity, timeout)
            with contextlib.suppress(GdnError):  # the next reply reports the error
                await stream.send(message)
            while pipeline.is_full or (stream is None and pipeline.under_way):
                yield await oldest()
        while pipeline.under_way:
            yield await oldest()
    except asyncio.CancelledError:
        pipeline.give_up()
        raise
    finally:
        try:
            while pipeline.under_way:
                await oldest()
        finally:
            if stream is not None:
                stream.close()
