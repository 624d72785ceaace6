"""The client for asyncio.

It has the classes `Client`, `Session` and `Batch` of `gdn_client`, with methods to be awaited.

    from gdn_client import aio

    async with aio.Client("127.0.0.1:50061") as client, await client.session(model="qwen") as session:
        y = await session.prefill(layer, x)
        y = await session.decode(layer, x_next)

If the task of a step is cancelled, the server may have applied the step or not. Repeat the same step to get its output.
Any other call undoes the step first: the session returns to its newest durable copy or to its start, and the client
replays the inputs that it has kept. If that is not possible, the call raises SessionLostError.
Thread safety: use the objects on one event loop, and each session in one task at a time.
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
    """A connection to one server, for asyncio. Its arguments are those of `gdn_client.Client`."""

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
        """Closes the connection. Sessions stay on the server."""
        self.memory.close()
        await self.connection.close()

    async def _ask(self, method: str, request: Any) -> Any:
        return await self.connection.run(exact(Rpc(method, request), self._retry))

    async def info(self) -> info_pb2.GetServerInfoResponse:
        """Returns the server's version, backend, devices, limits and current use."""
        return cast(info_pb2.GetServerInfoResponse, await self._ask("GetServerInfo", info_pb2.GetServerInfoRequest()))

    async def limits(self) -> info_pb2.Limits:
        """Returns the server's limits. The client fetches them once."""
        if self._limits is None:
            self._limits = (await self.info()).limits
        return self._limits

    async def models(self) -> list[info_pb2.Model]:
        """Returns all served models, sorted by name."""
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
        """Creates a session.

        Its states are zero, or those of the longest prefix of its prompt that the server knows.
        """
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
        """Opens an existing session, by its id or name."""
        session = (await self._ask("GetSession", session_pb2.GetSessionRequest(name=session_name(name)))).session
        return Session(self, self._state_of(session), owned=False)

    async def sessions(self, *, all: bool = False) -> AsyncIterator[session_pb2.Session]:  # noqa: A002 - the API's word
        """Iterates over the caller's sessions, sorted by name. With `all`, an admin gets those of every caller."""
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
        """Groups sessions, so that one call decodes all of them."""
        return Batch(self, sessions)

    async def export_state(self, name: str, *, progress: bool = False) -> bytes:
        """Returns a session's states as the bytes of a safetensors file."""
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
        """Creates a session from the bytes of a state file."""
        name = model_name(model) if model is not None else only_model(await self.models())
        with bar(progress, "import", "B", len(file)) as told:
            requests = import_requests(file, name, session_id, affinity, told)
            try:
                reply = await self.connection.begin("ImportState", "stream_unary", requests, None)
            except grpc.RpcError as error:
                raise self.connection.reach.error(error) from None
        return Session(self, self._state_of(reply.session), owned=True)

    async def delete_session(self, name: str, *, subject: str = "") -> None:
        """Deletes a session, by its id or name. With `subject`, an admin deletes another caller's session."""
        with contextlib.nullcontext() if subject else self.known.ending(session_name(name)):
            await self.connection.run(management.delete_session(name, subject, self._retry))

    async def evict(self, name: str, *, tier: str = "host", subject: str = "") -> session_pb2.Session:
        """Moves a session's states off the device now."""
        return await self.connection.run(management.evict(name, subject, tier, self._retry))

    async def prefetch(self, names: Iterable[str]) -> tuple[int, int]:
        """Hints that these sessions will be stepped soon.

        Returns how many are on the device, and how many are being loaded.
        """
        return await self.connection.run(management.prefetch(names, self._retry))

    async def call_tokens(self, x: Input) -> int:
        """Returns the most tokens of an input like `x` that fit one prefill call."""
        return prefixes.call_tokens(x, await self.limits())

    async def drop_prefixes(self) -> int:
        """Deletes all prefixes that the server keeps for the caller, and returns their number."""
        return await self.connection.run(prefixes.drop_prefixes(self._retry))

    async def metrics(self) -> str:
        """Returns the server's metrics in Prometheus' text format."""
        return await self.connection.run(management.metrics(self._retry))

    async def drain(self, *, wait: bool = False, timeout: float | None = None) -> info_pb2.DrainProgress:
        """Starts the server's shutdown. Only admins may do this."""
        return await self.connection.run(management.drain(wait, timeout))

    async def trace(self, *, keep: int | None = None, max_calls: int = 0) -> list[trace_pb2.CallTrace]:
        """Returns the caller's last steps, each with the time that every stage took."""
        return await self.connection.run(management.trace(keep, max_calls, self._retry))

    async def watch_state(
        self, name: str, *, every_tokens: int = 0, every: float | None = None, epoch: int | None = None
    ) -> AsyncIterator[StateSnapshot]:
        """Yields a session's states now and again as it advances."""
        async for snapshot in self.connection.watch(watch_request(name, every_tokens, every, epoch)):
            yield snapshot
