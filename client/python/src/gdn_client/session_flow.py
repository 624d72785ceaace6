"""What a session does, step by step, whoever carries the calls out: exactly-once steps, and what is lost brought back.

The server counts each layer's tokens. A step says what the count has to be and has an id of its own, so a reply
that was lost on the way is asked for again and nothing is taken twice. Where a server has crashed and is behind, the
steps that it has lost are sent again from here, in their order and with their bounds: the state is then the same to
the bit, if the server computes as the one before did (`numerics_id`).
Thread safety: a SessionState and its flows are for one thread at a time.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import duration_pb2

from gdn_client.errors import GdnError, NotFoundError, SessionLostError
from gdn_client.flow import Backoff, Flow, Retry, Rpc, exact, worth_another_try
from gdn_client.inputs import DeltaRule, Input, Projected, tensors_of
from gdn_client.proto.gdn.v1 import session_pb2, state_pb2, step_pb2, tensor_pb2
from gdn_client.steps import Encoder, KeptStep, LayerSteps, cut, fill_input, first_tokens, leading, row_of
from gdn_client.tensors import dtype_code, to_tensor

DEFAULT_KEEP_BYTES = 256 << 20
# The server has less, or more, of a session than this side believes, or has forgotten a reply.
_ASTRAY = {
    "SESSION_NOT_FOUND",
    "EPOCH_MISMATCH",
    "TOKEN_COUNT_MISMATCH",
    "REPLY_DROPPED",
    "DRAFT_PENDING",
    "STATE_ROLLED_BACK",
}
_REPLY_IS_GONE = {"REPLY_DROPPED", "TOKEN_COUNT_MISMATCH"}


def new_id() -> str:
    """For a session or a request: 128 random bits."""
    return secrets.token_hex(16)


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """As the API has it."""
    if seconds is None:
        return None
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))


@dataclass
class SessionStats:
    """What it has taken to keep a session whole."""

    replays: int = 0  # times that lost steps were sent again
    replayed_steps: int = 0
    recreations: int = 0  # times that the session was made anew


@dataclass
class SessionState:
    """A session as this side knows it."""

    session: session_pb2.Session
    retry: Retry
    create: session_pb2.CreateSessionRequest | None = None  # what has made it, where this side has
    keep_bytes: int = 0  # of inputs, for a replay; 0: none are kept
    epoch: int = 0
    layers: dict[int, LayerSteps] = field(default_factory=dict)
    kept_bytes: int = 0
    stats: SessionStats = field(default_factory=SessionStats)

    def __post_init__(self) -> None:
        self.take(self.session)

    @property
    def name(self) -> str:
        """ "sessions/ID"."""
        return self.session.name

    def take(self, session: session_pb2.Session) -> None:
        """Goes on from what the server says; forgets what was kept."""
        self.session, self.epoch, self.kept_bytes = session, session.epoch, 0
        self.layers = {layer.layer: LayerSteps(count=layer.token_count) for layer in session.layers}

    def layer(self, layer: int) -> LayerSteps:
        """Of the index; the server refuses one that is none."""
        return self.layers.setdefault(layer, LayerSteps())

    def rpc(self, method: str, request: Any, timeout: float | None = None) -> Rpc:
        """A call that is routed as all of this session are."""
        return Rpc(method, request, timeout, self.session.affinity)

    def note(self, layer: int, step: KeptStep, draft: bool, durable: int) -> None:
        """The server has answered the step."""
        steps = self.layer(layer)
        if draft:
            steps.draft = step
        else:
            steps.add(step)
            self.kept_bytes += step.bytes if step.tokens > 0 else 0
        self.kept_bytes -= steps.trim(durable)
        # The oldest go; a loss of them is then told.
        while self.kept_bytes > self.keep_bytes:
            fullest = max(self.layers.values(), key=lambda one: len(one.kept))
            self.kept_bytes -= fullest.kept.popleft().bytes


@dataclass(frozen=True)
class StepOptions:
    """Of one step; as the API has them."""

    output_dtype: tensor_pb2.DType = tensor_pb2.DTYPE_UNSPECIFIED
    allow_non_finite: bool = False
    draft: bool = False
    lengths: Sequence[int] | None = None


def step_options(
    dtype: str | None, *, draft: bool = False, lengths: Sequence[int] | None = None, allow_non_finite: bool = False
) -> StepOptions:
    """With a dtype by its name; None: as the input."""
    code = tensor_pb2.DTYPE_UNSPECIFIED if dtype is None else dtype_code(dtype)
    return StepOptions(code, allow_non_finite, draft, lengths)


# --- Recovery.


@dataclass
class _InFlight:
    """The step whose call has failed, of one session."""

    layer: int
    before: int
    tokens: int
    draft: bool
    refusal: str  # the server's reason

    def reply_is_kept(self, layer: int, count: int) -> bool:
        """Whether the layer is there by this step, whose reply can be asked for again."""
        taken = layer == self.layer and count == self.before + self.tokens and not self.draft
        return taken and self.refusal not in _REPLY_IS_GONE


def _find(state: SessionState) -> Flow[session_pb2.Session]:
    try:
        request = session_pb2.GetSessionRequest(name=state.name)
        reply: session_pb2.GetSessionResponse = yield from exact(state.rpc("GetSession", request), state.retry)
        return reply.session
    except NotFoundError as error:
        if state.create is None:
            raise SessionLostError(
                f"{state.name} is gone from the server, and was not made by this client, which cannot make it again",
                reason=error.reason,
            ) from error
    return (yield from _make_anew(state))


def _make_anew(state: SessionState) -> Flow[session_pb2.Session]:
    assert state.create is not None
    state.stats.recreations += 1
    reply: session_pb2.CreateSessionResponse = yield from exact(state.rpc("CreateSession", state.create), state.retry)
    return reply.session


def _rewind(state: SessionState, why: str) -> Flow[session_pb2.Session]:
    """Back to the newest durable copy, or to the beginning."""
    try:
        request = state_pb2.RestoreCheckpointRequest(name=state.name)
        reply: state_pb2.RestoreCheckpointResponse = yield from exact(
            state.rpc("RestoreCheckpoint", request), state.retry
        )
        return reply.session
    except GdnError as error:
        if error.reason not in ("NO_DURABLE_TIER", "CHECKPOINT_NOT_FOUND"):
            raise
    if state.create is None:
        raise SessionLostError(
            f"{why}, {state.name} has no durable copy, and was not made by this client", reason="REPLY_DROPPED"
        )
    yield from delete(state)
    return (yield from _make_anew(state))


def _check_can_replay(state: SessionState, session: session_pb2.Session) -> None:
    for layer in session.layers:
        known = state.layer(layer.layer)
        if layer.token_count < known.count and known.since(layer.token_count) is None:
            kept = known.kept[0].before if known.kept else known.count
            raise SessionLostError(
                f"{state.name} has lost tokens: the server has {layer.token_count} of layer {layer.layer}, "
                f"{known.count} were answered, and inputs are kept from token {kept} on alone; prefill a new session, "
                "or make sessions with a larger keep_bytes, and checkpoints more often",
                reason="STATE_ROLLED_BACK",
                metadata={"session": state.name, "layer": str(layer.layer), "token_count": str(layer.token_count)},
            )


def recover(state: SessionState, in_flight: _InFlight | None = None) -> Flow[None]:
    """Brings the server's session to where this side believes it to be, or to where the step in flight has taken it.

    Raises:
        SessionLostError: the inputs that would be needed are not kept.

    """
    session = yield from _find(state)
    counts = {layer.layer: layer.token_count for layer in session.layers}
    # By a step whose reply is gone: that of this call, or one that was given up.
    ahead = [(layer, count) for layer, count in counts.items() if count > state.layer(layer).count]
    if any(in_flight is None or not in_flight.reply_is_kept(layer, count) for layer, count in ahead):
        session = yield from _rewind(state, "the output of a step that was taken is not kept any more")
        counts = {layer.layer: layer.token_count for layer in session.layers}
    _check_can_replay(state, session)
    state.session, state.epoch = session, session.epoch
    if any(layer.draft_length > 0 for layer in session.layers):
        drop = state_pb2.AcceptTokensRequest(request_id=new_id())
        drop.acceptances.add(session=state.name, accepted_tokens=0, session_epoch=state.epoch)
        yield from exact(state.rpc("AcceptTokens", drop), state.retry)
    replayed = 0
    for index, known in sorted(state.layers.items()):
        steps = known.since(counts.get(index, 0)) or []
        for step in steps + ([known.draft] if known.draft is not None else []):
            yield from _send_again(state, step)
            replayed += 1
    state.stats.replays += replayed > 0
    state.stats.replayed_steps += replayed


def _send_again(state: SessionState, step: KeptStep) -> Flow[None]:
    request = step.request
    request.request_id = new_id()
    if isinstance(request, step_pb2.PrefillRequest):
        request.session_epoch, request.expected_token_count = state.epoch, step.before
        yield from exact(state.rpc("Prefill", request), state.retry)
        return
    del request.session_epochs[:], request.expected_token_counts[:]
    request.session_epochs.append(state.epoch)
    request.expected_token_counts.append(step.before)
    yield from exact(state.rpc("Decode", request), state.retry)


def _step(
    states: Sequence[SessionState],
    layer: int,
    tokens: Sequence[int],
    draft: bool,
    make: Any,
    method: str,
    timeout: float | None,
) -> Flow[Any]:
    """The reply to a step of these sessions, taken exactly once by each. `make(request_id)` makes the request anew."""
    request_id = new_id()
    backoff = Backoff(states[0].retry)
    before = [state.layer(layer).count for state in states]
    while True:
        try:
            return (yield Rpc(method, make(request_id), timeout, states[0].session.affinity))
        except GdnError as error:
            astray = error.reason in _ASTRAY and any(state.keep_bytes > 0 for state in states)
            if not astray and not worth_another_try(error):
                raise
            yield backoff.wait(error)
            if not astray:
                continue
            for state, count, row_tokens in zip(states, before, tokens, strict=True):
                yield from recover(state, _InFlight(layer, count, row_tokens, draft, error.reason))


# --- Calls.


def create(request: session_pb2.CreateSessionRequest, retry: Retry, keep_bytes: int) -> Flow[SessionState]:
    """A new session; the request has an id, so that it may be sent again."""
    reply = yield from exact(Rpc("CreateSession", request, None, request.affinity), retry)
    return SessionState(reply.session, retry, request, keep_bytes)


def delete(state: SessionState) -> Flow[None]:
    """It is gone, whoever has ended it."""
    with contextlib.suppress(NotFoundError):
        yield from exact(state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name)), state.retry)


def prefill(
    state: SessionState, layer: int, given: Input, encode: Encoder, options: StepOptions, timeout: float | None
) -> Flow[step_pb2.PrefillResponse]:
    """One prefill of the tokens `[T, ..]`."""
    tokens = leading(given)[0]
    request = step_pb2.PrefillRequest(
        layer=layer, output_dtype=options.output_dtype, allow_non_finite=options.allow_non_finite
    )
    fill_input(request, given, encode)

    def make(request_id: str) -> step_pb2.PrefillRequest:
        request.session, request.request_id = state.name, request_id
        request.session_epoch, request.expected_token_count = state.epoch, state.layer(layer).count
        return request

    before = state.layer(layer).count
    reply: step_pb2.PrefillResponse = yield from _step([state], layer, [tokens], False, make, "Prefill", timeout)
    if state.keep_bytes > 0:
        state.note(layer, KeptStep(before, reply.token_count - before, request), False, reply.durable_token_count)
    else:
        state.layer(layer).count = reply.token_count
    return reply


def decode(
    states: Sequence[SessionState],
    layer: int,
    given: Input,
    encode: Encoder,
    options: StepOptions,
    timeout: float | None,
) -> Flow[step_pb2.DecodeResponse]:
    """One decode of `[B, T, ..]`, of a row a session."""
    request = step_pb2.DecodeRequest(
        layer=layer, output_dtype=options.output_dtype, allow_non_finite=options.allow_non_finite
    )
    request.draft = options.draft
    request.lengths.extend(options.lengths or ())
    fill_input(request, given, encode)
    steps = leading(given)[1]
    tokens = list(options.lengths or [steps] * len(states))

    def make(request_id: str) -> step_pb2.DecodeRequest:
        request.request_id = request_id
        for rows in (request.sessions, request.session_epochs, request.expected_token_counts):
            del rows[:]
        for state in states:
            request.sessions.append(state.name)
            request.session_epochs.append(state.epoch)
            request.expected_token_counts.append(state.layer(layer).count)
        return request

    reply: step_pb2.DecodeResponse = yield from _step(states, layer, tokens, options.draft, make, "Decode", timeout)
    for row, state in enumerate(states):
        before = state.layer(layer).count
        if state.keep_bytes > 0:
            kept = KeptStep(before, tokens[row], row_of(request, row))
            state.note(layer, kept, options.draft, reply.durable_token_counts[row])
        elif not options.draft:
            state.layer(layer).count = reply.token_counts[row]
    return reply


def accept(states: Sequence[SessionState], accepted: Sequence[int]) -> Flow[None]:
    """The first `accepted[i]` tokens of session i's drafts become part of it, the others never were."""
    request_id = new_id()
    backoff = Backoff(states[0].retry)
    while True:
        request = state_pb2.AcceptTokensRequest(request_id=request_id)
        for state, tokens in zip(states, accepted, strict=True):
            request.acceptances.add(session=state.name, accepted_tokens=tokens, session_epoch=state.epoch)
        try:
            reply = yield Rpc("AcceptTokens", request, None, states[0].session.affinity)
            break
        except GdnError as error:
            astray = error.reason in _ASTRAY and any(state.keep_bytes > 0 for state in states)
            if not astray and not worth_another_try(error):
                raise
            yield backoff.wait(error)
            if astray:  # the drafts are computed anew, and accepted under another id
                for state in states:
                    yield from recover(state)
                request_id = new_id()
    for state, tokens, counts in zip(states, accepted, reply.counts, strict=True):
        for layer in state.layers.values():
            draft, layer.draft = layer.draft, None
            if draft is None or tokens == 0:
                continue
            assert isinstance(draft.request, step_pb2.DecodeRequest)
            layer.add(KeptStep(draft.before, tokens, first_tokens(draft.request, tokens)))
            state.kept_bytes += layer.kept[-1].bytes
        for counted in counts.layers:
            state.layer(counted.layer).count = counted.token_count


def fork(state: SessionState, ids: Sequence[str], idle_ttl: float | None) -> Flow[list[SessionState]]:
    """New sessions that go on from here."""
    request = state_pb2.ForkSessionRequest(name=state.name, session_ids=ids, idle_ttl=duration(idle_ttl))
    reply = yield from exact(state.rpc("ForkSession", request), state.retry)
    # Children can be replayed from where they begin, if their own beginning is durable; they cannot be made anew.
    return [SessionState(session, state.retry, None, state.keep_bytes) for session in reply.sessions]


def checkpoint(state: SessionState, checkpoint_id: str) -> Flow[state_pb2.Checkpoint]:
    """The session is durable as it is now."""
    request = state_pb2.CheckpointSessionRequest(name=state.name, checkpoint_id=checkpoint_id)
    reply: state_pb2.CheckpointSessionResponse = yield from exact(state.rpc("CheckpointSession", request), state.retry)
    for layer in reply.checkpoint.layers:
        state.kept_bytes -= state.layer(layer.layer).trim(layer.token_count)
    return reply.checkpoint


def restore(state: SessionState, checkpoint_id: str) -> Flow[None]:
    """Back to a checkpoint."""
    request = state_pb2.RestoreCheckpointRequest(name=state.name, checkpoint_id=checkpoint_id)
    reply = yield from exact(state.rpc("RestoreCheckpoint", request), state.retry)
    state.take(reply.session)


def segments(given: Input, max_message_bytes: int, max_reply_bytes: int) -> list[Input]:
    """A prompt in parts that fit a message, and whose outputs the server keeps for a retry."""
    tokens = leading(given)[0]
    whole = step_pb2.PrefillRequest()
    fill_input(whole, cut(given, 0, min(1, tokens)), to_tensor)
    in_bytes = max(1, whole.ByteSize())
    # What comes out is as large as one of what goes in.
    output = tensors_of(given)[{DeltaRule: "v", Projected: "z"}.get(type(given), "hidden_states")]
    out_bytes = max(1, to_tensor(output[0:1]).ByteSize()) if tokens > 0 else 1
    room = max(1, min((max_message_bytes - (64 << 10)) // in_bytes, max_reply_bytes // out_bytes))
    return [cut(given, begin, min(begin + room, tokens)) for begin in range(0, max(tokens, 1), room)]
