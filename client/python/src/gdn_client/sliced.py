"""Layers whose value heads are spread over several servers (`gdn_server --heads`), used as those of one.

    with gdn_client.SlicedClient(["low:50061", "high:50061"]) as client, client.session("qwen") as session:
        y = session.prefill(layer, x)           # [T, D], the sum of what both computed at the same time

Each server has a session of its own with the states of its heads. A step goes to all of them at once; their partial
outputs, which are float32, are added up in the order of the heads, in double, and rounded once. Every part takes every
step exactly once. Where some have taken one and others could not be reached, the same call again goes to the others
alone, and no other call is let in before it: the parts never part for good.
Thread safety: as of `client.Client` and `session.Session`.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from gdn_client import array_flow, session_flow
from gdn_client.client import Client, model_name, only_model
from gdn_client.errors import AbortedError, GdnError, SessionLostError
from gdn_client.flow import Flow, worth_another_try
from gdn_client.futures import settle
from gdn_client.inputs import Input, tensors_of
from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.session import Session
from gdn_client.session_state import RequestId, SessionState, StepOptions, new_id, step_options
from gdn_client.tensors import Array, element_name, host_array, is_torch

T = TypeVar("T")
THREADS = 64


def heads_of(model: info_pb2.Model) -> tuple[int, int, int]:
    """The first value head that is served, the one behind the last, and how many the whole model has."""
    if not model.HasField("heads"):
        return 0, model.dims.value_heads, model.dims.value_heads
    heads = model.heads
    return heads.first_value_head, heads.first_value_head + heads.value_heads, heads.total_value_heads


def _check_are_whole(models: Sequence[info_pb2.Model], targets: Sequence[str]) -> None:
    end = 0
    for model, target in zip(models, targets, strict=True):
        first, behind, total = heads_of(model)
        if model.whole_fingerprint != models[0].whole_fingerprint:
            raise ValueError(f"{model.name} at {target} and at {targets[0]} are different models")
        if first != end:
            where = "on no server" if first > end else "on two servers"
            raise ValueError(
                f"value heads {min(first, end)} to {max(first, end) - 1} of {model.name} are {where}, "
                f"expected each of its {total} on one"
            )
        end = behind
    total = heads_of(models[-1])[2]
    if end != total:
        raise ValueError(f"value heads {end} to {total - 1} of {models[-1].name} are on no server")


def _whole(models: Sequence[info_pb2.Model]) -> info_pb2.Model:
    """What one server of all heads would say."""
    whole = info_pb2.Model()
    whole.CopyFrom(models[0])
    whole.ClearField("heads")
    whole.fingerprint = whole.whole_fingerprint
    group = whole.dims.value_heads // whole.dims.key_heads
    whole.dims.value_heads = heads_of(models[0])[2]
    whole.dims.key_heads = whole.dims.value_heads // group
    whole.state_bytes_per_session = sum(model.state_bytes_per_session for model in models)
    whole.weight_bytes = sum(model.weight_bytes for model in models)
    return whole


@dataclass
class _Call:
    """One call of some sessions that not all servers have answered well."""

    digest: bytes = b""  # of what was asked for
    done: list[Array] = field(default_factory=list)  # sums of the parts of a prompt before
    tries: list[Callable[[], Any]] = field(default_factory=list)  # of each server; again is the same step
    answers: dict[int, Any] = field(default_factory=dict)


def _digest(what: str, layer: int, x: Input | None, *others: object) -> bytes:
    digest = hashlib.blake2b(f"{what} {layer} {others}".encode())
    for name, array in tensors_of(x).items() if x is not None else ():
        digest.update(f"{name} {tuple(array.shape)} {element_name(array)}".encode())
        digest.update(np.ascontiguousarray(host_array(array)).tobytes())
    return digest.digest()


def _sum(parts: Sequence[Array], like: Array, dtype: str | None) -> Array:
    """In double, in order; rounded to `dtype`, or to that of `like`."""
    name = element_name(like) if dtype is None else dtype
    if is_torch(parts[0]):
        torch: Any = sys.modules["torch"]
        total: Any = cast(Any, parts[0]).to(torch.float64)
        for part in parts[1:]:
            total = total + part
        return cast(Array, total.to(getattr(torch, name)))
    added = np.asarray(parts[0]).astype(np.float64)
    for part in parts[1:]:
        added += part
    return added.astype(np.float16 if name == "float16" else np.float32)  # numpy has no bfloat16


class SlicedSession:
    """One session, in parts. Made by `SlicedClient.session` and `fork`.

    A context manager: it ends the session on all servers, unless `detach` was called.
    """

    def __init__(self, client: SlicedClient, parts: Sequence[Session]) -> None:
        self._client = client
        self.parts = list(parts)
        self._call: _Call | None = None
        self._owned = True

    def __enter__(self) -> SlicedSession:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self.delete()

    def __repr__(self) -> str:
        return f"<SlicedSession {self.name} on {len(self.parts)} servers>"

    @property
    def name(self) -> str:
        """ "sessions/ID", on every server."""
        return self.parts[0].name

    @property
    def layers(self) -> list[int]:
        """The indices that `layer` may have, ascending."""
        return self.parts[0].layers

    def token_count(self, layer: int) -> int:
        """Tokens that the layer has seen on every server, as far as this side knows."""
        return min(part.token_count(layer) for part in self.parts)

    def prefill(
        self,
        layer: int,
        x: Array,
        *,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer by a prompt, or by a part of one; as `Session.prefill`, of hidden states alone.

        Raises:
            GdnError: one server's. Where others may have taken the step, the same call again goes on with it.
            AbortedError: PREVIOUS_SEGMENT_FAILED, the call before is to be made again first.

        """
        _check_is_array(x)
        array_flow.check_is_prompt(x)
        options = step_options("float32", allow_non_finite=allow_non_finite)
        limits = self._client.limits
        pieces = session_flow.segments(x, limits.max_message_bytes, limits.max_stored_reply_bytes)
        call = _begin([self], lambda: _digest("prefill", layer, x, allow_non_finite))
        with _kept_if_unfinished([self], call, lambda: _digest("prefill", layer, x, allow_non_finite)):
            while len(call.done) < len(pieces):
                make = self._prefill_tries(layer, pieces[len(call.done)], options, timeout)
                call.done.append(_sum(self._client.together(call, make), x, dtype))
        return call.done[0] if len(call.done) == 1 else _joined(call.done)

    def _prefill_tries(
        self, layer: int, piece: Input, options: StepOptions, timeout: float | None
    ) -> Callable[[int], Callable[[], Array]]:
        def make(part: int) -> Callable[[], Array]:
            session = self.parts[part]
            step = session_flow.PrefillStep(session._state, layer, piece, options)

            def flow() -> Flow[Array]:
                region = yield from session._state.memory.open()
                return (yield from step.flow(timeout, region))

            return lambda: _run(session, [session._state], flow)

        return make

    def decode(
        self,
        layer: int,
        x: Array,
        *,
        draft: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer by one token, or by a few; as `Session.decode`, and with errors as of `prefill`."""
        options = step_options("float32", draft=draft, allow_non_finite=allow_non_finite)
        return _decode(self._client, [self], layer, x, options, dtype, timeout, alone=True)

    def accept(self, tokens: int) -> None:
        """The first tokens of every layer's draft become part of the session, the others never were."""
        _accept(self._client, [self], [tokens])

    def fork(
        self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None, durable: bool = False
    ) -> list[SlicedSession]:
        """New sessions that go on from here, on every server; as `Session.fork`."""
        self._check_is_together()
        names = list(ids) or [new_id() for _ in range(count)]
        made: list[Session] = []

        def fork(part: Session) -> list[Session]:
            children = part.fork(ids=names, idle_ttl=idle_ttl, durable=durable)
            made.extend(children)
            return children

        try:
            forks = self._client.map(fork, self.parts)
        except BaseException:
            _end_all(made)
            raise
        return [SlicedSession(self._client, children) for children in zip(*forks, strict=True)]

    def checkpoint(self, checkpoint_id: str = "") -> None:
        """Makes every part durable as it is now; with an id beside later ones."""
        self._check_is_together()
        self._client.map(lambda part: part.checkpoint(checkpoint_id), self.parts)

    def export_states(self) -> list[bytes]:
        """Each server's state file, in the order of their heads; `gdnctl state join` makes one of them."""
        self._check_is_together()
        return self._client.map(lambda part: part.export_state(), self.parts)

    def _check_is_together(self) -> None:
        if self._call is not None:
            raise _left_unfinished(self.name)

    def delete(self) -> None:
        """Ends the session on every server; one that is gone already is none to complain of."""
        self._owned = False
        self._client.map(lambda part: part.delete(), self.parts)

    def detach(self) -> str:
        """The name; leaving the `with` block does not end the session any more."""
        self._owned = False
        for part in self.parts:
            part.detach()
        return self.name


class SlicedBatch:
    """Sliced sessions that are decoded in one call of each server."""

    def __init__(self, client: SlicedClient, sessions: Iterable[SlicedSession]) -> None:
        self._client = client
        self._sessions = list(sessions)
        if not self._sessions:
            raise ValueError("a batch has at least one session")

    def __len__(self) -> int:
        return len(self._sessions)

    def decode(
        self,
        layer: int,
        x: Array,
        *,
        lengths: Sequence[int] | None = None,
        draft: bool = False,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """Advances a layer of every session; as `Batch.decode`, and with errors as of `SlicedSession.prefill`."""
        options = step_options("float32", draft=draft, lengths=lengths, allow_non_finite=allow_non_finite)
        return _decode(self._client, self._sessions, layer, x, options, dtype, timeout)

    def accept(self, tokens: Sequence[int]) -> None:
        """The first `tokens[i]` tokens of session i's drafts become part of it, the others never were."""
        _accept(self._client, self._sessions, list(tokens))


class SlicedClient:
    """Connections to the servers of all slices. A context manager: it closes those that it has made.

    Args:
        servers: targets or Clients, in any order.
        connection: of the Clients that are made for targets.

    Raises:
        ValueError: there are none. Of a model that they do not have as a whole, when it is first asked for.

    """

    def __init__(self, servers: Iterable[str | Client], **connection: Any) -> None:
        given = list(servers)
        if not given:
            raise ValueError("there are no servers")
        self._clients = [Client(one, **connection) if isinstance(one, str) else one for one in given]
        self._made = [client for client, one in zip(self._clients, given, strict=True) if isinstance(one, str)]
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gdn-slices")
        self._models: dict[str, tuple[list[Client], info_pb2.Model]] = {}

    def __enter__(self) -> SlicedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SlicedClient of {self.target}>"

    @property
    def target(self) -> str:
        """What it is connected to."""
        return ", ".join(client.target for client in self._clients)

    @property
    def limits(self) -> info_pb2.Limits:
        """What every server accepts."""
        limits = info_pb2.Limits()
        limits.CopyFrom(self._clients[0].limits)
        for client in self._clients[1:]:
            for name in ("max_message_bytes", "max_draft", "max_batch", "max_stored_reply_bytes"):
                setattr(limits, name, min(getattr(limits, name), getattr(client.limits, name)))
        return limits

    def _served(self, name: str) -> tuple[list[Client], info_pb2.Model]:
        if name not in self._models:
            told = self.map(lambda client: client.model(name), self._clients)
            order = sorted(range(len(told)), key=lambda one: heads_of(told[one])[0])
            clients = [self._clients[one] for one in order]
            models = [told[one] for one in order]
            _check_are_whole(models, [client.target for client in clients])
            self._models[name] = clients, _whole(models)
        return self._models[name]

    def model(self, name: str) -> info_pb2.Model:
        """One of them with all its heads; "qwen" or "models/qwen"."""
        return self._served(model_name(name))[1]

    def models(self) -> list[info_pb2.Model]:
        """Those of the first server, each with all its heads."""
        return [self.model(model.name) for model in self._clients[0].models()]

    def session(
        self,
        model: str | None = None,
        *,
        session_id: str | None = None,
        affinity: str = "",
        idle_ttl: float | None = None,
        max_lifetime: float | None = None,
        keep_bytes: int | None = None,
    ) -> SlicedSession:
        """A new session on every server, at zero, under one id; as `Client.session`.

        Raises:
            GdnError: of a server; no session is left.
            ValueError: the servers' heads are not all of the model's, each once.

        """
        name = model_name(model) if model is not None else only_model(self._clients[0].models())
        clients, _ = self._served(name)
        known = session_id or new_id()
        parts: list[Session] = []
        try:
            for client in clients:
                parts.append(
                    client.session(
                        name,
                        session_id=known,
                        affinity=affinity,
                        idle_ttl=idle_ttl,
                        max_lifetime=max_lifetime,
                        keep_bytes=keep_bytes,
                    )
                )
        except BaseException:
            _end_all(parts)
            raise
        return SlicedSession(self, parts)

    def batch(self, sessions: Iterable[SlicedSession]) -> SlicedBatch:
        """Sessions to decode in one call of each server."""
        return SlicedBatch(self, sessions)

    def close(self) -> None:
        """Ends the connections that it has made; sessions stay on the servers."""
        self._threads.shutdown(wait=True)
        for client in self._made:
            client.close()

    def map(self, call: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """`call` of each, at the same time.

        Raises:
            BaseException: that of the first item whose call raised, after all have ended.

        """
        futures = [self._threads.submit(call, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def together(self, call: _Call, make: Callable[[int], Callable[[], T]]) -> list[T]:
        """Every server's answer to a step, asking those alone that have not answered yet.

        Raises:
            GdnError: that of the first server, by heads, that has not answered well.

        """
        if not call.tries:
            call.tries = [make(part) for part in range(len(self._clients))]
        open_parts = [part for part in range(len(call.tries)) if part not in call.answers]
        futures = {part: self._threads.submit(call.tries[part]) for part in open_parts}
        errors = []
        for part, future in futures.items():
            if (error := future.exception()) is None:
                call.answers[part] = future.result()
            else:
                errors.append(error)
        if errors:
            if not call.answers and all(_is_refusal(error) for error in errors):
                call.tries.clear()
            raise errors[0]
        answers = [call.answers[part] for part in range(len(call.tries))]
        call.tries, call.answers = [], {}
        return answers


def _end_all(sessions: Iterable[Session]) -> None:
    """Ends sessions that are of no use without others; one that cannot be reached ends by its idle TTL."""
    for session in sessions:
        with contextlib.suppress(GdnError):
            session.delete()


def _is_refusal(error: BaseException) -> bool:
    """Whether nothing moves: the server has said so, or has not been asked."""
    if isinstance(error, (TypeError, ValueError)):
        return True
    return isinstance(error, GdnError) and not isinstance(error, SessionLostError) and not worth_another_try(error)


def _check_is_array(x: Input) -> None:
    if not (is_torch(x) or isinstance(x, np.ndarray)):
        raise TypeError("a sliced session takes hidden states; other inputs go by head, to its `parts`")


def _begin(sessions: Sequence[SlicedSession], digest: Callable[[], bytes]) -> _Call:
    """The call that was left unfinished, if this is it; else a new one."""
    left = sessions[0]._call
    if any(session._call is not left for session in sessions) or (left is not None and left.digest != digest()):
        raise _left_unfinished(sessions[0].name)
    return left or _Call()


def _left_unfinished(name: str) -> AbortedError:
    return AbortedError(
        f"the call before on {name} may have been taken by some of its servers alone; make the same call again first",
        reason="PREVIOUS_SEGMENT_FAILED",
    )


@contextlib.contextmanager
def _kept_if_unfinished(sessions: Sequence[SlicedSession], call: _Call, digest: Callable[[], bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        unfinished = bool(call.tries)
        if unfinished:
            call.digest = call.digest or digest()
        for session in sessions:
            session._call = call if unfinished else None
        raise
    for session in sessions:
        session._call = None


def _run(session: Session, states: Sequence[SessionState], flow: Callable[[], Flow[T]]) -> T:
    settle(states)
    return session._client.connection.run(flow())


def _joined(parts: Sequence[Array]) -> Array:
    if is_torch(parts[0]):
        return cast(Array, sys.modules["torch"].cat(cast(Any, list(parts))))
    return np.concatenate([np.asarray(part) for part in parts])


def _decode(
    client: SlicedClient,
    sessions: Sequence[SlicedSession],
    layer: int,
    x: Array,
    options: StepOptions,
    dtype: str | None,
    timeout: float | None,
    alone: bool = False,
) -> Array:
    _check_is_array(x)

    def digest() -> bytes:
        names = [session.name for session in sessions]
        return _digest("decode", layer, x, names, options.draft, options.lengths, options.allow_non_finite)

    def make(part: int) -> Callable[[], Array]:
        parts = [session.parts[part] for session in sessions]
        states = [one._state for one in parts]
        rows = array_flow.RowsStep(states, layer, x, options, alone)

        def flow() -> Flow[Array]:
            region = yield from states[0].memory.open()
            return rows.shaped((yield from rows.step.flow(timeout, region)))

        return lambda: _run(parts[0], states, flow)

    call = _begin(sessions, digest)
    with _kept_if_unfinished(sessions, call, digest):
        outputs = client.together(call, make)
    return _sum(outputs, x, dtype)


def _accept(client: SlicedClient, sessions: Sequence[SlicedSession], tokens: Sequence[int]) -> None:
    def digest() -> bytes:
        return _digest("accept", 0, None, [session.name for session in sessions], tokens)

    def make(part: int) -> Callable[[], None]:
        parts = [session.parts[part] for session in sessions]
        states = [one._state for one in parts]
        request_id = RequestId()
        return lambda: _run(parts[0], states, lambda: session_flow.accept(states, tokens, request_id))

    call = _begin(sessions, digest)
    with _kept_if_unfinished(sessions, call, digest):
        client.together(call, make)
