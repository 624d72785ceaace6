"""Brings the server's session back to the point where the client believes it to be.

The server counts each layer's tokens, and how often it has lost some of them (the epoch). If the server is behind, the
client sends the lost steps again, in order and with their original call boundaries. The state then has the same bits,
if the server computes as the one before did (`numerics_id`). If the server is ahead by a step whose output is lost, the
session goes back to its durable copy, or is recreated, and the kept steps are applied again. The client deletes a
session only if it has everything that a new one needs. The C++ class DurableSession works in the same way
(client/cpp/durable_recovery.cc).
Thread safety: as for a SessionState, one thread at a time.
"""

from __future__ import annotations

import contextlib

from gdn_client.errors import AbortedError, GdnError, InternalError, NotFoundError, SessionLostError
from gdn_client.flow import Flow, exact
from gdn_client.proto.gdn.v1 import session_pb2, state_pb2, step_pb2
from gdn_client.session_state import SessionState, new_id
from gdn_client.steps import KeptStep, name_sessions

STATE_IS_GONE = {"STATE_ROLLED_BACK", "STATE_LOST"}
_NO_COPY = {"CHECKPOINT_NOT_FOUND", "NO_DURABLE_TIER", "STATE_LOST"}
_DRAFT_IS_GONE = {"REPLY_DROPPED", "DRAFT_PENDING"}
# The server looks at the request id first. If it refuses the count instead, it has forgotten the id.
_REPLY_IS_GONE = {"REPLY_DROPPED", "TOKEN_COUNT_MISMATCH"}


def recover(state: SessionState) -> Flow[bool]:
    """Brings the session to where the client believes it to be, or to where the call in flight has taken it.

    This is one try. It continues where the last one broke off.

    Returns:
        Whether the server's session, its epoch or the id of the call in flight has changed. If not, the server will
        refuse again what it has refused before.

    Raises:
        SessionLostError: the client has not kept the inputs that it needs. Nothing was deleted.
        GdnError: the server has refused a call.

    """
    call = state.in_flight
    before = state.epoch, None if call is None else call.request_id.value
    session, anew = yield from _find(state)
    # During a replay the counts are always behind. Only a new epoch shows another loss.
    if anew or session.epoch != state.epoch or not (state.needs_replay or _is_where_expected(state, session)):
        state.needs_replay = True
    state.epoch = session.epoch
    if _must_go_back(state, session):
        state.needs_replay = True
        session = yield from _go_back(state, session)
    gone = _DRAFT_IS_GONE | _REPLY_IS_GONE if call is not None and call.accepted else _DRAFT_IS_GONE
    if call is not None and call.draft and call.refusal in gone:  # not yet part of the state: dropped
        state.needs_replay = True
        call.refusal = ""
    if (
        call is not None
        and call.layer is not None
        and call.tokens == call.moves == 0
        and call.refusal == "REPLY_DROPPED"
    ):
        call.request_id.value = new_id()  # a step without tokens can simply be repeated
    given_up = state.given_up
    accepts = given_up is not None and (given_up.layer is None or given_up.accepted is not None)
    if accepts and (call is None or not call.sent):
        state.needs_replay = True  # an acceptance that may still be on its way finds no draft
    if state.needs_replay:
        # A stored reply may describe a draft that is dropped below, or an acceptance before it, so these calls get a
        # new id. A step keeps its id, because the server may have applied and saved it, and lost only the reply.
        if call is not None:
            call.answer = None
            if call.draft or call.layer is None:
                call.request_id.value = new_id()
        _check_drafts_are_known(state, session)
        yield from _drop_drafts(state, session)
        yield from _replay(state, session)
    if call is not None and call.layer is None:
        call.is_accepted = _is_accepted(state, session)
        if call.is_accepted:  # the server may have forgotten the id, or the other rows of the call have a new one
            call.request_id.value = new_id()
    state.session = session
    for layer in session.layers:
        state.layer(layer.layer).durable = layer.durable_token_count
    changed = state.needs_replay or before != (state.epoch, None if call is None else call.request_id.value)
    state.needs_replay = state.astray = False
    return changed


def described(state: SessionState) -> Flow[session_pb2.Session]:
    """Returns the session as the server describes it."""
    request = session_pb2.GetSessionRequest(name=state.name)
    reply: session_pb2.GetSessionResponse = yield state.rpc("GetSession", request)
    return reply.session


def _find(state: SessionState) -> Flow[tuple[session_pb2.Session, bool]]:
    """Returns the session, and whether it was recreated."""
    try:
        session = yield from described(state)
    except NotFoundError as error:
        if not state.kept_from_start:
            raise _lost(f"{state.name} is gone from the server, and {_not_kept(state)}", state, error.reason) from error
        session, anew = (yield from _make_anew(state)), True
    else:
        anew = False
        # With another epoch the session is back already, and only that reply was lost.
        if state.rolled_back and session.epoch == state.epoch:
            session, anew = yield from _go_on_from_store(state, session)
    state.rolled_back = False
    return session, anew


def _go_on_from_store(state: SessionState, found: session_pb2.Session) -> Flow[tuple[session_pb2.Session, bool]]:
    """Restores the newest checkpoint under a new epoch. Recreates the session if the server has no copy of it."""
    copy = yield from restore_newest(state, found.epoch)
    if copy is not None:
        return copy, False
    why = f"the server has lost the state of {state.name}, and has no durable copy of it"
    return (yield from begin_anew(state, why, "CHECKPOINT_NOT_FOUND")), True


def begin_anew(state: SessionState, why: str, reason: str) -> Flow[session_pb2.Session]:
    """Deletes and recreates the session, after checking that this loses nothing."""
    if not state.kept_from_start:
        raise _lost(f"{why}, and {_not_kept(state)}", state, reason)
    named = state_pb2.ListCheckpointsResponse()
    try:
        named = yield state.rpc("ListCheckpoints", state_pb2.ListCheckpointsRequest(name=state.name))
    except GdnError as error:
        if error.reason not in _NO_COPY and error.reason != "SESSION_NOT_FOUND":
            raise
    if named.checkpoints:
        raise _lost(f"{why}, and making it anew would delete its named checkpoints", state, reason)
    with contextlib.suppress(NotFoundError):
        yield state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name))
    return (yield from _make_anew(state))


def _make_anew(state: SessionState) -> Flow[session_pb2.Session]:
    """Creates the session again. Idempotent: if the reply is lost, GetSession finds the session."""
    assert state.create is not None
    state.check_not_ended()
    made: session_pb2.CreateSessionResponse = yield state.rpc("CreateSession", state.create)
    if made.session.prefix_tokens != state.start:
        with contextlib.suppress(GdnError):
            yield state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name))
        raise _lost(f"{state.name} and the prefix that it began with are gone", state, "SESSION_NOT_FOUND")
    state.stats.recreations += 1
    return made.session


def _is_applied(state: SessionState, layer: int, count: int) -> bool:
    """Whether the call in flight has brought the layer to this count."""
    call, known = state.in_flight, state.layers.get(layer)
    if call is None or not call.sent or known is None:
        return False
    moves = known.draft_tokens > 0 if call.layer is None else call.layer == layer
    return moves and call.moves > 0 and count == known.count + call.moves


def _is_accepted(state: SessionState, session: session_pb2.Session) -> bool:
    """Whether the acceptance in flight is applied in every layer that has a draft here."""
    drafted = [layer for layer in session.layers if state.layer(layer.layer).draft_tokens > 0]
    return len(drafted) > 0 and all(_is_applied(state, layer.layer, layer.token_count) for layer in drafted)


def _is_where_expected(state: SessionState, session: session_pb2.Session) -> bool:
    call = state.in_flight if state.in_flight is not None and state.in_flight.sent else None

    def fits(layer: session_pb2.LayerState) -> bool:
        known = state.layer(layer.layer)
        if layer.token_count != known.count:
            drafted = call.tokens if call is not None and call.draft else 0
            return layer.draft_length == drafted and _is_applied(state, layer.layer, layer.token_count)
        drafts = {known.draft_tokens}
        if call is not None and call.draft and call.layer == layer.layer and call.moves == 0:
            drafts.add(call.tokens)
        elif call is not None and call.moves == 0 and call.drops(layer.layer):
            drafts.add(0)
        return layer.draft_length in drafts

    return all(fits(layer) for layer in session.layers)


def _must_go_back(state: SessionState, session: session_pb2.Session) -> bool:
    """Whether the server's layers have applied a step whose output is lost.

    Raises:
        SessionLostError: the step was not sent by this client.

    """
    call = state.in_flight
    # A draft whose reply is gone is dropped, and the tokens that it accepted first stay accepted.
    reply_is_gone = call is not None and call.layer is not None and not call.draft and call.refusal in _REPLY_IS_GONE
    back = False
    for layer in session.layers:
        known, count = state.layer(layer.layer), layer.token_count
        if count <= known.count or (_is_applied(state, layer.layer, count) and not reply_is_gone):
            continue
        if count > known.reached:
            raise _lost(
                f"the server's {state.name} has seen {count} tokens of layer {layer.layer}, and only {known.reached} "
                "were sent from here: somebody else has moved it",
                state,
                "TOKEN_COUNT_MISMATCH",
            )
        back = True
    return back


def _go_back(state: SessionState, session: session_pb2.Session) -> Flow[session_pb2.Session]:
    """Goes back to before the step whose output is lost: to the durable copy, or to the start."""
    call = state.in_flight
    copy = yield from _restore_durable_copy(state, session)
    if copy is None:
        if call is not None and call.sent:
            why = f"{state.name} has taken a step whose output the server does not keep any more"
        else:
            why = (
                f"{state.name} has taken a call of which this side has had no answer (make that same call again to get "
                "it and go on)"
            )
        copied = "the durable copy has it too" if session.HasField("durable_time") else "there is no durable copy"
        copy = yield from begin_anew(state, f"{why}; {copied}", "REPLY_DROPPED")
    state.epoch = copy.epoch
    if call is not None:
        call.refusal = ""
        call.copy_tried = any(_is_applied(state, layer.layer, layer.token_count) for layer in copy.layers)
    state.stats.rewinds += 1
    return copy


def _restore_durable_copy(state: SessionState, session: session_pb2.Session) -> Flow[session_pb2.Session | None]:
    """Restores the durable copy. Returns None if there is no copy that the session can continue from."""
    # A copy that contains the step may contain its reply too. If that turned out to be wrong, the copy is useless.
    if not session.HasField("durable_time") or (state.in_flight is not None and state.in_flight.copy_tried):
        return None
    for layer in session.layers:
        durable = layer.durable_token_count
        if state.layer(layer.layer).since(durable) is None and not _is_applied(state, layer.layer, durable):
            return None
    return (yield from restore_newest(state, session.epoch))


def restore_newest(state: SessionState, epoch: int) -> Flow[session_pb2.Session | None]:
    """Restores the newest checkpoint. Returns None if the server has no copy of the session."""
    request = state_pb2.RestoreCheckpointRequest(name=state.name, session_epoch=epoch)
    try:
        reply: state_pb2.RestoreCheckpointResponse = yield state.rpc("RestoreCheckpoint", request)
        return reply.session
    except GdnError as error:
        if error.reason not in _NO_COPY:
            raise
        return None


def _check_drafts_are_known(state: SessionState, session: session_pb2.Session) -> None:
    call = state.in_flight
    for layer in session.layers:
        known = state.layer(layer.layer)
        if call is not None and call.drops(layer.layer):
            continue
        if known.draft_tokens > 0 and known.draft is None and not _is_applied(state, layer.layer, layer.token_count):
            raise _lost(
                f"{state.name} has lost a draft of layer {layer.layer}, whose inputs are not known here",
                state,
                "DRAFT_PENDING",
            )


def _drop_drafts(state: SessionState, session: session_pb2.Session) -> Flow[None]:
    """Drops the server's drafts. Updates the session's counts."""
    if not any(layer.draft_length > 0 for layer in session.layers):
        return
    drop = state_pb2.AcceptTokensRequest(request_id=new_id())
    drop.acceptances.add(session=state.name, accepted_tokens=0, session_epoch=state.epoch)
    reply: state_pb2.AcceptTokensResponse = yield state.rpc("AcceptTokens", drop)
    del session.layers[:]
    session.layers.extend(reply.counts[0].layers)


def _replay(state: SessionState, session: session_pb2.Session) -> Flow[None]:
    call, replayed, drafts = state.in_flight, 0, []
    for layer in session.layers:
        known = state.layer(layer.layer)
        applied = _is_applied(state, layer.layer, layer.token_count)
        if call is not None and call.layer == layer.layer:
            call.accepted_before = applied and call.draft
        if applied:
            continue
        for step in _steps_since(state, layer):
            yield from _send_again(state, step)
            replayed += 1
        if known.draft is not None and not (call is not None and call.drops(layer.layer)):
            drafts.append(known.draft)
    for step in drafts:
        yield from _send_again(state, step)
        replayed += 1
    state.stats.replays += replayed > 0
    state.stats.replayed_steps += replayed


def _steps_since(state: SessionState, layer: session_pb2.LayerState) -> list[KeptStep]:
    known, count = state.layer(layer.layer), layer.token_count
    steps = known.since(count)
    if steps is not None:
        return steps
    if count > known.count:
        raise AbortedError(f"{state.name} has moved while it was brought back", reason="TOKEN_COUNT_MISMATCH")
    told = f"the server has {count} of layer {layer.layer}, {known.count} were answered, and "
    told += (
        f"inputs are kept from token {known.begin} on alone" if count < known.begin else "no step of here ended there"
    )
    raise SessionLostError(
        f"{state.name} has lost tokens: {told}; prefill a new session, or make sessions with a larger keep_bytes, and "
        "checkpoints more often",
        reason="STATE_ROLLED_BACK",
        metadata={"session": state.name, "layer": str(layer.layer), "token_count": str(count)},
    )


def _send_again(state: SessionState, step: KeptStep) -> Flow[None]:
    request = step.alone()
    name_sessions(request, new_id(), [(state.name, state.epoch, step.before)])
    if isinstance(request, step_pb2.PrefillRequest):
        prefilled: step_pb2.PrefillResponse = yield state.rpc("Prefill", request)
        count = prefilled.token_count
    else:
        decoded: step_pb2.DecodeResponse = yield state.rpc("Decode", request)
        count = decoded.token_counts[0] + (step.tokens if request.draft else 0)
    if count != step.after:
        raise InternalError(
            f"a step of {state.name} that was sent again has brought layer {request.layer} to {count} tokens, expected "
            f"{step.after}",
            reason="INTERNAL",
        )


def _not_kept(state: SessionState) -> str:
    if state.create is None:
        return "it was not made by this client, which cannot make it again; prefill a new session"
    layer, begin = state.first_kept
    return f"of layer {layer} only the inputs from token {begin} on are kept; prefill a new session"


def _lost(what: str, state: SessionState, reason: str) -> SessionLostError:
    return SessionLostError(what, reason=reason, metadata={"session": state.name})


def delete(state: SessionState) -> Flow[None]:
    """Deletes the session. It may be deleted already. No later call of this client recreates it."""
    state.ended = True
    with contextlib.suppress(NotFoundError):
        yield from exact(state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name)), state.retry)
