"""Sessions whose value heads are spread over several servers (`gdn_server --heads`), used like a session of one server.

    with gdn_client.SlicedClient(["low:50061", "high:50061"]) as client, client.session("qwen") as session:
        y = session.prefill(layer, x)           # [T, D], the sum of what both computed at the same time

Each server has its own session, with the states of its heads. A step goes to all servers at once. Their partial outputs
are float32; the client adds them in double, in the order of the heads, and rounds the sum once. Every server applies
every step exactly once. If some servers have applied a step and others could not be reached, repeat the same call: it
goes only to the others. Until then every other call is refused, so the servers never drift apart.
Thread safety: as that of `client.Client` and `session.Session`.
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
from gdn_client.client import Client
from gdn_client.errors import AbortedError, GdnError, InvalidArgumentError, SessionLostError
from gdn_client.flow import Flow, worth_another_try
from gdn_client.futures import map_at_once, settle
from gdn_client.inputs import Input, tensors_of
from gdn_client.mixed import MixedStep
from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.requests import model_name, only_model
from gdn_client.session import Session
from gdn_client.session_state import RequestId, SessionState, StepOptions, new_id, step_options
from gdn_client.step_call import StepCall, StepResult, StepResults, StepRow, digest_of
from gdn_client.steps import leading
from gdn_client.tensors import Array, element_name, host_array, is_torch

T = TypeVar("T")
THREADS = 64


def heads_of(model: info_pb2.Model) -> tuple[int, int, int]:
    """Returns the served value heads [first, end), and the whole model's number of value heads."""
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
    """Returns the model as one server with all heads would describe it."""
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
    """A call of some sessions that not all servers have answered successfully."""

    digest: bytes = b""  # digest of the call's arguments
    done: list[Array] = field(default_factory=list)  # summed outputs of the prompt's earlier parts
    tries: list[Callable[[], Any]] = field(default_factory=list)  # one for each server; a repeated one is the same step
    answers: dict[int, Any] = field(default_factory=dict)


def _digest(what: str, layer: int, x: Input | None, *others: object) -> bytes:
    digest = hashlib.blake2b(f"{what} {layer} {others}".encode())
    for name, array in tensors_of(x).items() if x is not None else ():
        digest.update(f"{name} {tuple(array.shape)} {element_name(array)}".encode())
        digest.update(np.ascontiguousarray(host_array(array)).tobytes())
    return digest.digest()


def _sum(parts: Sequence[Array], like: Array, dtype: str | None) -> Array:
    """Adds the parts in order, in double. Rounds the sum to `dtype`, or to the dtype of `like`."""
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
    """One session, with a part on each server. Made by `SlicedClient.session` and `fork`.

    A `with` block deletes the session on all servers at its end, unless `detach` was called.
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
        """The session's name, "sessions/ID", which is the same on every server."""
        return self.parts[0].name

    @property
    def layers(self) -> list[int]:
        """The values that `layer` may have, ascending."""
        return self.parts[0].layers

    def token_count(self, layer: int) -> int:
        """Returns the number of tokens that the layer has seen on every server, as far as the client knows."""
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
        """Advances a layer by a prompt, or by a part of one. Works as `Session.prefill`, but takes only hidden states.

        Raises:
            GdnError: a server has failed. If other servers may have applied the step, repeat the same call to complete
                it.
            AbortedError: PREVIOUS_SEGMENT_FAILED, the call before this one is incomplete; repeat that call first.

        """
        _check_is_array(x)
        array_flow.check_is_prompt(x)
        options = step_options("float32", allow_non_finite=allow_non_finite)
        limits = self._client.limits_within(timeout)
        pieces = session_flow.segments(x, limits.max_message_bytes, self._client.abilities)

        def start(states: Sequence[SessionState]) -> Callable[[], Flow[Array]]:
            step = session_flow.PrefillStep(states[0], layer, pieces[len(call.done)], options)
            return lambda: array_flow.applied(step, timeout)

        with _call_of([self], lambda: _digest("prefill", layer, x, allow_non_finite)) as call:
            while len(call.done) < len(pieces):
                try:
                    call.done.append(_sum(self._client.together([self], call, start), x, dtype))
                except InvalidArgumentError as error:
                    is_first = not call.tries and not call.done and leading(pieces[0])[0] > 1
                    if not is_first or not self._client.abilities.learn(error):
                        raise
                    pieces = session_flow.segments(x, limits.max_message_bytes, self._client.abilities)
        return array_flow.joined(call.done)

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
        """Advances a layer by one token, or by a few. Works as `Session.decode`, with the errors of `prefill`."""
        options = step_options("float32", draft=draft, allow_non_finite=allow_non_finite)
        return _decode(self._client, [self], layer, x, options, dtype, timeout, alone=True)

    def accept(self, tokens: int) -> None:
        """Accepts the first `tokens` tokens of every layer's draft, and drops the others."""
        _accept(self._client, [self], [tokens])

    def fork(
        self, count: int = 1, *, ids: Sequence[str] = (), idle_ttl: float | None = None, durable: bool = False
    ) -> list[SlicedSession]:
        """Creates sessions that continue from this one, on every server. Works as `Session.fork`."""
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
        """Makes every part durable as it is now. A checkpoint with an id is kept beside later ones."""
        self._check_is_together()
        self._client.map(lambda part: part.checkpoint(checkpoint_id), self.parts)

    def export_states(self) -> list[bytes]:
        """Returns each server's state file, in the order of the heads. `gdnctl state join` joins them into one file."""
        self._check_is_together()
        return self._client.map(lambda part: part.export_state(), self.parts)

    def _check_is_together(self) -> None:
        if self._call is not None:
            raise _left_unfinished(self.name)

    def delete(self) -> None:
        """Deletes the session on every server. It is no error if a part does not exist any more."""
        self._owned = False
        self._client.map(lambda part: part.delete(), self.parts)

    def detach(self) -> str:
        """Returns the name. The end of the `with` block then does not delete the session."""
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
        """Advances a layer of every session. Works as `Batch.decode`, with the errors of `SlicedSession.prefill`."""
        options = step_options("float32", draft=draft, lengths=lengths, allow_non_finite=allow_non_finite)
        return _decode(self._client, self._sessions, layer, x, options, dtype, timeout)

    def step(
        self,
        layer: int,
        rows: Sequence[StepRow],
        *,
        x: Array | None = None,
        dtype: str | None = None,
        allow_non_finite: bool = False,
        timeout: float | None = None,
    ) -> StepResults:
        """Advances a layer of every session, each by its own tokens and in its own way, in one call of each server.

        Works as `Batch.step` without `partial_ok`, but takes only hidden states. Errors are those of
        `SlicedSession.prefill`.
        """
        options = step_options("float32", allow_non_finite=allow_non_finite)
        return _step(self._client, self._sessions, StepCall(layer, rows, options, timeout=timeout, x=x), dtype)

    def accept(self, tokens: Sequence[int]) -> None:
        """Accepts the first `tokens[i]` tokens of session i's drafts, and drops the others."""
        _accept(self._client, self._sessions, list(tokens))


class SlicedClient:
    """Connections to the servers of all slices. A `with` block closes those that this object has made.

    Args:
        servers: targets or Clients, in any order.
        connection: arguments of the Clients that are made for targets.

    Raises:
        ValueError: there are no servers. Later calls also raise it if the servers do not have a whole model together.

    """

    def __init__(self, servers: Iterable[str | Client], **connection: Any) -> None:
        given = list(servers)
        if not given:
            raise ValueError("there are no servers")
        self._clients = [Client(one, **connection) if isinstance(one, str) else one for one in given]
        self._made = [client for client, one in zip(self._clients, given, strict=True) if isinstance(one, str)]
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gdn-slices")
        self._models: dict[str, tuple[list[Client], info_pb2.Model]] = {}
        self.abilities = session_flow.Abilities()

    def __enter__(self) -> SlicedClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SlicedClient of {self.target}>"

    @property
    def target(self) -> str:
        """The addresses of the servers."""
        return ", ".join(client.target for client in self._clients)

    @property
    def limits(self) -> info_pb2.Limits:
        """Limits that every server accepts."""
        return self.limits_within(None)

    def limits_within(self, timeout: float | None) -> info_pb2.Limits:
        """For internal use. Returns the limits, for a call with this timeout to each server."""
        limits = info_pb2.Limits()
        limits.CopyFrom(self._clients[0].limits_within(timeout))
        for client in self._clients[1:]:
            own = client.limits_within(timeout)
            for name in ("max_message_bytes", "max_draft", "max_batch", "max_stored_reply_bytes"):
                setattr(limits, name, min(getattr(limits, name), getattr(own, name)))
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
        """Returns one served model, with all its heads. Its name is "qwen" or "models/qwen"."""
        return self._served(model_name(name))[1]

    def models(self) -> list[info_pb2.Model]:
        """Returns the models of the first server, each with all its heads."""
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
        """Creates a session on every server, under one id. Its states are zero. Works as `Client.session`.

        Raises:
            GdnError: a server has refused, and no session is left on the others.
            ValueError: the servers' heads are not all of the model's, each once.

        """
        name = model_name(model) if model is not None else only_model(self._clients[0].models())
        clients, _ = self._served(name)
        options: dict[str, Any] = {"session_id": session_id or new_id(), "affinity": affinity, "keep_bytes": keep_bytes}
        options |= {"idle_ttl": idle_ttl, "max_lifetime": max_lifetime}
        parts: list[Session] = []
        try:
            for client in clients:
                parts.append(client.session(name, **options))
        except BaseException:
            _end_all(parts)
            raise
        return SlicedSession(self, parts)

    def batch(self, sessions: Iterable[SlicedSession]) -> SlicedBatch:
        """Groups sessions, so that one call of each server decodes all of them."""
        return SlicedBatch(self, sessions)

    def close(self) -> None:
        """Closes the connections that this object has made. Sessions stay on the servers."""
        self._threads.shutdown(wait=True)
        for client in self._made:
            client.close()

    def map(self, call: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Runs `call` for each item, all at the same time, and returns the results in order.

        Raises:
            BaseException: the error of the first item that failed, after all calls have ended.

        """
        return map_at_once(self._threads, call, items)

    def together(
        self,
        sessions: Sequence[SlicedSession],
        call: _Call,
        start: Callable[[Sequence[SessionState]], Callable[[], Flow[T]]],
    ) -> list[T]:
        """Returns every server's answer to a step. Asks only the servers that have not answered yet.

        `start` makes a server's step from the states of the sessions there, once. Its flow may run several times.

        Raises:
            GdnError: the error of the first server, by heads, that has not answered successfully.

        """

        def make(part: int) -> Callable[[], T]:
            parts = [session.parts[part] for session in sessions]
            states = [one._state for one in parts]
            flow = start(states)

            def run() -> T:
                settle(states)
                return parts[0]._client.connection.run(flow())

            return run

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
    """Deletes sessions that are useless without the others. If one cannot be reached, its idle TTL ends it."""
    for session in sessions:
        with contextlib.suppress(GdnError):
            session.delete()


def _is_refusal(error: BaseException) -> bool:
    """Whether nothing has changed, because the server has refused the call or was not asked."""
    if isinstance(error, (TypeError, ValueError)):
        return True
    return isinstance(error, GdnError) and not isinstance(error, SessionLostError) and not worth_another_try(error)


def _check_is_array(x: Input) -> None:
    if not (is_torch(x) or isinstance(x, np.ndarray)):
        raise TypeError("a sliced session takes hidden states; other inputs go by head, to its `parts`")


def _left_unfinished(name: str) -> AbortedError:
    return AbortedError(
        f"the call before on {name} may have been taken by some of its servers alone; make the same call again first",
        reason="PREVIOUS_SEGMENT_FAILED",
    )


@contextlib.contextmanager
def _call_of(sessions: Sequence[SlicedSession], digest: Callable[[], bytes]) -> Iterator[_Call]:
    """Yields the unfinished call if this is the same call, else a new one. Keeps it if it is left unfinished."""
    left = sessions[0]._call
    if any(session._call is not left for session in sessions) or (left is not None and left.digest != digest()):
        raise _left_unfinished(sessions[0].name)
    call = left or _Call()
    unfinished = None
    try:
        yield call
    except BaseException:
        if call.tries:
            call.digest = call.digest or digest()
            unfinished = call
        raise
    finally:
        for session in sessions:
            session._call = unfinished


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

    def start(states: Sequence[SessionState]) -> Callable[[], Flow[Array]]:
        rows = array_flow.RowsStep(states, layer, x, options, alone)
        return lambda: rows.flow(timeout)

    with _call_of(sessions, digest) as call:
        outputs = client.together(sessions, call, start)
    return _sum(outputs, x, dtype)


def _step(client: SlicedClient, sessions: Sequence[SlicedSession], call: StepCall, dtype: str | None) -> StepResults:
    call = call.with_own_inputs()
    for row in call.rows:
        _check_is_array(cast(Input, row.x))

    def digest() -> bytes:
        names = [session.name for session in sessions]
        return _digest("step", call.layer, None, names, [digest_of(call.layer, row, call.options) for row in call.rows])

    def start(states: Sequence[SessionState]) -> Callable[[], Flow[StepResults]]:
        return MixedStep(states, call, client.abilities).applied

    with _call_of(sessions, digest) as unfinished:
        answers = client.together(sessions, unfinished, start)
    results = []
    for row, parts in zip(call.rows, zip(*answers, strict=True), strict=True):
        output = _sum([cast(Array, part.output) for part in parts], cast(Array, row.x), dtype)
        results.append(StepResult(output, parts[0].token_count))
    return StepResults.of(results)


def _accept(client: SlicedClient, sessions: Sequence[SlicedSession], tokens: Sequence[int]) -> None:
    def digest() -> bytes:
        return _digest("accept", 0, None, [session.name for session in sessions], tokens)

    def start(states: Sequence[SessionState]) -> Callable[[], Flow[None]]:
        request_id = RequestId()
        return lambda: session_flow.accept(states, tokens, request_id)

    with _call_of(sessions, digest) as call:
        client.together(sessions, call, start)
