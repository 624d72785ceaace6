"""Calls for many sessions at once: create, delete, fork and reset.

The server answers each session by itself. An entry whose error may be temporary is sent again, like a call for one
session. Servers that do not know these methods get a call for each session instead.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gdn_client.calls import answered
from gdn_client.errors import (
    AlreadyExistsError,
    GdnError,
    NotFoundError,
    SessionLostError,
    UnimplementedError,
    from_status,
)
from gdn_client.flow import Backoff, Flow, Retry, Rpc, exact, is_unknown_method, worth_another_try
from gdn_client.proto.gdn.v1 import batch_pb2, session_pb2, state_pb2
from gdn_client.recovery import STATE_IS_GONE, begin_anew, described, restore_newest
from gdn_client.session_flow import Abilities
from gdn_client.session_state import SessionState
from gdn_client.shared_memory import SharedMemory
from gdn_client.state_calls import Fork

Answer: TypeAlias = Any  # what the method for one session returns, or its GdnError


@dataclass(frozen=True)
class Many:
    """How the calls of one connection are made.

    Attributes:
        most: most sessions of one call.
        abilities: what the server knows.
        retry: how long entries are sent again.

    """

    most: int
    abilities: Abilities
    retry: Retry


@dataclass(frozen=True)
class _Method:
    """A method for many sessions.

    Attributes:
        name: its name.
        request: makes its request from entries.
        answers: reads its reply.
        alone: makes a call for one entry, and returns its answer.

    """

    name: str
    request: Callable[[Sequence[Any]], Any]
    answers: Callable[[Any], list[Answer]]
    alone: Callable[[Any, str], Flow[Any]]


def _session_or_error(reply: Any) -> list[Answer]:
    return [from_status(one.error) if one.HasField("error") else one.session for one in reply.results]


def _create_one(request: session_pb2.CreateSessionRequest, affinity: str) -> Flow[session_pb2.Session]:
    reply: session_pb2.CreateSessionResponse = yield Rpc("CreateSession", request, None, affinity)
    return reply.session


def _delete_one(name: str, affinity: str) -> Flow[None]:
    yield Rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=name), None, affinity)


def _fork_one(request: state_pb2.ForkSessionRequest, affinity: str) -> Flow[list[session_pb2.Session]]:
    reply: state_pb2.ForkSessionResponse = yield Rpc("ForkSession", request, None, affinity)
    return list(reply.sessions)


def _reset_one(_: batch_pb2.SessionReset, affinity: str) -> Flow[None]:
    raise UnimplementedError("the server does not know resets (version 0.1.0); delete the session and create another")
    yield


_CREATE = _Method(
    "CreateSessions",
    lambda entries: batch_pb2.CreateSessionsRequest(requests=entries),
    _session_or_error,
    _create_one,
)
_DELETE = _Method(
    "DeleteSessions",
    lambda names: batch_pb2.DeleteSessionsRequest(names=names),
    lambda reply: [from_status(status) if status.code != 0 else None for status in reply.statuses],
    _delete_one,
)
_FORK = _Method(
    "ForkSessions",
    lambda entries: batch_pb2.ForkSessionsRequest(requests=entries),
    lambda reply: [from_status(one.error) if one.HasField("error") else list(one.sessions) for one in reply.results],
    _fork_one,
)
_RESET = _Method(
    "ResetSessions",
    lambda entries: batch_pb2.ResetSessionsRequest(resets=entries),
    _session_or_error,
    _reset_one,
)


def _once(method: _Method, entries: Sequence[Any], affinity: str, many: Many, most: int) -> Flow[list[Answer]]:
    """Returns the answer to each entry after one try, in calls of at most `most` entries."""
    found: list[Answer] = []
    for begin in range(0, len(entries), max(1, most)):
        part = entries[begin : begin + max(1, most)]
        if many.abilities.many:
            try:
                found += method.answers((yield Rpc(method.name, method.request(part), None, affinity)))
                continue
            except GdnError as error:
                if not is_unknown_method(error):
                    found += [error] * len(part)
                    continue
                many.abilities.many = False
        for entry in part:
            try:
                found.append((yield from method.alone(entry, affinity)))
            except GdnError as error:
                found.append(error)
    return found


def _answers(method: _Method, entries: Sequence[Any], affinity: str, many: Many) -> Flow[list[Answer]]:
    """Returns the answer to each entry. Those with an error that may be temporary are sent again for a while."""
    found: list[Answer] = [None] * len(entries)
    left, backoff = list(range(len(entries))), Backoff(many.retry)
    while left:
        answers = yield from _once(method, [entries[at] for at in left], affinity, many, many.most)
        for at, answer in zip(left, answers, strict=True):
            found[at] = answer
        left = [at for at in left if isinstance(found[at], GdnError) and worth_another_try(found[at])]
        if left:
            try:
                yield backoff.wait(found[left[0]])
            except GdnError:
                break  # the time is over
    return found


def _first_error(answers: Iterable[Answer]) -> GdnError | None:
    return next((answer for answer in answers if isinstance(answer, GdnError)), None)


def create(
    requests: Sequence[session_pb2.CreateSessionRequest], many: Many, keep_bytes: int, memory: SharedMemory
) -> Flow[list[SessionState]]:
    """Creates sessions. Each request must name an id, and all of them the same affinity.

    Raises:
        GdnError: the first error of an entry. The sessions of the others are deleted.

    """
    affinity = requests[0].affinity if requests else ""
    found = yield from _answers(_CREATE, requests, affinity, many)
    error = _first_error(found)
    if error is not None:
        made = [answer.name for answer in found if isinstance(answer, session_pb2.Session)]
        yield from _answers(_DELETE, made, affinity, many)
        raise error
    return [
        SessionState(session, many.retry, request, keep_bytes, start=session.prefix_tokens, memory=memory)
        for session, request in zip(found, requests, strict=True)
    ]


def create_each(
    requests: Sequence[session_pb2.CreateSessionRequest], many: Many, keep_bytes: int, memory: SharedMemory
) -> Flow[list[SessionState | GdnError]]:
    """Creates sessions as `create` does, but returns the error of each that could not be created in its place.

    A session that starts from a snapshot cannot be recreated after a crash of the server.
    """
    found = yield from _answers(_CREATE, requests, requests[0].affinity if requests else "", many)
    return [
        answer
        if isinstance(answer, GdnError)
        else SessionState(answer, many.retry, None if request.snapshot else request, keep_bytes, memory=memory)
        for answer, request in zip(found, requests, strict=True)
    ]


def delete(states: Sequence[SessionState], many: Many) -> Flow[None]:
    """Deletes sessions. They may be deleted already. No later call of this client recreates them.

    Raises:
        GdnError: error of the first session that could not be deleted. The call tries to delete all of them.

    """
    unique = list({state.name: state for state in states}.values())
    if not unique:
        return
    for state in states:
        state.ended = True
    affinity = unique[0].session.affinity
    found = yield from _answers(_DELETE, [state.name for state in unique], affinity, many)
    for at, state in enumerate(unique):
        if not isinstance(found[at], NotFoundError):
            continue
        found[at] = None
        if state.session.affinity != affinity:  # it may be on another node
            try:
                with contextlib.suppress(NotFoundError):
                    yield from exact(
                        state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=state.name)), many.retry
                    )
            except GdnError as error:
                found[at] = error
    if (first := _first_error(found)) is not None:
        raise first


def fork(
    states: Sequence[SessionState], ids: Sequence[Sequence[str]], idle_ttl: float | None, durable: bool, many: Many
) -> Flow[list[list[SessionState]]]:
    """Creates sessions that continue from session i, with the ids `ids[i]`, as `state_calls.fork` does for one.

    Raises:
        GdnError: a session could not be forked. No child is left.

    """
    forks = [Fork(state, names, idle_ttl) for state, names in zip(states, ids, strict=True)]
    found: dict[int, Sequence[session_pb2.Session]] = {}
    most = many.most // max((len(names) for names in ids), default=1)

    def send() -> Flow[None]:
        left = [at for at in range(len(forks)) if at not in found]
        affinity = states[0].session.affinity
        answers = yield from _once(_FORK, [forks[at].request() for at in left], affinity, many, most)
        errors = []
        for at, answer in zip(left, answers, strict=True):
            try:
                if isinstance(answer, AlreadyExistsError):
                    yield from forks[at].refused(answer)
                if isinstance(answer, GdnError):
                    answer.metadata.setdefault("session", states[at].name)
                    raise answer
                found[at] = yield from forks[at].taken(answer)
            except GdnError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    children: list[list[SessionState]] = []
    complete = False
    try:
        yield from answered(states, [], send)
        children = [one.children(found[at]) for at, one in enumerate(forks)]
        for own in children if durable else ():
            yield from Fork.make_durable(own)
        complete = True
    finally:
        if not complete:
            names = [session.name for sessions in found.values() for session in sessions]
            yield from _answers(_DELETE, names, states[0].session.affinity, many)
    return children


def reset(states: Sequence[SessionState], many: Many) -> Flow[None]:
    """Sets sessions back to zero tokens. Their states are given up, so they are not recovered first.

    A reset that ends without an answer may have been applied. Other calls are refused until a reset is answered.

    Raises:
        GdnError: error of the first session that could not be reset. The call tries to reset all of them.

    """
    for state in states:
        state.check_not_ended()
    before = [state.restoring for state in states]
    for state in states:
        state.restoring = True
    # The epoch is not checked, because a state of another epoch is given up too.
    resets = [batch_pb2.SessionReset(name=state.name) for state in states]
    found = yield from _answers(_RESET, resets, states[0].session.affinity, many)
    for at, state in enumerate(states):
        found[at] = yield from _reset_alone(state, found[at], before[at], many)
    if (error := _first_error(found)) is not None:
        raise error


def _reset_alone(state: SessionState, answer: Answer, was_restoring: bool, many: Many) -> Flow[Answer]:
    """Notes a session's answer. If the server has lost the session or cannot reset it, makes it anew."""
    backoff = Backoff(many.retry)
    while isinstance(answer, GdnError) and _has_remedy(answer):
        try:
            done = yield from _mended(state, answer, many)
        except GdnError as error:
            done = error
        # Another error with a remedy: the server has crashed meanwhile.
        answer = done if not isinstance(done, GdnError) or not worth_another_try(done) else answer
        if isinstance(done, SessionLostError) or not isinstance(done, GdnError):
            break
        try:
            yield backoff.wait(done)
        except GdnError as error:
            answer = error
            break
    if isinstance(answer, GdnError):
        state.restoring = not isinstance(answer, SessionLostError) and (was_restoring or worth_another_try(answer))
    else:
        state.was_reset(answer)
    return answer


def _has_remedy(error: GdnError) -> bool:
    if isinstance(error, SessionLostError):
        return False
    known = error.reason in STATE_IS_GONE or error.reason == "EPOCH_MISMATCH"
    return known or isinstance(error, NotFoundError) or is_unknown_method(error)


def _mended(state: SessionState, error: GdnError, many: Many) -> Flow[Answer]:
    """Returns the session at zero tokens, or the answer to another reset.

    Raises:
        GdnError: the session is gone, and this client has not made it.

    """
    if error.reason in STATE_IS_GONE or error.reason == "EPOCH_MISMATCH":
        session = yield from described(state)
        if (yield from restore_newest(state, session.epoch)) is not None:
            entry = batch_pb2.SessionReset(name=state.name)
            (again,) = yield from _answers(_RESET, [entry], state.session.affinity, many)
            return again
    if state.create is None:
        raise SessionLostError(
            f"{state.name} cannot be reset, and this client has not made it: {error.message}",
            reason=error.reason,
            metadata={"session": state.name},
        )
    state.set_to_zero()
    return (yield from begin_anew(state, f"{state.name} is to be reset", error.reason))
