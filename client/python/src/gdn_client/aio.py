"""The client for asyncio: as `gdn_client.Client`, `Session` and `Batch`, with methods to be awaited.

    from gdn_client import aio

    async with aio.Client("127.0.0.1:50061") as client, await client.session(model="qwen") as session:
        y = await session.prefill(layer, x)
        y = await session.decode(layer, x_next)

A step whose task is cancelled may have been taken by the server or not. The next step of the session finds out: where
it was taken the session goes back to before it, by its newest durable copy or its beginning, and the inputs kept.
Thread safety: for the event loop that it is used on; a session for one task at a time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, cast

import grpc
import grpc.aio

from gdn_client import array_flow, management, session_flow
from gdn_client.aio_connection import Connection
from gdn_client.aio_streams import decode_stream
from gdn_client.connection import ConnectionOptions
from gdn_client.errors import from_rpc
from gdn_client.flow import Retry, Rpc, exact
from gdn_client.inputs import Input
from gdn_client.notebook import table
from gdn_client.progress import bar
from gdn_client.proto.gdn.v1 import info_pb2, session_pb2, state_pb2, trace_pb2
from gdn_client.requests import (
    Snapshots,
    StateSnapshot,
    import_requests,
    model_name,
    only_model,
    session_name,
    session_request,
    tier_name,
    watch_request,
)
from gdn_client.session_state import DEFAULT_KEEP_BYTES, SessionState, new_id, step_options
from gdn_client.session_view import SUMMARY, SessionView
from gdn_client.shared_memory import SharedMemory, Wanted
from gdn_client.steps import leading
from gdn_client.streams import DEFAULT_WINDOW, Pipeline
from gdn_client.tensors import Array


class Session(SessionView):
    """As `gdn_client.Session`; methods have its arguments, results and errors."""

    def __init__(self, client: Client, state: SessionState, owned: bool) -> None:
        self._client = client
        self._state = state
        self._owned = owned

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            await self.delete()

    async def prefill(
        self,
        layer: int,
        x: Input,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
        progress: bool = False,
    ) -> Array:
        """Advances a layer by a prompt `[T, ..]`."""
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        limits = await self._client.limits()
        with bar(progress, "prefill", " tokens", leading(x)[0] if leading(x) else None) as told:
            flow = array_flow.prefill(self._state, layer, x, limits, options, timeout, told)
            return await self._client.connection.run(flow)

    async def decode(
        self,
        layer: int,
        x: Input,
        *,
        draft: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer by one token, or by `[T, ..]`."""
        options = step_options(dtype, draft=draft, allow_non_finite=allow_non_finite)
        flow = array_flow.decode([self._state], layer, x, options, timeout, alone=True)
        return await self._client.connection.run(flow)

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Array]:
        """Decodes inputs that are known beforehand, several of them on their way at once; for `async for`."""
        options = step_options(dtype, allow_non_finite=allow_non_finite)
        pipeline = Pipeline([self._state], layer, options, window, alone=True)
        return decode_stream(self._client.connection, pipeline, xs, timeout)

    async def accept(self, tokens: int) -> None:
        """The first tokens of every layer's draft become part of the session."""
        await self._client.connection.run(session_flow.accept([self._state], [tokens]))

    async def fork(self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None) -> list[Session]:
        """New sessions that go on from here."""
        names = list(ids) or [new_id() for _ in range(count)]
        states = await self._client.connection.run(session_flow.fork(self._state, names, idle_ttl))
        return [Session(self._client, state, owned=True) for state in states]

    async def checkpoint(self, checkpoint_id: str = "") -> state_pb2.Checkpoint:
        """Makes the session durable as it is now."""
        return await self._client.connection.run(session_flow.checkpoint(self._state, checkpoint_id))

    async def restore(self, checkpoint_id: str = "") -> None:
        """Takes the session back to a checkpoint."""
        await self._client.connection.run(session_flow.restore(self._state, checkpoint_id))

    async def checkpoints(self) -> list[state_pb2.Checkpoint]:
        """The named ones."""
        return await self._client.connection.run(management.checkpoints(self.name, self._state.retry))

    async def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Ends a named checkpoint and frees its bytes."""
        await self._client.connection.run(management.delete_checkpoint(self.name, checkpoint_id, self._state.retry))

    async def evict(self, tier: str = "host") -> str:
        """Moves the states off the device now; the tier that they are in."""
        return tier_name((await self._client.evict(self.name, tier=tier)).tier)

    async def export_state(self, *, progress: bool = False) -> bytes:
        """The session's states as a safetensors file."""
        return await self._client.export_state(self.name, progress=progress)

    async def delete(self) -> None:
        """Ends the session on the server."""
        self._owned = False
        await self._client.connection.run(session_flow.delete(self._state))

    def detach(self) -> str:
        """The name; leaving the `async with` block does not end the session any more."""
        self._owned = False
        return self.name


class Batch:
    """As `gdn_client.Batch`."""

    def __init__(self, client: Client, sessions: Iterable[Session]) -> None:
        self._client = client
        self._sessions = list(sessions)
        if not self._sessions:
            raise ValueError("a batch has at least one session")

    def __repr__(self) -> str:
        return f"<asyncio Batch of {len(self)} sessions at {self._client.connection.target}>"

    def _repr_html_(self) -> str:
        caption = f"Batch of {len(self)} sessions at {self._client.connection.target}, as this side knows them"
        return table(caption, SUMMARY, [session.summary() for session in self._sessions])

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions)

    async def decode(
        self,
        layer: int,
        x: Input,
        *,
        lengths: Sequence[int] | None = None,
        draft: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer of every session, by `[B, ..]` or `[B, T, ..]`."""
        states = [session._state for session in self._sessions]
        options = step_options(dtype, draft=draft, lengths=lengths, allow_non_finite=allow_non_finite)
        return await self._client.connection.run(array_flow.decode(states, layer, x, options, timeout))

    def decode_stream(
        self,
        layer: int,
        xs: Iterable[Input],
        *,
        window: int = DEFAULT_WINDOW,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Array]:
        """As `Session.decode_stream`, of inputs `[B, D]` or `[B, T, D]`."""
        states = [session._state for session in self._sessions]
        pipeline = Pipeline(states, layer, step_options(dtype, allow_non_finite=allow_non_finite), window, alone=False)
        return decode_stream(self._client.connection, pipeline, xs, timeout)

    async def accept(self, tokens: Sequence[int]) -> None:
        """The first `tokens[i]` tokens of session i's drafts become part of it."""
        states = [session._state for session in self._sessions]
        await self._client.connection.run(session_flow.accept(states, list(tokens)))


class Client:
    """As `gdn_client.Client`, with its arguments."""

    def __init__(
        self,
        target: str = "127.0.0.1:50061",
        *,
        retry: Retry | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        timeout: float = 60.0,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        allow_insecure: bool = False,
        shared_memory: Wanted = None,
    ) -> None:
        options = ConnectionOptions(timeout, token, token_file, tls_ca, tls_cert, tls_key, allow_insecure)
        self.connection = Connection(target, options)
        self._retry = retry or Retry()
        self._keep_bytes = keep_bytes
        self._limits: info_pb2.Limits | None = None
        self.memory = SharedMemory(shared_memory, target)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<asyncio Client of {self.connection.target}>"

    async def close(self) -> None:
        """Ends the connection; sessions stay on the server."""
        self.memory.close()
        await self.connection.close()

    async def _ask(self, method: str, request: Any) -> Any:
        return await self.connection.run(exact(Rpc(method, request), self._retry))

    async def info(self) -> info_pb2.GetServerInfoResponse:
        """Version, backend, devices, limits and use."""
        return cast(info_pb2.GetServerInfoResponse, await self._ask("GetServerInfo", info_pb2.GetServerInfoRequest()))

    async def limits(self) -> info_pb2.Limits:
        """What the server accepts; asked for once."""
        if self._limits is None:
            self._limits = (await self.info()).limits
        return self._limits

    async def models(self) -> list[info_pb2.Model]:
        """Those that are served, by name."""
        return list((await self._ask("ListModels", info_pb2.ListModelsRequest())).models)

    async def session(
        self,
        model: str | None = None,
        *,
        operator: session_pb2.OperatorSpec | None = None,
        session_id: str | None = None,
        affinity: str = "",
        idle_ttl: float | None = None,
        max_lifetime: float | None = None,
        keep_bytes: int | None = None,
    ) -> Session:
        """A new session, at zero."""
        request = session_request(operator, session_id, affinity, idle_ttl, max_lifetime)
        if operator is None:
            request.model = model_name(model) if model is not None else only_model(await self.models())
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        return Session(
            self, await self.connection.run(session_flow.create(request, self._retry, keep, self.memory)), owned=True
        )

    def _state_of(self, session: session_pb2.Session) -> SessionState:
        return SessionState(session, self._retry, None, self._keep_bytes, memory=self.memory)

    async def attach(self, name: str) -> Session:
        """A session that is there, by its id or name."""
        session = (await self._ask("GetSession", session_pb2.GetSessionRequest(name=session_name(name)))).session
        return Session(self, self._state_of(session), owned=False)

    async def sessions(self, *, all: bool = False) -> AsyncIterator[session_pb2.Session]:  # noqa: A002 - the API's word
        """The caller's, by name; with `all`, for admins, everybody's."""
        token = ""
        while True:
            page = await self._ask(
                "ListSessions", session_pb2.ListSessionsRequest(page_size=200, page_token=token, all=all)
            )
            for session in page.sessions:
                yield session
            token = page.next_page_token
            if not token:
                return

    def batch(self, sessions: Iterable[Session]) -> Batch:
        """Sessions to decode in one call."""
        return Batch(self, sessions)

    async def export_state(self, name: str, *, progress: bool = False) -> bytes:
        """A session's states as a safetensors file."""
        request = session_pb2.ExportStateRequest(name=session_name(name))
        file = bytearray()
        with bar(progress, "export", "B") as told:
            try:
                async for piece in self.connection.begin("ExportState", "unary_stream", request, None):
                    file += piece.data
                    told(len(piece.data))
            except grpc.RpcError as error:
                raise from_rpc(error) from None
        return bytes(file)

    async def import_state(
        self,
        file: bytes,
        *,
        model: str | None = None,
        session_id: str | None = None,
        affinity: str = "",
        progress: bool = False,
    ) -> Session:
        """A new session from such a file."""
        name = model_name(model) if model is not None else only_model(await self.models())
        with bar(progress, "import", "B", len(file)) as told:
            requests = import_requests(file, name, session_id, affinity, told)
            try:
                reply = await self.connection.begin("ImportState", "stream_unary", requests, None)
            except grpc.RpcError as error:
                raise from_rpc(error) from None
        return Session(self, self._state_of(reply.session), owned=True)

    async def delete_session(self, name: str, *, subject: str = "") -> None:
        """Ends a session by its id or name; for admins anybody's."""
        await self.connection.run(management.delete_session(name, subject, self._retry))

    async def evict(self, name: str, *, tier: str = "host", subject: str = "") -> session_pb2.Session:
        """Moves a session's states off the device now."""
        return await self.connection.run(management.evict(name, subject, tier, self._retry))

    async def prefetch(self, names: Iterable[str]) -> tuple[int, int]:
        """A hint that these sessions are stepped soon."""
        return await self.connection.run(management.prefetch(names, self._retry))

    async def metrics(self) -> str:
        """What /metrics answers."""
        return await self.connection.run(management.metrics(self._retry))

    async def drain(self, *, wait: bool = False, timeout: float | None = None) -> info_pb2.DrainProgress:
        """Begins the server's end; for admins."""
        return await self.connection.run(management.drain(wait, timeout))

    async def trace(self, *, keep: int | None = None, max_calls: int = 0) -> list[trace_pb2.CallTrace]:
        """Where the time of the caller's last steps went."""
        return await self.connection.run(management.trace(keep, max_calls, self._retry))

    async def watch_state(
        self, name: str, *, every_tokens: int = 0, every: float | None = None
    ) -> AsyncIterator[StateSnapshot]:
        """A session's states now, and again as it advances."""
        snapshots = Snapshots()
        call = self.connection.begin("WatchState", "unary_stream", watch_request(name, every_tokens, every), None)
        try:
            async for piece in call:
                if (whole := snapshots.add(piece)) is not None:
                    yield whole
        except grpc.RpcError as error:
            raise from_rpc(error) from None
        finally:
            call.cancel()
