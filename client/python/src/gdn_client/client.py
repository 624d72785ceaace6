"""A client of gdn_server.

    import gdn_client

    with gdn_client.Client("127.0.0.1:50061") as client:
        with client.session(model="qwen") as session:
            y = session.prefill(session.layers[0], x)

Thread safety: a Client may be used by any number of threads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gdn_client import management, prefixes, session_flow
from gdn_client.connection import Connection, ConnectionOptions
from gdn_client.errors import GdnError
from gdn_client.flow import Download, Flow, Retry, Rpc, exact
from gdn_client.futures import Futures, StepFuture
from gdn_client.inputs import Input
from gdn_client.notebook import size, table
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
from gdn_client.session import Batch, Session
from gdn_client.session_state import DEFAULT_KEEP_BYTES, KnownSessions, SessionState
from gdn_client.shared_memory import SharedMemory, Wanted
from gdn_client.state_calls import StateFile

__all__ = ["Client", "model_name", "only_model"]
T = TypeVar("T")


class Client:
    """A connection to one server, and the sessions on it. A context manager: it closes the connection.

    Args:
        target: "HOST:PORT", "unix:/PATH", or any name that gRPC knows.
        retry: of calls that may be repeated; every step may.
        keep_bytes: bytes of inputs that a session keeps in case the server crashes, since its newest durable copy;
            0: none, and a loss is raised (EPOCH_MISMATCH, SESSION_NOT_FOUND).
        timeout: as in ConnectionOptions, as are the others.
        token: as above.
        token_file: as above; GDN_TOKEN_FILE in the environment where neither is given.
        tls_ca: as above.
        tls_cert: as above.
        tls_key: as above.
        allow_insecure: as above.
        shared_memory: bytes of memory to share with the server, which has to be on this host, so that the tensors of
            steps do not travel in messages: UnimplementedError or ResourceExhaustedError by the first step where there
            is none to be had. "auto": 64 MiB where the target is on this host and shares any. See `shared_memory`.
        connect_timeout: as in ConnectionOptions.

    Raises:
        TypeError: the target is no string.
        ValueError: the target is empty, too long or has no valid port; or arguments do not go together.

    Connecting is left to the first call. It raises NoServerError if nothing answers at the target.

    """

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
        self._futures = Futures()

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self.connection.target

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.target}>"

    def _repr_html_(self) -> str:
        # One try: a notebook is to show it though there is no server.
        try:
            told = self.connection.call(Rpc("GetServerInfo", info_pb2.GetServerInfoRequest(), 2.0))
            served = self.connection.call(Rpc("ListModels", info_pb2.ListModelsRequest(), 2.0)).models
        except GdnError as error:
            return table(f"Client of {self.target}", [], [["no answer", error]])
        server = f"gdn_server {told.version}, {told.backend}, {told.device}"
        rows = [
            [
                model.name.removeprefix("models/"),
                model.family,
                len(model.gdn_layers),
                model.dims.hidden_size,
                size(model.state_bytes_per_session),
            ]
            for model in served
        ]
        caption = f"Client of {self.target}: {server}, {told.session_count} sessions"
        return table(caption, ["model", "family", "layers", "hidden size", "a session's state"], rows)

    def close(self) -> None:
        """Ends the connection; sessions stay on the server."""
        self._futures.close()
        self.memory.close()
        self.connection.close()

    def start(self, states: Sequence[SessionState], flow: Callable[[], Flow[T]]) -> StepFuture[T]:
        """A flow on a thread of its own, once all that was asked of these sessions before is done."""
        return self._futures.start(states, lambda: self.connection.run(flow()))

    def _ask(self, method: str, request: Any) -> Any:
        return self.connection.run(exact(Rpc(method, request), self._retry))

    def info(self) -> info_pb2.GetServerInfoResponse:
        """Version, backend, devices, limits and use."""
        reply: info_pb2.GetServerInfoResponse = self._ask("GetServerInfo", info_pb2.GetServerInfoRequest())
        return reply

    @property
    def limits(self) -> info_pb2.Limits:
        """What the server accepts; asked for once."""
        if self._limits is None:
            self._limits = self.info().limits
        return self._limits

    def models(self) -> list[info_pb2.Model]:
        """Those that are served, by name."""
        return list(self._ask("ListModels", info_pb2.ListModelsRequest()).models)

    def model(self, name: str) -> info_pb2.Model:
        """One of them; "qwen" or "models/qwen"."""
        reply: info_pb2.GetModelResponse = self._ask("GetModel", info_pb2.GetModelRequest(name=model_name(name)))
        return reply.model

    def session(
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
        """A new session, at zero or where a known prefix of its prompt ends.

        Args:
            model: name of a served model; where the server has one alone it may be left out.
            operator: dimensions of a bare operator instead; with decay=DecayKind.DECAY_KIND_PER_CHANNEL its g has a K
                axis.
            session_id: 1 to 128 characters of [A-Za-z0-9._~-]; None: a random one.
            affinity: sessions that are decoded in one call share one, so that they are on one node and device.
            idle_ttl: seconds without a call after which the server ends it; None: the server's.
            max_lifetime: seconds after which it ends, used or not; None: none.
            keep_bytes: as the client's.
            prefix: of its prompt (`prompt_prefix`); `Session.prefix_tokens` of it need not be computed.

        Raises:
            GdnError: MODEL_NOT_FOUND, SESSION_EXISTS, STATE_BUDGET_EXHAUSTED, QUOTA_EXCEEDED and others.

        """
        request = session_request(operator, session_id, affinity, idle_ttl, max_lifetime, prefix)
        if operator is None:
            request.model = model_name(model) if model is not None else only_model(self.models())
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        return Session(
            self, self.connection.run(session_flow.create(request, self._retry, keep, self.memory)), owned=True
        )

    def _state_of(self, session: session_pb2.Session) -> SessionState:
        return SessionState(session, self._retry, None, self._keep_bytes, memory=self.memory)

    def attach(self, name: str) -> Session:
        """A session that is there, by its id or name; leaving its `with` block does not end it."""
        request = session_pb2.GetSessionRequest(name=session_name(name))
        session = self._ask("GetSession", request).session
        return Session(self, self._state_of(session), owned=False)

    def sessions(self, *, all: bool = False) -> Iterator[session_pb2.Session]:  # noqa: A002 - the API's word
        """The caller's, by name; with `all`, for admins, everybody's, each with its `owner`.

        Pages are fetched as they are needed.

        Raises:
            PermissionDeniedError: `all`, and the caller is no admin.

        """
        token = ""
        while True:
            page = self._ask("ListSessions", session_pb2.ListSessionsRequest(page_size=200, page_token=token, all=all))
            yield from page.sessions
            token = page.next_page_token
            if not token:
                return

    def batch(self, sessions: Iterable[Session]) -> Batch:
        """Sessions to decode in one call."""
        return Batch(self, sessions)

    def export_state(self, name: str, *, progress: bool = False) -> bytes:
        """A session's states as a safetensors file.

        Args:
            name: its id or name.
            progress: show a bar; wants tqdm.

        """
        request = session_pb2.ExportStateRequest(name=session_name(name))
        with bar(progress, "export", "B") as told:
            file = StateFile(told)
            self.connection.download(Download("ExportState", request, file.add))
            return file.whole()

    def import_state(
        self,
        file: bytes,
        *,
        model: str | None = None,
        session_id: str | None = None,
        affinity: str = "",
        progress: bool = False,
    ) -> Session:
        """A new session from such a file.

        Args:
            file: of `export_state`, of any server.
            model: the one that it was exported of; may be left out where one alone is served.
            session_id: as in `session`.
            affinity: as in `session`.
            progress: show a bar; wants tqdm.

        Raises:
            FailedPreconditionError: STATE_MISMATCH, it is another model's.
            DataLossError: INVALID_STATE_FILE, it is damaged.

        """
        name = model_name(model) if model is not None else only_model(self.models())
        with bar(progress, "import", "B", len(file)) as told:
            requests = import_requests(file, name, session_id, affinity, told)
            reply = self.connection.send_all("ImportState", requests)
        return Session(self, self._state_of(reply.session), owned=True)

    def delete_session(self, name: str, *, subject: str = "") -> None:
        """Ends a session by its id or name; for admins with `subject` that of another, as `Session.owner` tells it.

        Raises:
            NotFoundError: there is none, or it is another's.
            PermissionDeniedError: `subject`, and the caller is no admin.

        """
        with contextlib.nullcontext() if subject else self.known.ending(session_name(name)):
            self.connection.run(management.delete_session(name, subject, self._retry))

    def evict(self, name: str, *, tier: str = "host", subject: str = "") -> session_pb2.Session:
        """Moves a session's states off the device now; its next step brings them back, with the same bits.

        Args:
            name: its id or name.
            tier: the fastest that may have them: "host", "disk" or "redis".
            subject: as in `delete_session`.

        Returns:
            The session, with its `tier`.

        Raises:
            FailedPreconditionError: NO_DURABLE_TIER, the server has no such tier nor a slower one.

        """
        return self.connection.run(management.evict(name, subject, tier, self._retry))

    def prefetch(self, names: Iterable[str]) -> tuple[int, int]:
        """A hint that these sessions are stepped soon: how many are on the device, and how many on their way there."""
        return self.connection.run(management.prefetch(names, self._retry))

    def call_tokens(self, x: Input) -> int:
        """The most tokens of an input such as `x` that one prefill call takes: the longest segment of a prefix."""
        return prefixes.call_tokens(x, self.limits)

    def drop_prefixes(self) -> int:
        """All prefixes that are kept for the caller are gone, so many; sessions that began with one go on."""
        return self.connection.run(prefixes.drop_prefixes(self._retry))

    def metrics(self) -> str:
        """What /metrics answers, in Prometheus' text form; for admins where callers have to log in."""
        return self.connection.run(management.metrics(self._retry))

    def drain(self, *, wait: bool = False, timeout: float | None = None) -> info_pb2.DrainProgress:
        """Begins the server's end, as SIGTERM does; for admins. It cannot be called back.

        Args:
            wait: answer when all is done that the server does while it answers.
            timeout: seconds; None: the client's.

        Returns:
            How far it is; `info().drain` tells later.

        Raises:
            PermissionDeniedError: the caller is no admin.

        """
        return self.connection.run(management.drain(wait, timeout))

    def trace(self, *, keep: int | None = None, max_calls: int = 0) -> list[trace_pb2.CallTrace]:
        """Where the time of the caller's last steps went, by stage.

        Args:
            keep: how many the server keeps from now on, of all callers; 0: none; None: as it is.
            max_calls: the newest so many; 0: all that are kept.

        """
        return self.connection.run(management.trace(keep, max_calls, self._retry))

    def watch_state(
        self, name: str, *, every_tokens: int = 0, every: float | None = None, epoch: int | None = None
    ) -> Iterator[StateSnapshot]:
        """A session's states now, and again as it advances, for a warm standby; ends with the session.

        Args:
            name: its id or name.
            every_tokens: a snapshot once a layer has seen so many tokens since the last; 0: not by tokens.
            every: a snapshot after so many seconds in which the session has moved; None: not by time.
            epoch: the session's; the watch ends where it is another. None: any. `Session.watch_state` knows it.

        Raises:
            NotFoundError: there is no such session any more.
            AbortedError: EPOCH_MISMATCH, the session has lost steps.

        """
        yield from self.connection.watch(watch_request(name, every_tokens, every, epoch))
