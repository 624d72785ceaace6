"""Steps that are taken exactly once, and what a server has lost of a session brought back.

The server counts each layer's tokens. A step says what the count has to be and has an id of its own, so a reply
that was lost on the way is asked for again and nothing is taken twice. Where a server has crashed and is behind, the
steps that it has lost are sent again from here, in their order and with their bounds: the state is then the same to
the bit, if the server computes as the one before did (`numerics_id`).
Thread safety: for one thread at a time, as a SessionState is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gdn_client.errors import GdnError, NotFoundError, SessionLostError
from gdn_client.flow import Backoff, Flow, Rpc, exact, worth_another_try
from gdn_client.proto.gdn.v1 import session_pb2, state_pb2, step_pb2
from gdn_client.session_state import SessionState, new_id
from gdn_client.shared_memory import StepMemory
from gdn_client.steps import KeptStep

# The server has less, or more, of a session than this side believes, or has forgotten a reply.
ASTRAY = {
    "SESSION_NOT_FOUND",
    "EPOCH_MISMATCH",
    "TOKEN_COUNT_MISMATCH",
    "REPLY_DROPPED",
    "DRAFT_PENDING",
    "STATE_ROLLED_BACK",
}
_REPLY_IS_GONE = {"REPLY_DROPPED", "TOKEN_COUNT_MISMATCH"}


@dataclass
class InFlight:
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


def recover(state: SessionState, in_flight: InFlight | None = None) -> Flow[None]:
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


def take_step(
    states: Sequence[SessionState],
    layer: int,
    tokens: Sequence[int],
    draft: bool,
    make: Callable[[], Any],
    method: str,
    timeout: float | None,
    memory: StepMemory,
) -> Flow[Any]:
    """The reply to a step that each of the sessions takes exactly once; `make()` gives its request as they are."""
    backoff = Backoff(states[0].retry)
    before = [state.layer(layer).count for state in states]
    while True:
        try:
            request = make()
            memory.sending()
            reply = yield Rpc(method, request, timeout, states[0].session.affinity)
            memory.answered()
            return reply
        except GdnError as error:
            if memory.failed(error):
                continue
            astray = error.reason in ASTRAY and any(state.keep_bytes > 0 for state in states)
            if not astray and not worth_another_try(error):
                raise
            yield backoff.wait(error)
            if not astray:
                continue
            for state, count, row_tokens in zip(states, before, tokens, strict=True):
                yield from recover(state, InFlight(layer, count, row_tokens, draft, error.reason))


def delete(state: SessionState) -> Flow[None]:
    """It is gone, whoever has ended it."""
    with contextlib.suppress(NotFoundError):
        yield from exact(state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name)), state.retry)
