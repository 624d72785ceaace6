"""A client of gdn_server.

    import gdn_client

    with gdn_client.Client("127.0.0.1:50061") as client:
        with client.session(model="qwen") as session:
            y = session.prefill(session.layers[0], x)

Thread safety: a Client may be used by any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gdn_client import session_flow
from gdn_client.connection import Connection, ConnectionOptions
from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.futures import Futures, StepFuture
from gdn_client.proto.gdn.v1 import info_pb2, session_pb2
from gdn_client.session import Batch, Session
from gdn_client.session_state import DEFAULT_KEEP_BYTES, SessionState, duration, new_id
from gdn_client.shared_memory import SharedMemory, Wanted

IMPORT_CHUNK_BYTES = 1 << 20
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

    Connecting is left to the first call.

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
    ) -> None:
        options = ConnectionOptions(timeout, token, token_file, tls_ca, tls_cert, tls_key, allow_insecure)
        self.connection = Connection(target, options)
        self._retry = retry or Retry()
        self._keep_bytes = keep_bytes
        self._limits: info_pb2.Limits | None = None
        self.memory = SharedMemory(shared_memory, target)
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
    ) -> Session:
        """A new session, at zero.

        Args:
            model: name of a served model; where the server has one alone it may be left out.
            operator: dimensions of a bare operator instead.
            session_id: 1 to 128 characters of [A-Za-z0-9._~-]; None: a random one.
            affinity: sessions that are decoded in one call share one, so that they are on one node and device.
            idle_ttl: seconds without a call after which the server ends it; None: the server's.
            max_lifetime: seconds after which it ends, used or not; None: none.
            keep_bytes: as the client's.

        Raises:
            GdnError: MODEL_NOT_FOUND, SESSION_EXISTS, STATE_BUDGET_EXHAUSTED, QUOTA_EXCEEDED and others.

        """
        request = session_request(operator, session_id, affinity, idle_ttl, max_lifetime)
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

    def sessions(self) -> Iterator[session_pb2.Session]:
        """The caller's, by name; pages are fetched as they are needed."""
        token = ""
        while True:
            page = self._ask("ListSessions", session_pb2.ListSessionsRequest(page_size=200, page_token=token))
            yield from page.sessions
            token = page.next_page_token
            if not token:
                return

    def batch(self, sessions: Iterable[Session]) -> Batch:
        """Sessions to decode in one call."""
        return Batch(self, sessions)

    def export_state(self, name: str) -> bytes:
        """A session's states as a safetensors file."""
        request = session_pb2.ExportStateRequest(name=session_name(name))
        pieces = self.connection.stream("ExportState", "unary_stream", request)
        return b"".join(piece.data for piece in pieces)

    def import_state(
        self, file: bytes, *, model: str | None = None, session_id: str | None = None, affinity: str = ""
    ) -> Session:
        """A new session from such a file; the model has to be the one that it was exported of."""
        name = model_name(model) if model is not None else only_model(self.models())
        requests = import_requests(file, name, session_id, affinity)
        reply = self.connection.send_all("ImportState", requests)
        return Session(self, self._state_of(reply.session), owned=True)


# --- What the asyncio client shares.


def only_model(models: Sequence[info_pb2.Model]) -> str:
    """The name of the one that is served.

    Raises:
        ValueError: there is none, or there are several.

    """
    if len(models) != 1:
        names = ", ".join(model.name.removeprefix("models/") for model in models) or "none"
        raise ValueError(f"the server serves {names}; say which model")
    return models[0].name


def model_name(name: str) -> str:
    """As the API has it: "models/NAME"."""
    return name if name.startswith("models/") else f"models/{name}"


def session_name(name: str) -> str:
    """As the API has it: "sessions/ID"."""
    return name if name.startswith("sessions/") else f"sessions/{name}"


def session_request(
    operator: session_pb2.OperatorSpec | None,
    session_id: str | None,
    affinity: str,
    idle_ttl: float | None,
    max_lifetime: float | None,
) -> session_pb2.CreateSessionRequest:
    """The request for a session, of a model yet to be said where there is no operator."""
    request = session_pb2.CreateSessionRequest(session_id=session_id or new_id(), affinity=affinity)
    if operator is not None:
        request.operator.CopyFrom(operator)
    for field, seconds in (("idle_ttl", idle_ttl), ("max_lifetime", max_lifetime)):
        if seconds is not None:
            getattr(request, field).CopyFrom(duration(seconds))
    return request


def import_requests(
    file: bytes, model: str, session_id: str | None, affinity: str
) -> Iterator[session_pb2.ImportStateRequest]:
    """The messages that a state file is sent in."""
    target = session_pb2.ImportStateRequest.Target(
        session_id=session_id or new_id(), model=model, affinity=affinity, total_bytes=len(file)
    )
    yield session_pb2.ImportStateRequest(target=target)
    for begin in range(0, len(file), IMPORT_CHUNK_BYTES):
        yield session_pb2.ImportStateRequest(data=file[begin : begin + IMPORT_CHUNK_BYTES])
