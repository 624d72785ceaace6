"""The connection to a server: TLS, tokens and calls.

Thread safety: any thread may use everything in here.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import grpc
from google.protobuf import message_factory

from gdn_client.address import check_target
from gdn_client.errors import GdnError, NoServerError, UnavailableError, from_rpc
from gdn_client.files import read_file
from gdn_client.flow import Download, Flow, OpenRegion, Rpc, Wanted, Watch, route_of
from gdn_client.proto.gdn.v1 import service_pb2, shared_memory_pb2
from gdn_client.requests import Snapshots, StateSnapshot
from gdn_client.shared_memory import LOCAL, Region
from gdn_client.trouble import connection_trouble

T = TypeVar("T")
_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GdnService"]


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of a connection to one server.

    Attributes:
        timeout: seconds for each call that has no timeout of its own.
        connect_timeout: seconds that one attempt to connect may take. A failed attempt is an UnavailableError.
        token: sent as `authorization: Bearer TOKEN`.
        token_file: file that holds the token. It is read again for each call, so the token can be replaced.
        tls_ca: PEM file of the authority that signed the server's certificate. Without it there is no TLS.
        tls_cert: PEM file of the client's certificate, if the server asks for one.
        tls_key: PEM file of the private key of `tls_cert`.
        allow_insecure: send a token to another machine without TLS.

    """

    timeout: float = 60.0
    token: str | None = None
    token_file: str | os.PathLike[str] | None = None
    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    allow_insecure: bool = False
    connect_timeout: float = 10.0

    def check(self, target: str) -> None:
        """Raises ValueError if options contradict each other or the target is invalid.

        Raises TypeError if it is not a string.
        """
        check_target(target)
        for name, seconds in (("timeout", self.timeout), ("connect_timeout", self.connect_timeout)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} is {seconds}, expected a number of seconds above 0")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given, expected one of them")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_cert wants tls_ca: who has signed the server's certificate")
        has_token = self.token is not None or self.token_file is not None
        if has_token and self.tls_ca is None and not self.allow_insecure and not target.startswith(LOCAL):
            raise ValueError(
                f"a token would go to {target} in the clear; give tls_ca, or allow_insecure=True on a trusted way"
            )

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> ConnectionOptions:
        """Returns the options, with GDN_TOKEN_FILE as the token file if no token is given. gdnctl uses it too."""
        file = environment.get("GDN_TOKEN_FILE")
        return self if self.token or self.token_file or not file else replace(self, token_file=file)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the channel's credentials. None: no TLS."""
        if self.tls_ca is None:
            return None
        read = [None if path is None else read_file(path) for path in (self.tls_ca, self.tls_key, self.tls_cert)]
        return grpc.ssl_channel_credentials(*read)

    def metadata(self, affinity: str) -> list[tuple[str, str]]:
        """Returns the metadata of one call."""
        entries = [("x-gdn-affinity", affinity)] if affinity else []
        token = self.token if self.token_file is None else read_file(self.token_file).decode("ascii").strip()
        if token:
            entries.append(("authorization", token if token.startswith("Bearer ") else f"Bearer {token}"))
        return entries


def channel_options(options: ConnectionOptions) -> list[tuple[str, int]]:
    """Returns the arguments of a gRPC channel."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # gRPC's name for the time that one attempt to connect may take. Its default is 20 s.
        ("grpc.min_reconnect_backoff_ms", max(1, round(1e3 * options.connect_timeout))),
    ]


class Reach:
    """Remembers whether a server has ever answered at a target. Thread safety: any thread."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._answered = False

    def answered(self) -> None:
        """Notes that a reply has arrived."""
        self._answered = True

    def error(self, error: Any) -> GdnError:
        """Converts the error of a call.

        It becomes a NoServerError if no server has answered this call or an earlier one.
        """
        told = from_rpc(error)
        # An error that gRPC made in this process has no metadata.
        from_afar = bool(error.initial_metadata() or error.trailing_metadata())
        if told.code is grpc.StatusCode.UNAVAILABLE and not self._answered and not from_afar:
            return NoServerError(f"no gdn_server answers at {self._target}: {connection_trouble(told.message)}")
        self._answered = self._answered or from_afar
        return told


def method_types(name: str) -> tuple[str, Any]:
    """Returns the path of a method, and the class of its replies."""
    method = _SERVICE.methods_by_name[name]
    return f"/{_SERVICE.full_name}/{name}", message_factory.GetMessageClass(method.output_type)


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


class Connection:
    """A channel to one server, which runs flows."""

    def __init__(self, target: str, options: ConnectionOptions) -> None:
        options = options.with_environment()
        options.check(target)
        self.target = target
        self.reach = Reach(target)
        self._options = options
        credentials = options.credentials()
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=channel_options(options))
        else:
            self._channel = grpc.secure_channel(target, credentials, options=channel_options(options))
        self._methods: dict[str, Callable[..., Any]] = {}

    def close(self) -> None:
        """Closes the channel and ends every call on it."""
        self._channel.close()

    def _method(self, name: str, kind: str) -> Callable[..., Any]:
        if name not in self._methods:
            path, reply = method_types(name)
            make = getattr(self._channel, kind)
            self._methods[name] = make(
                path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=reply.FromString,
            )
        return self._methods[name]

    def call(self, rpc: Rpc) -> Any:
        """Returns the reply.

        Raises:
            GdnError: an error of the server, or of the connection.

        """
        timeout = self._options.timeout if rpc.timeout is None else rpc.timeout
        try:
            reply = self._method(rpc.method, "unary_unary")(
                rpc.request, timeout=timeout, metadata=self._options.metadata(rpc.route)
            )
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        self.reach.answered()
        return reply

    def stream(
        self, name: str, kind: str, request: Any, timeout: float | None = None, affinity: str = ""
    ) -> Iterator[Any]:
        """Yields the replies of a streaming call."""
        metadata = self._options.metadata(affinity or route_of(request))
        call = self._method(name, kind)(request, timeout=timeout, metadata=metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self.reach.error(error) from None
        finally:
            call.cancel()

    def open_stream(self, name: str, affinity: str, timeout: float | None) -> MessageStream:
        """Opens a call in both directions. It ends after `timeout` seconds without a message."""
        seconds = self._options.timeout if timeout is None else timeout
        return MessageStream(self._method(name, "stream_stream"), self._options.metadata(affinity), seconds)

    def send_all(self, name: str, requests: Iterator[Any], timeout: float | None = None) -> Any:
        """Sends a stream of requests, and returns the reply."""
        try:
            return self._method(name, "stream_unary")(requests, timeout=timeout, metadata=self._options.metadata(""))
        except grpc.RpcError as error:
            raise self.reach.error(error) from None

    def share(self, size: int) -> Region:
        """Returns a region of shared memory, which exists until it is ended.

        Raises:
            GdnError: the server shares no memory, or has none left.

        """
        request = shared_memory_pb2.ShareMemoryRequest(bytes=size)
        call = self._method("ShareMemory", "unary_stream")(request, metadata=self._options.metadata(""))
        too_late = threading.Timer(self._options.timeout, call.cancel)
        too_late.daemon = True
        too_late.start()
        try:
            return Region(next(call).region, call.cancel, lambda: not call.is_active())
        except BaseException as error:
            call.cancel()
            if isinstance(error, StopIteration):
                raise UnavailableError("the server has ended the memory that it was asked for") from None
            if isinstance(error, grpc.RpcError):
                raise self.reach.error(error) from None
            raise
        finally:
            too_late.cancel()

    def download(self, wanted: Download) -> None:
        """Passes each reply to `wanted.take`."""
        for piece in self.stream(wanted.method, "unary_stream", wanted.request, affinity=wanted.route):
            wanted.take(piece)

    def watch(self, request: Any, affinity: str = "") -> Iterator[StateSnapshot]:
        """Yields each snapshot when it is complete."""
        snapshots = Snapshots()
        for piece in self.stream("WatchState", "unary_stream", request, affinity=affinity):
            if (whole := snapshots.add(piece)) is not None:
                yield whole

    def _do(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Rpc):
            return self.call(wanted)
        if isinstance(wanted, Download):
            return self.download(wanted)
        if isinstance(wanted, Watch):
            snapshots = self.watch(wanted.request, wanted.affinity)
            if (first := next(snapshots, None)) is None:
                raise UnavailableError("the server has ended the watch")
            return first, snapshots
        if isinstance(wanted, OpenRegion):
            return self.share(wanted.bytes)
        return time.sleep(wanted.seconds)

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow on this thread."""
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
