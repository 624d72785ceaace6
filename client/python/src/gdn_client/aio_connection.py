"""A connection to a server for asyncio: the twin of `connection.Connection`.

Thread safety: for the event loop that it is used on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from gdn_client.aio_streams import MessageStream
from gdn_client.connection import ConnectionOptions, Reach, channel_options, method_types
from gdn_client.errors import DeadlineExceededError, UnavailableError
from gdn_client.flow import Download, Flow, OpenRegion, Rpc, Wanted, Watch, route_of
from gdn_client.proto.gdn.v1 import shared_memory_pb2
from gdn_client.requests import Snapshots, StateSnapshot
from gdn_client.shared_memory import Region

T = TypeVar("T")


class Connection:
    """A channel to one server, which runs flows."""

    def __init__(self, target: str, options: ConnectionOptions) -> None:
        self.target = target
        self._options = options.with_environment()
        self._options.check(target)
        self.reach = Reach(target)
        arguments = channel_options(self._options)
        credentials = self._options.credentials()
        self._channel: Any = (
            grpc.aio.insecure_channel(target, options=arguments)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=arguments)
        )

    async def close(self) -> None:
        """Closes the channel and ends every call on it."""
        await self._channel.close()

    def begin(self, name: str, kind: str, request: Any, timeout: float | None, affinity: str = "") -> Any:
        """Starts a call of grpc.aio."""
        path, reply = method_types(name)
        method = getattr(self._channel, kind)(
            path, request_serializer=lambda message: message.SerializeToString(), response_deserializer=reply.FromString
        )
        return method(request, timeout=timeout, metadata=self._options.metadata(affinity))

    async def call(self, rpc: Rpc) -> Any:
        """Returns the reply. Raises GdnError."""
        timeout = self._options.timeout if rpc.timeout is None else rpc.timeout
        try:
            reply = await self.begin(rpc.method, "unary_unary", rpc.request, timeout, rpc.route)
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        self.reach.answered()
        return reply

    async def share(self, size: int) -> Region:
        """Returns a region of shared memory, which exists until it is ended."""
        call = self.begin("ShareMemory", "unary_stream", shared_memory_pb2.ShareMemoryRequest(bytes=size), None)
        try:
            reply = await asyncio.wait_for(call.read(), self._options.timeout)
            if reply is cast(Any, grpc.aio).EOF:
                raise UnavailableError("the server has ended the memory that it was asked for")
            return Region(reply.region, call.cancel, call.done)
        except BaseException as error:
            call.cancel()
            if isinstance(error, grpc.RpcError):
                raise self.reach.error(error) from None
            if isinstance(error, asyncio.TimeoutError):
                raise DeadlineExceededError("the server has shared no memory in time") from None
            raise

    def open_stream(self, name: str, affinity: str, timeout: float | None) -> MessageStream:
        """Opens a call in both directions. It fails if a reply takes longer than `timeout` seconds."""
        path, reply = method_types(name)
        method = self._channel.stream_stream(
            path, request_serializer=lambda message: message.SerializeToString(), response_deserializer=reply.FromString
        )
        call = method(metadata=self._options.metadata(affinity))
        return MessageStream(call, self._options.timeout if timeout is None else timeout)

    async def download(self, wanted: Download) -> None:
        """Passes each reply to `wanted.take`."""
        call = self.begin(wanted.method, "unary_stream", wanted.request, None, wanted.route)
        try:
            async for piece in call:
                wanted.take(piece)
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        finally:
            call.cancel()

    async def watch(self, request: Any, affinity: str = "") -> AsyncIterator[StateSnapshot]:
        """Yields each snapshot when it is complete."""
        snapshots = Snapshots()
        call = self.begin("WatchState", "unary_stream", request, None, affinity or route_of(request))
        try:
            async for piece in call:
                if (whole := snapshots.add(piece)) is not None:
                    yield whole
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        finally:
            call.cancel()

    async def _do(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Rpc):
            return await self.call(wanted)
        if isinstance(wanted, Download):
            return await self.download(wanted)
        if isinstance(wanted, Watch):
            snapshots = self.watch(wanted.request, wanted.affinity)
            async for first in snapshots:
                return first, snapshots
            raise UnavailableError("the server has ended the watch")
        if isinstance(wanted, OpenRegion):
            return await self.share(wanted.bytes)
        return await asyncio.sleep(wanted.seconds)

    async def run(self, flow: Flow[T]) -> T:
        """Runs a flow on this task."""
        answer: Any = None
        error: Exception | None = None
        with contextlib.closing(flow):
            while True:
                try:
                    wanted = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as end:
                    return cast(T, end.value)
                answer, error = None, None
                try:
                    answer = await self._do(wanted)
                except Exception as raised:  # the flow handles it
                    error = raised
