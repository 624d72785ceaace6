"""Retries calls until they are answered.

The parts are those of the C++ class DurableSession: recover each session if necessary, send the call, and finish it or
find out why it failed. A call that ends without an answer is *given up*; the server may have applied it. If the caller
repeats the same call, it continues and gets the answer. Any other call first takes the session back to before the call
that was given up, or raises an error if that is impossible.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gdn_client.errors import AbortedError, FailedPreconditionError, GdnError, SessionLostError, UnimplementedError
from gdn_client.flow import Backoff, Flow, worth_another_try
from gdn_client.proto.gdn.v1 import state_pb2
from gdn_client.recovery import STATE_IS_GONE, recover
from gdn_client.session_state import InFlight, SessionState

T = TypeVar("T")

# Reasons after which the server's session must be compared with the client's view: it is behind or ahead, has forgotten
# a reply, or has lost the state.
ASTRAY = STATE_IS_GONE | {
    "SESSION_NOT_FOUND",
    "EPOCH_MISMATCH",
    "TOKEN_COUNT_MISMATCH",
    "REPLY_DROPPED",
    "DRAFT_PENDING",
}
# Most recoveries of one call for one reason. A server may crash once or twice during a call. But a step that destroys
# the state each time it is applied must be reported to the caller.
MOST_RECOVERIES = 3
# The server looks at the request id first. So a try that is refused for one of these reasons was not applied.
_NOT_TAKEN = ASTRAY - {"REPLY_DROPPED"}


def of_another_state(name: str, what: str) -> AbortedError:
    """Returns the error for a server that does not know session_epoch in such a call, and has used an older state."""
    return AbortedError(
        f"{what} of {name} is of another state than this side knows: the server has lost steps that it had answered",
        reason="EPOCH_MISMATCH",
        metadata={"session": name},
    )


def answered(
    states: Sequence[SessionState],
    rows: Sequence[InFlight],
    send: Callable[[], Flow[T]],
    begun: float | None = None,
) -> Flow[T]:
    """Sends a call until it is answered, and returns the answer.

    Args:
        states: the sessions that the call names.
        rows: the call's effect on each session. Empty if it uses their states without changing anything.
        send: makes one try of the call.
        begun: `time.monotonic()` when the call's time began. None: now.

    Raises:
        NotFoundError: SESSION_NOT_FOUND, this client has ended one of the sessions.
        SessionLostError: the client has not kept the inputs that it needs.
        FailedPreconditionError: a restore of one of the sessions got no answer.
        GdnError: the server has refused the call.

    """
    _begin(states, rows)
    backoff = Backoff(states[0].retry, time.monotonic() if begun is None else begun)
    ended = False  # whether the server has answered, or said that nothing has changed
    # Why the server wants the sessions to be checked before this try, because of which session, and how often in a row.
    refusal, recoveries = ("", ""), 0
    try:
        while True:
            in_vain = False
            try:
                found = []
                for state in states:
                    if state.astray:
                        found.append((yield from recover(state)))
                # If nothing has changed, or the limit of recoveries is reached, the same call meets the same refusal.
                in_vain = refusal[0] != "" and (not any(found) or recoveries >= MOST_RECOVERIES)
                for state in states if rows else ():
                    if state.is_over:
                        yield from _make_room(state)
                result = yield from _one_try(states, rows, send)
                ended = True
                for state in states:
                    state.given_up = None
                return result
            except GdnError as error:
                astray = any(state.astray for state in states)
                told = error.reason, error.metadata.get("session", "")
                if (in_vain and told == refusal) or not _try_again(states, error):
                    ended = not astray
                    raise
                recoveries = recoveries + 1 if told == refusal else 1
                refusal = told if error.reason in ASTRAY else ("", "")
                yield backoff.wait(error)
    finally:
        if not ended:
            give_up(states, rows)
        for state in states:
            state.in_flight = None


def uses(state: SessionState, send: Callable[[], Flow[T]]) -> Flow[T]:
    """Sends a call that uses a session's state until it is answered, and returns the answer."""
    return (yield from answered([state], [], send))


def _begin(states: Sequence[SessionState], rows: Sequence[InFlight]) -> None:
    """Prepares the call. Rows that were given up and are now repeated keep their request id.

    If rows share one id, those that were given up under another one begin anew.
    """
    for state in states:
        state.check_not_ended()
        if state.restoring:
            raise FailedPreconditionError(
                f"a restore or reset of {state.name} ended without an answer and may have been applied; restore it "
                "again, or reset it again"
            )
    common: dict[int, str] = {}
    for state, row in zip(states, rows):  # noqa: B905 - there may be no rows
        state.in_flight, earlier = row, state.given_up
        if earlier is None or earlier.digest() != row.digest():
            continue
        first = common.setdefault(id(row.request_id), earlier.request_id.value)
        if earlier.request_id.value == first:
            row.request_id.value = first
            row.sent, row.copy_tried, row.refusal = True, earlier.copy_tried, earlier.refusal
            row.accepted_before, row.answer = earlier.accepted_before, earlier.answer


def _one_try(states: Sequence[SessionState], rows: Sequence[InFlight], send: Callable[[], Flow[T]]) -> Flow[T]:
    before = [row.sent for row in rows]
    for row in rows:
        row.sent, row.refusal = True, ""
    try:
        return (yield from send())
    except BaseException as error:
        refused = isinstance(error, UnimplementedError) or (isinstance(error, GdnError) and error.reason in _NOT_TAKEN)
        for state, row, sent in zip(states, rows, before):  # noqa: B905
            row.sent = sent or not refused or row.answer is not None
            if row.sent:
                _may_have_moved(state, row)
        raise


def try_checkpoint(state: SessionState, checkpoint_id: str) -> Flow[state_pb2.Checkpoint]:
    """Makes one try of a checkpoint."""
    request = state_pb2.CheckpointSessionRequest(
        name=state.name, checkpoint_id=checkpoint_id, session_epoch=state.epoch
    )
    reply: state_pb2.CheckpointSessionResponse = yield state.rpc("CheckpointSession", request)
    made = reply.checkpoint
    if made.epoch != state.epoch or not state.is_as_known(made.layers, drafts=False):
        raise of_another_state(state.name, "a checkpoint")
    return made


def _make_room(state: SessionState) -> Flow[None]:
    """Makes a checkpoint, so that older inputs can be dropped. Drops the oldest inputs if no checkpoint is possible."""
    if not state.cannot_checkpoint:
        try:
            yield from try_checkpoint(state, "")
            state.note_checkpoint("")
        except GdnError as error:
            if error.reason in ASTRAY or not error.reason:
                raise
            state.cannot_checkpoint = error.reason == "NO_DURABLE_TIER"
    state.drop_oldest()


def _may_have_moved(state: SessionState, row: InFlight) -> None:
    for index, known in state.layers.items():
        if row.layer == index or (row.layer is None and known.draft_tokens > 0):
            known.reached = max(known.reached, known.count + row.moves)


def _try_again(states: Sequence[SessionState], error: GdnError) -> bool:
    """Whether another try may succeed. Also notes what must be checked before it."""
    if isinstance(error, SessionLostError):
        return False
    if error.reason not in ASTRAY or all(state.keep_bytes <= 0 for state in states):
        return worth_another_try(error)
    named = [state for state in states if state.name == error.metadata.get("session")] or list(states)
    if error.reason == "DRAFT_PENDING" and not any(_may_have_drafted(state) for state in named):
        return False  # the draft is not this call's, so somebody else must accept or drop it
    for state in named:
        state.rolled_back |= error.reason in STATE_IS_GONE
        call = state.in_flight  # an error during a recovery, or of other rows, says nothing about it
        if not state.astray and call is not None and call.answer is None:
            call.refusal = error.reason
    for state in states:
        state.astray = True
    return True


def _may_have_drafted(state: SessionState) -> bool:
    """Whether the server's draft may come from a try of the call in flight whose answer was lost."""
    call = state.in_flight
    return call is not None and call.draft and call.sent


def abandoned(states: Sequence[SessionState], rows: Sequence[InFlight]) -> None:
    """Notes that a call was given up in the middle of its first try, so that it may have been applied."""
    for state, row in zip(states, rows, strict=True):
        row.sent = True
        _may_have_moved(state, row)
    give_up(states, rows)


def give_up(states: Sequence[SessionState], rows: Sequence[InFlight]) -> None:
    """Keeps the rows that may have been applied, so that the same call again goes on with them."""
    for state, row in zip(states, rows):  # noqa: B905
        if not row.sent:
            continue
        digest = row.digest()
        row.digest = lambda known=digest: known  # type: ignore[misc]  # the caller may now change the inputs
        state.given_up = row
        state.astray = state.keep_bytes > 0
