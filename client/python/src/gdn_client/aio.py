"""The client for asyncio: as `gdn_client.Client`, `Session` and `Batch`, with methods to be awaited.

    from gdn_client import aio

    async with aio.Client("127.0.0.1:50061") as client, await client.session(model="qwen") as session:
        y = await session.prefill(layer, x)
        y = await session.decode(layer, x_next)

A step whose task is cancelled may have been taken by the server or not. The same step again gets its output. With any
other call it never was: if it was taken, the session goes back to before it, by its newest durable copy or its
beginning, and the inputs kept. If the session cannot go back, SessionLostError says so.
Thread safety: for the event loop that it is used on; a session for one task at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import grpc
import grpc.aio

from gdn_client import management, prefixes, session_flow
from gdn_client.aio_connection import Connection
from gdn_client.aio_session import Batch, Session
from gdn_client.connection import ConnectionOptions
from gdn_client.flow import Download, Retry, Rpc, exact
from gdn_client.inputs import Input
from gdn_client.progress import bar
from gdn_client.proto.gdn.v1 import info_pb2, session_pb2, trace_pb2
from gdn_client.requests import (
    StateSnapshot,
    import_requests,
    model_name,
    only_model,
    session_name,
    session_request,
    watch_request,
)
from gdn_client.session_state import DEFAULT_KEEP_BYTES, KnownSessions, SessionState
from gdn_client.shared_memory import SharedMemory, Wanted
from gdn_client.state_calls import StateFile

__all__ = ["Batch", "Client", "Session"]


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
        connect_timeout: float = 10.0,
    ) -> None:
        options = ConnectionOptions(
            timeout, token, token_file, tls_ca, tls_cert, tls_key, allow_insecure, connect_timeout
        )
        self.connection = Connection(target, options)
        self._retry = retry or Retry()
        self._keep_bytes = keep_bytes
        self._limits: info_pb2.Limits | None = None
        self.memory = SharedMemory(shared_memory, target)
        self.known = KnownSessions()

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
        prefix: session_pb2.PromptPrefix | None = None,
    ) -> Session:
        """A new session, at zero or where a known prefix of its prompt ends."""
        request = session_request(operator, session_id, affinity, idle_ttl, max_lifetime, prefix)
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
        with bar(progress, "export", "B") as told:
            file = StateFile(told)
            await self.connection.download(Download("ExportState", request, file.add))
            return file.whole()

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
                raise self.connection.reach.error(error) from None
        return Session(self, self._state_of(reply.session), owned=True)

    async def delete_session(self, name: str, *, subject: str = "") -> None:
        """Ends a session by its id or name; for admins anybody's."""
        with contextlib.nullcontext() if subject else self.known.ending(session_name(name)):
            await self.connection.run(management.delete_session(name, subject, self._retry))

    async def evict(self, name: str, *, tier: str = "host", subject: str = "") -> session_pb2.Session:
        """Moves a session's states off the device now."""
        return await self.connection.run(management.evict(name, subject, tier, self._retry))

    async def prefetch(self, names: Iterable[str]) -> tuple[int, int]:
        """A hint that these sessions are stepped soon."""
        return await self.connection.run(management.prefetch(names, self._retry))

    async def call_tokens(self, x: Input) -> int:
        """The most tokens of an input such as `x` that one prefill call takes."""
        return prefixes.call_tokens(x, await self.limits())

    async def drop_prefixes(self) -> int:
        """All prefixes that are kept for the caller are gone, so many."""
        return await self.connection.run(prefixes.drop_prefixes(self._retry))

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
        self, name: str, *, every_tokens: int = 0, every: float | None = None, epoch: int | None = None
    ) -> AsyncIterator[StateSnapshot]:
        """A session's states now, and again as it advances."""
        async for snapshot in self.connection.watch(watch_request(name, every_tokens, every, epoch)):
            yield snapshot
