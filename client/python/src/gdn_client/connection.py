"""The connection to a server, which makes calls and runs flows.

Thread safety: any thread may use everything in here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

import grpc

from gdn_client import waiting
from gdn_client.channel import ConnectionOptions, Reach, method_types, open_channel
from gdn_client.errors import UnavailableError
from gdn_client.flow import LEAST_SECONDS, Download, Flow, OpenRegion, Rpc, Wanted, Watch
from gdn_client.proto.gdn.v1 import shared_memory_pb2
from gdn_client.requests import Snapshots, StateSnapshot
from gdn_client.ring import METHODS, RingLink
from gdn_client.shared_memory import Region
from gdn_client.steps import read_reply
from gdn_client.waiting import MessageStream

T = TypeVar("T")
_STEPS = ("Prefill", "Decode", "Step")  # their replies are read without a copy of the output


class Connection:
    """A channel to one server, which runs flows."""

    def __init__(self, target: str, options: ConnectionOptions) -> None:
        options = options.with_environment()
        options.check(target)
        self.target = target
        self.reach = Reach(target)
        self._options = options
        self._channel = open_channel(waiting.GRPC, target, options)
        self._methods: dict[str, Callable[..., Any]] = {}
        self.ring: RingLink | None = None  # threads only

    def use_ring(self) -> None:  # threads only
        """Makes steps go through a ring, where there is one."""
        self.ring = RingLink(self._share)

    def close(self) -> None:
        """Closes the channel and ends every call on it."""
        if self.ring is not None:  # threads only
            self.ring.close()
        self._channel.close()

    def _method(self, name: str, kind: str) -> Callable[..., Any]:
        if name not in self._methods:
            path, reply = method_types(name)
            self._methods[name] = getattr(self._channel, kind)(
                path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=partial(read_reply, reply) if name in _STEPS else reply.FromString,
            )
        return self._methods[name]

    def _timeout(self, own: float | None) -> float:
        """Returns the timeout of a call that may have one of its own."""
        return self._options.timeout if own is None else own

    def call(self, rpc: Rpc) -> Any:
        """Returns the reply.

        Raises:
            GdnError: an error of the server, or of the connection.

        """
        timeout = self._timeout(rpc.timeout)
        if rpc.spent > 0:
            timeout = max(timeout - rpc.spent, LEAST_SECONDS)
        if self.ring is not None and rpc.method in METHODS:  # threads only
            reply, timeout = self.ring.call(rpc.method, rpc.request, timeout)
            if reply is not None:
                self.reach.answered(reply)
                return reply
        unary = self._method(rpc.method, "unary_unary")
        try:
            reply = unary(rpc.request, timeout=timeout, metadata=self._options.metadata(rpc.route))
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        self.reach.answered(reply)
        return reply

    def send_all(self, name: str, requests: Iterator[Any]) -> Any:
        """Sends a stream of requests, and returns the reply."""
        unary = self._method(name, "stream_unary")
        try:
            return unary(requests, metadata=self._options.metadata(""))
        except grpc.RpcError as error:
            raise self.reach.error(error) from None

    @contextlib.contextmanager
    def _replies(self, rpc: Rpc) -> Iterator[Any]:
        """Begins a call, and yields an iterator of its replies. The end of the block cancels the call."""
        call = self._method(rpc.method, "unary_stream")(rpc.request, metadata=self._options.metadata(rpc.route))
        try:
            yield call
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        finally:
            call.cancel()

    def download(self, wanted: Download) -> None:
        """Passes each reply to `wanted.take`."""
        with self._replies(wanted.rpc) as replies:
            for piece in replies:
                wanted.take(piece)

    def watch(self, request: Any, affinity: str = "") -> Iterator[StateSnapshot]:
        """Yields each snapshot when it is complete."""
        snapshots = Snapshots()
        with self._replies(Rpc("WatchState", request, affinity=affinity)) as replies:
            for piece in replies:
                if (whole := snapshots.add(piece)) is not None:
                    yield whole

    def open_stream(self, name: str, affinity: str, timeout: float | None) -> MessageStream:
        """Opens a call in both directions. It fails after `timeout` seconds without a message."""
        return MessageStream(
            self._method(name, "stream_stream"), self._options.metadata(affinity), self._timeout(timeout)
        )

    def share(self, size: int, seconds: float | None = None) -> Region:
        """Returns a region of shared memory, which exists until it is ended. Waits for it at most `seconds`.

        Raises:
            GdnError: the server shares no memory, or has none left.

        """
        reply, end, is_over = self._share_call(shared_memory_pb2.ShareMemoryRequest(bytes=size), self._timeout(seconds))
        try:
            return Region(reply.region, end, is_over)
        except BaseException:
            end()
            raise

    def _share(  # threads only
        self, request: shared_memory_pb2.ShareMemoryRequest, seconds: float
    ) -> tuple[Any, Callable[[], Any]]:
        reply, end, _ = self._share_call(request, seconds)
        return reply, end

    def _share_call(
        self, request: shared_memory_pb2.ShareMemoryRequest, seconds: float
    ) -> tuple[Any, Callable[[], Any], Callable[[], bool]]:
        """Returns the reply of a ShareMemory call, which comes within `seconds`.

        Also returns functions that end the call and tell whether it has ended.
        """
        call = self._method("ShareMemory", "unary_stream")(request, metadata=self._options.metadata(""))
        try:
            return waiting.region_reply(call, seconds), call.cancel, call.done
        except BaseException as error:
            call.cancel()
            if isinstance(error, grpc.RpcError):
                raise self.reach.error(error) from None
            raise

    def _do(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Rpc):
            return self.call(wanted)
        if isinstance(wanted, Download):
            return self.download(wanted)
        if isinstance(wanted, Watch):
            snapshots = self.watch(wanted.request, wanted.affinity)
            for first in snapshots:
                return first, snapshots
            raise UnavailableError("the server has ended the watch")
        if isinstance(wanted, OpenRegion):
            return self.share(wanted.bytes, self._timeout(wanted.timeout) / 2)
        return waiting.sleep(wanted.seconds)

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow to its end."""
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
                    answer = self._do(wanted)
                except Exception as raised:  # the flow handles it
                    error = raised
