"""A client of gdn_server.

    import gdn_client

    with gdn_client.Client("127.0.0.1:50061") as client:
        with client.session(model="qwen") as session:
            y = session.prefill(session.layers[0], x)

Thread safety: any number of threads may use one Client.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gdn_client import management, many, prefixes, requests, session_flow, snapshots
from gdn_client.channel import ConnectionOptions
from gdn_client.connection import Connection
from gdn_client.errors import GdnError
from gdn_client.flow import Download, Flow, Retry, Rpc, exact
from gdn_client.futures import Futures, StepFuture
from gdn_client.inputs import Input
from gdn_client.lease import Lease
from gdn_client.notebook import size, table
from gdn_client.progress import bar
from gdn_client.proto.gdn.v1 import info_pb2, lease_pb2, session_pb2, snapshot_pb2, trace_pb2
from gdn_client.requests import StateSnapshot, model_name, session_name
from gdn_client.session import Batch, Session
from gdn_client.session_state import DEFAULT_KEEP_BYTES, KnownSessions, SessionState, new_id
from gdn_client.shared_memory import SharedMemory, Wanted
from gdn_client.state_calls import StateFile

T = TypeVar("T")


class Client:
    """A connection to one server. It can be used as a context manager, which closes the connection at the end.

    The constructor does not connect; the first call does. That call raises NoServerError if no server answers.

    Args:
        target: address of the server. It is "HOST:PORT", "unix:/PATH" or another name that gRPC understands.
        retry: how long failed calls are retried. Only calls that are safe to repeat are retried; every step is safe.
        keep_bytes: most bytes of inputs that each session keeps since its newest durable copy, to replay them after a
            crash of the server. At the limit the client asks for a checkpoint, or drops the oldest inputs if there is
            no durable tier. With 0 the client keeps no inputs, and raises EPOCH_MISMATCH or SESSION_NOT_FOUND after a
            loss.
        timeout: seconds that one try of a call may take, unless the call has a timeout of its own. If a step has to
            open shared memory or a ring first, each takes half of what is left of the step's timeout at most.
        token: sent with each call as `authorization` metadata, "Bearer TOKEN".
        token_file: file that holds the token. The client reads it again for each call, so you can replace the token.
            Without `token` and `token_file`, the environment variable GDN_TOKEN_FILE names the file.
        tls_ca: PEM file of the authority that signed the server's certificate. Without it the client uses no TLS.
        tls_cert: PEM file of the client's certificate, if the server asks for one. It needs `tls_key` and `tls_ca`.
        tls_key: PEM file of the private key of `tls_cert`.
        allow_insecure: allow the client to send a token to another machine without TLS.
        shared_memory: bytes of memory to share with the server, so that tensors do not travel in messages. The server
            must run on this host. If it shares none, the first step raises UnimplementedError or
            ResourceExhaustedError. With "auto" the client shares 64 MiB if the target is on this host and the server
            allows it. Otherwise tensors travel in messages. None shares no memory. If memory is shared, steps also go
            through a ring of 16 MiB more, without gRPC, if the server gives one.
        connect_timeout: seconds that one attempt to connect may take.

    Raises:
        TypeError: the target is not a string.
        ValueError: the target is empty, is too long or has an invalid port, or two arguments contradict each other.

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
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._keep_bytes = keep_bytes
        self._limits: info_pb2.Limits | None = None
        self.memory = SharedMemory(shared_memory, target)
        if self.memory.wanted:  # threads only
            self.connection.use_ring()
        self.known = KnownSessions()
        self.abilities = session_flow.Abilities()
        self._futures = Futures()  # threads only

    @property
    def target(self) -> str:
        """The address of the server, as given."""
        return self.connection.target

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.target}>"

    def _repr_html_(self) -> str:  # threads only
        # One try, so that a notebook shows the object even without a server.
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
        """Closes the connection. Sessions stay on the server; those of a lease end a grace period later."""
        for lease in self._leases:
            lease.stop()
        self._futures.close()  # threads only
        self.memory.close()
        self.connection.close()

    def start(  # threads only
        self, states: Sequence[SessionState], flow: Callable[[], Flow[T]]
    ) -> StepFuture[T]:
        """For internal use. Runs a flow of calls on another thread, after all earlier calls of these sessions."""
        return self._futures.start(states, lambda: self.connection.run(flow()))

    def _ask(self, method: str, request: Any) -> Any:
        return self.connection.run(exact(Rpc(method, request), self._retry))

    def info(self) -> info_pb2.GetServerInfoResponse:
        """Returns the server's version, backend, devices, limits and current use."""
        reply: info_pb2.GetServerInfoResponse = self._ask("GetServerInfo", info_pb2.GetServerInfoRequest())
        return reply

    @property
    def limits(self) -> info_pb2.Limits:
        """The server's limits. The client fetches them once."""
        return self.limits_within(None)

    def limits_within(self, timeout: float | None) -> info_pb2.Limits:
        """For internal use. Returns the limits, for a call with this timeout."""
        if self._limits is None:
            rpc = Rpc("GetServerInfo", info_pb2.GetServerInfoRequest(), timeout)
            reply: info_pb2.GetServerInfoResponse = self.connection.run(exact(rpc, self._retry))
            self._limits = reply.limits
        return self._limits

    def models(self) -> list[info_pb2.Model]:
        """Returns all served models, sorted by name."""
        return list(self._ask("ListModels", info_pb2.ListModelsRequest()).models)

    def model(self, name: str) -> info_pb2.Model:
        """Returns one served model. Its name is "qwen" or "models/qwen"."""
        reply: info_pb2.GetModelResponse = self._ask("GetModel", info_pb2.GetModelRequest(name=model_name(name)))
        return reply.model

    def _served(self, model: str | None) -> str:
        return model_name(model) if model is not None else requests.only_model(self.models())

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
        lease: Lease | str | None = None,
        snapshot: str | None = None,
    ) -> Session:
        """Creates a session. Its states are zero, those of a known prefix of its prompt, or those of a snapshot.

        Args:
            model: name of a served model. You may omit it if the server serves only one.
            operator: dimensions of a bare delta rule, instead of a model. With decay=DecayKind.DECAY_KIND_PER_CHANNEL,
                the tensor g has a K axis.
            session_id: 1 to 128 characters of [A-Za-z0-9._~-]. None: the client draws a random id.
            affinity: key for routing. Give sessions that you decode in one call the same key, so that they are on one
                node and one device.
            idle_ttl: seconds without a call after which the server deletes the session. None: the server's default.
            max_lifetime: seconds after which the server deletes the session, even if it is in use. None: no limit.
            keep_bytes: as in `Client`, for this session. None: the client's value.
            prefix: segments of the session's prompt, made by `prompt_prefix`. If the server knows some of them, the
                session starts after these. You skip the first `Session.prefix_tokens` tokens of the prompt.
            lease: the session ends with this lease, which `lease` opened; or the lease's name. Its forks do, too.
            snapshot: key of a snapshot (`Session.snapshot`). The session has its model or operator, and its tokens.
                After a crash of the server the client cannot recreate such a session without a checkpoint.

        Raises:
            GdnError: for example MODEL_NOT_FOUND, SESSION_EXISTS, STATE_BUDGET_EXHAUSTED, QUOTA_EXCEEDED, or
                LEASE_NOT_FOUND if the lease has ended.
            NotFoundError: SNAPSHOT_NOT_FOUND.
            ValueError: a model, an operator or a prefix is given beside a snapshot.

        """
        owner = requests.lease_name(lease)
        request = requests.session_request(operator, session_id, affinity, idle_ttl, max_lifetime, prefix, owner)
        if snapshot is not None:
            if model is not None or operator is not None or prefix is not None:
                raise ValueError("a session that starts from a snapshot has its model and tokens; give nothing else")
            made = self.connection.run(snapshots.create(request, snapshot, self._retry))
            return Session(self, self._state_of(made, keep_bytes), owned=True)
        if operator is None:
            request.model = self._served(model)
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        return Session(
            self, self.connection.run(session_flow.create(request, self._retry, keep, self.memory)), owned=True
        )

    def create_sessions(
        self,
        count: int = 1,
        model: str | None = None,
        *,
        operator: session_pb2.OperatorSpec | None = None,
        ids: Sequence[str] = (),
        affinity: str = "",
        idle_ttl: float | None = None,
        max_lifetime: float | None = None,
        lease: Lease | str | None = None,
        keep_bytes: int | None = None,
    ) -> list[Session]:
        """Creates `count` sessions in one call. Their states are zero. They share one affinity, and so one device.

        Args:
            count: number of sessions. More than `limits.max_batch` take several calls.
            model: as in `session`.
            operator: as in `session`.
            ids: ids of the sessions. They replace `count`.
            affinity: as in `session`. "": a random key.
            idle_ttl: as in `session`.
            max_lifetime: as in `session`.
            lease: as in `session`.
            keep_bytes: as in `session`.

        Raises:
            GdnError: a session could not be created, as in `session`. None of them is left.

        """
        names, key = list(ids) or [new_id() for _ in range(count)], affinity or new_id()
        owner = requests.lease_name(lease)
        wanted = [requests.session_request(operator, name, key, idle_ttl, max_lifetime, None, owner) for name in names]
        served = "" if operator is not None else self._served(model)
        for request in wanted if operator is None else ():
            request.model = served
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        how = many.Many(self.limits.max_batch, self.abilities, self._retry)
        states = self.connection.run(many.create(wanted, how, keep, self.memory))
        return [Session(self, state, owned=True) for state in states]

    def start_sessions(
        self,
        snapshots: Sequence[str | None],
        model: str | None = None,
        *,
        affinity: str = "",
        lease: Lease | str | None = None,
        keep_bytes: int | None = None,
    ) -> list[Session | GdnError]:
        """Creates a session for each entry in one call. Each of them fails alone.

        Args:
            snapshots: for each session the key of the snapshot that it starts from, or None for zero tokens.
            model: model of the sessions that start from zero tokens, as in `session`.
            affinity: as in `create_sessions`.
            lease: as in `session`.
            keep_bytes: as in `session`.

        Returns:
            The session, or its error, for each entry. NotFoundError (SNAPSHOT_NOT_FOUND): the snapshot was evicted.

        """
        key, owner = affinity or new_id(), requests.lease_name(lease)
        wanted = [requests.session_request(None, new_id(), key, None, None, None, owner) for _ in snapshots]
        served = self._served(model)
        for request, snapshot in zip(wanted, snapshots, strict=True):
            if snapshot is None:
                request.model = served
            else:
                request.snapshot = snapshot
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        how = many.Many(self.limits.max_batch, self.abilities, self._retry)
        states = self.connection.run(many.create_each(wanted, how, keep, self.memory))
        return [state if isinstance(state, GdnError) else Session(self, state, owned=True) for state in states]

    def lease(self, *, grace: float | None = None, lease_id: str | None = None) -> Lease:
        """Opens a lease, and renews it until it is stopped or ended, or the process ends.

        Sessions that are created with `session(lease=...)` end a grace period after the last renewal.

        Args:
            grace: seconds, 1 to 604800 (7 days). None: 60 seconds.
            lease_id: 1 to 128 characters of [A-Za-z0-9._~-]. None: the client draws a random id.

        Raises:
            GdnError: for example LEASE_EXISTS or TOO_MANY_LEASES.

        """
        opened = Lease(self, self.connection.run(management.open_lease(lease_id, grace, self._retry)))
        self._leases.add(opened)
        return opened

    def leases(self) -> Iterator[lease_pb2.Lease]:
        """Iterates over the caller's leases on this server, sorted by name, also those of other processes."""
        token = ""
        while True:
            page = self._ask("ListLeases", lease_pb2.ListLeasesRequest(page_size=200, page_token=token))
            yield from page.leases
            token = page.next_page_token
            if not token:
                return

    def end_lease(self, name: str) -> int:
        """Ends a lease, by its id or name, and deletes its sessions. Returns how many sessions were deleted.

        Raises:
            NotFoundError: LEASE_NOT_FOUND, there is no such lease, or it has ended.

        """
        return self.connection.run(management.end_lease(name, self._retry))

    def _state_of(self, session: session_pb2.Session, keep_bytes: int | None = None) -> SessionState:
        keep = self._keep_bytes if keep_bytes is None else keep_bytes
        return SessionState(session, self._retry, None, keep, memory=self.memory)

    @property
    def snapshot_loss_mark(self) -> int:
        """A number in the newest answer that had one. It changes when the server loses a snapshot, and if it restarts.

        Steps and calls that create sessions or snapshots have it, but not streams. 0 if the server knows of no
        snapshot of the caller.
        """
        return self.connection.reach.snapshot_loss_mark

    def snapshots(self, *, lost_after: int = 0) -> snapshot_pb2.ListSnapshotsResponse:
        """Lists the caller's snapshots in `snapshots`, and those that the server has lost in `lost`.

        Args:
            lost_after: a mark (`snapshot_loss_mark`) up to which losses are known. 0: all that the server remembers.

        """
        return self.connection.run(snapshots.listing(lost_after, self._retry))

    def delete_snapshots(self, keys: Iterable[str]) -> list[GdnError | None]:
        """Deletes snapshots. Returns None for each key, or its error, such as a NotFoundError."""
        return self.connection.run(snapshots.delete(keys, self._retry))

    def attach(self, name: str) -> Session:
        """Opens an existing session, by its id or name.

        The end of its `with` block does not delete the session.
        """
        request = session_pb2.GetSessionRequest(name=session_name(name))
        session = self._ask("GetSession", request).session
        return Session(self, self._state_of(session), owned=False)

    def sessions(self, *, all: bool = False) -> Iterator[session_pb2.Session]:  # noqa: A002 - the API's word
        """Iterates over the caller's sessions, sorted by name.

        With `all`, an admin gets the sessions of every caller, each with its `owner`. The client fetches pages as the
        iteration proceeds.

        Raises:
            PermissionDeniedError: `all` is set, and the caller is not an admin.

        """
        token = ""
        while True:
            page = self._ask("ListSessions", session_pb2.ListSessionsRequest(page_size=200, page_token=token, all=all))
            yield from page.sessions
            token = page.next_page_token
            if not token:
                return

    def batch(self, sessions: Iterable[Session]) -> Batch:
        """Groups sessions, so that one call decodes all of them."""
        return Batch(self, sessions)

    def export_state(self, name: str, *, progress: bool = False) -> bytes:
        """Returns a session's states as the bytes of a safetensors file.

        Args:
            name: id or name of the session.
            progress: show a progress bar. Needs tqdm.

        """
        request = session_pb2.ExportStateRequest(name=session_name(name))
        with bar(progress, "export", "B") as told:
            file = StateFile(told)
            self.connection.download(Download(Rpc("ExportState", request), file.add))
            return file.whole()

    def import_state(
        self,
        file: bytes,
        *,
        model: str | None = None,
        session_id: str | None = None,
        affinity: str = "",
        lease: Lease | str | None = None,
        progress: bool = False,
    ) -> Session:
        """Creates a session from the bytes of a state file.

        Args:
            file: bytes that `export_state` returned, from this server or another.
            model: name of the model that the file was exported from. You may omit it if the server serves only one.
            session_id: as in `session`.
            affinity: as in `session`.
            lease: as in `session`.
            progress: show a progress bar. Needs tqdm.

        Raises:
            FailedPreconditionError: STATE_MISMATCH, the file belongs to another model.
            DataLossError: INVALID_STATE_FILE, the file is damaged.

        """
        name = self._served(model)
        with bar(progress, "import", "B", len(file)) as told:
            messages = requests.import_requests(file, name, session_id, affinity, told, requests.lease_name(lease))
            reply = self.connection.send_all("ImportState", messages)
        return Session(self, self._state_of(reply.session), owned=True)

    def delete_session(self, name: str, *, subject: str = "") -> None:
        """Deletes a session, by its id or name.

        An admin may delete another caller's session: `subject` is the owner, as `sessions(all=True)` lists it.

        Raises:
            NotFoundError: there is no such session, or it belongs to another caller.
            PermissionDeniedError: `subject` is set, and the caller is not an admin.

        """
        with contextlib.nullcontext() if subject else self.known.ending(session_name(name)):
            self.connection.run(management.delete_session(name, subject, self._retry))

    def evict(self, name: str, *, tier: str = "host", subject: str = "") -> session_pb2.Session:
        """Moves a session's states off the device now. Its next step brings them back, with the same bits.

        Args:
            name: id or name of the session.
            tier: fastest tier that may receive the states, "host", "disk" or "redis".
            subject: as in `delete_session`.

        Returns:
            The session, with the `tier` that now holds its states.

        Raises:
            FailedPreconditionError: NO_DURABLE_TIER, the server has neither this tier nor a slower one.

        """
        return self.connection.run(management.evict(name, subject, tier, self._retry))

    def prefetch(self, names: Iterable[str]) -> tuple[int, int]:
        """Hints that these sessions will be stepped soon.

        Returns how many are on the device, and how many are being loaded.
        """
        return self.connection.run(management.prefetch(names, self._retry))

    def call_tokens(self, x: Input) -> int:
        """Returns the most tokens of an input like `x` that fit one prefill call.

        A segment of a prefix may not be longer. A server of version 0.1.0 takes fewer tokens: the float32 output
        of a segment may have `limits.max_stored_reply_bytes` bytes.
        """
        return prefixes.call_tokens(x, self.limits, self.abilities)

    def drop_prefixes(self) -> int:
        """Deletes all prefixes that the server keeps for the caller, and returns their number.

        Sessions that started from such a prefix are not affected.
        """
        return self.connection.run(prefixes.drop_prefixes(self._retry))

    def metrics(self) -> str:
        """Returns the server's metrics in Prometheus' text format.

        If callers must log in, only admins may ask for it.
        """
        return self.connection.run(management.metrics(self._retry))

    def drain(self, *, wait: bool = False, timeout: float | None = None) -> info_pb2.DrainProgress:
        """Starts the server's shutdown, as SIGTERM does. Only admins may do this, and it cannot be undone.

        Args:
            wait: if true, return when accepted steps have ended and the sessions are durable. If false, return at once.
            timeout: seconds. None: the client's timeout.

        Returns:
            The progress of the shutdown. `info().drain` reports it later.

        Raises:
            PermissionDeniedError: the caller is not an admin.

        """
        return self.connection.run(management.drain(wait, timeout))

    def trace(self, *, keep: int | None = None, max_calls: int = 0) -> list[trace_pb2.CallTrace]:
        """Returns the caller's last steps, each with the time that every stage took.

        Args:
            keep: number of steps that the server records from now on, of all callers together. 0 records none, and None
                leaves the number as it is.
            max_calls: return at most this many steps, the newest. 0 returns all that are recorded.

        """
        return self.connection.run(management.trace(keep, max_calls, self._retry))

    def watch_state(
        self, name: str, *, every_tokens: int = 0, every: float | None = None, epoch: int | None = None
    ) -> Iterator[StateSnapshot]:
        """Yields a session's states now and again as it advances, for example for a warm standby.

        The iteration ends with the session.

        Args:
            name: id or name of the session.
            every_tokens: yield a snapshot when a layer has seen this many tokens since the last one. 0: ignore tokens.
            every: yield a snapshot after this many seconds, if the session has advanced. None: ignore time.
            epoch: the epoch that the session must have; the watch ends if the session is in another. None: any epoch.
                `Session.watch_state` sets it.

        Raises:
            NotFoundError: the session does not exist, or has ended.
            AbortedError: EPOCH_MISMATCH, the session has lost steps.

        """
        yield from self.connection.watch(requests.watch_request(name, every_tokens, every, epoch))
