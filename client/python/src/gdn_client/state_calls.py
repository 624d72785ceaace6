"""Calls that use a session's state and advance no token: fork, checkpoint, restore, export, watch, keep a prefix.

Each call names the epoch that the client knows. A server that has lost steps refuses the call; the client then restores
the session and repeats the call. Older servers ignore session_epoch in these calls, so the client also compares the
token counts in replies. If these differ from its own, it acts as if the server had refused.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from gdn_client.calls import of_another_state, try_checkpoint, uses
from gdn_client.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    GdnError,
    NotFoundError,
    ResourceExhaustedError,
    SessionLostError,
)
from gdn_client.flow import Backoff, Download, Flow, Watch, worth_another_try
from gdn_client.progress import Told
from gdn_client.proto.gdn.v1 import prefix_pb2, session_pb2, state_pb2
from gdn_client.recovery import described
from gdn_client.requests import StateSnapshot, watch_request
from gdn_client.session_state import SessionState, duration


class Fork:
    """The creation of sessions that continue from one session. It may take several tries."""

    def __init__(self, state: SessionState, ids: Sequence[str], idle_ttl: float | None) -> None:
        self._state, self._ids, self._idle_ttl = state, ids, idle_ttl
        self._made: set[str] = set()  # children of an older state, made by an earlier try

    def request(self) -> state_pb2.ForkSessionRequest:
        """Returns the request for the session as it is now."""
        return state_pb2.ForkSessionRequest(
            name=self._state.name,
            session_ids=self._ids,
            idle_ttl=duration(self._idle_ttl),
            session_epoch=self._state.epoch,
        )

    def refused(self, error: AlreadyExistsError) -> Flow[None]:
        """Raises the error of a try, or the one that leads to another try."""
        if not self._made:
            raise error
        yield from _end(self._state, self._made)  # the last try broke off while it deleted them
        raise of_another_state(self._state.name, "a fork") from error

    def taken(self, children: Sequence[session_pb2.Session]) -> Flow[Sequence[session_pb2.Session]]:
        """Returns the children that the server has made.

        Raises:
            AbortedError: EPOCH_MISMATCH, they were made from an older state. They are deleted.

        """
        state = self._state
        if all(state.is_as_known(child.layers) for child in children):
            return children
        # Either this same fork was made before, and its children have advanced since; or it was made from an older
        # state.
        parent = yield from described(state)
        older = {layer.layer: (layer.token_count, layer.draft_length) for layer in parent.layers}
        if parent.epoch == state.epoch and state.is_as_known(parent.layers):
            return children
        for child in children:
            if {layer.layer: (layer.token_count, layer.draft_length) for layer in child.layers} == older:
                self._made.add(child.name)
        yield from _end(state, self._made)
        raise of_another_state(state.name, "a fork")

    def children(self, sessions: Sequence[session_pb2.Session]) -> list[SessionState]:
        """Returns the client's views of the children."""
        return [_child(self._state, session, self._idle_ttl) for session in sessions]

    @staticmethod
    def make_durable(children: Sequence[SessionState]) -> Flow[None]:
        """Checkpoints the children that could not be recreated."""
        for child in children:
            if not child.kept_from_start:
                with contextlib.suppress(FailedPreconditionError, ResourceExhaustedError):  # a crash then raises
                    yield from checkpoint(child, "")


def _end(state: SessionState, names: set[str]) -> Flow[None]:
    for name in sorted(names):
        with contextlib.suppress(NotFoundError):
            yield state.rpc("DeleteSession", session_pb2.DeleteSessionRequest(name=name))


def fork(
    state: SessionState, ids: Sequence[str], idle_ttl: float | None, durable: bool = False
) -> Flow[list[SessionState]]:
    """Creates sessions that continue from this one. `durable`: checkpoints those that could not be recreated."""
    one = Fork(state, ids, idle_ttl)

    def send() -> Flow[Sequence[session_pb2.Session]]:
        try:
            reply: state_pb2.ForkSessionResponse = yield state.rpc("ForkSession", one.request())
        except AlreadyExistsError as error:
            yield from one.refused(error)
            raise
        return (yield from one.taken(reply.sessions))

    children = one.children((yield from uses(state, send)))
    try:
        if durable:
            yield from Fork.make_durable(children)
    except GdnError:
        with contextlib.suppress(GdnError):  # the caller does not get them
            yield from _end(state, {child.name for child in children})
        raise
    return children


def _child(parent: SessionState, session: session_pb2.Session, idle_ttl: float | None) -> SessionState:
    """Makes the view of a child, with its parent's history. If all of that is kept, the child can be recreated."""
    child = SessionState(session, parent.retry, None, parent.keep_bytes, parent.keeps_durable, memory=parent.memory)
    if not parent.is_as_known(session.layers):
        return child
    if parent.create is not None:
        child.create = session_pb2.CreateSessionRequest()
        child.create.CopyFrom(parent.create)
        child.create.session_id, child.create.affinity = session.name.removeprefix("sessions/"), session.affinity
        for field, seconds in (("idle_ttl", idle_ttl), ("max_lifetime", None)):
            child.create.ClearField(field)
            if seconds is not None:
                getattr(child.create, field).CopyFrom(duration(seconds))
        child.start = parent.start
    for index, known in parent.layers.items():
        own = child.layer(index)
        own.begin, own.draft, own.accepted = known.begin, known.draft, known.accepted
        own.kept.extend(known.kept)
        child.kept_bytes += sum(step.bytes for step in known.kept)
    return child


def checkpoint(state: SessionState, checkpoint_id: str) -> Flow[state_pb2.Checkpoint]:
    """Makes the session durable as it is now."""
    made = yield from uses(state, lambda: try_checkpoint(state, checkpoint_id))
    state.note_checkpoint(checkpoint_id)
    return made


def _epoch_of_restored(state: SessionState) -> Flow[int]:
    try:
        return (yield from described(state)).epoch
    except GdnError as error:
        state.restoring = error.reason != "SESSION_NOT_FOUND"
        raise


def restore(state: SessionState, checkpoint_id: str) -> Flow[None]:
    """Goes back to a checkpoint. The current state is given up, so it is not recovered first.

    A restore that ends without an answer may have been applied. Other calls are refused until a restore is answered.
    """
    state.check_not_ended()
    backoff = Backoff(state.retry)
    epoch = state.epoch
    unanswered, state.restoring = state.restoring, True
    while True:
        try:
            request = state_pb2.RestoreCheckpointRequest(
                name=state.name, checkpoint_id=checkpoint_id, session_epoch=epoch
            )
            reply: state_pb2.RestoreCheckpointResponse = yield state.rpc("RestoreCheckpoint", request)
            break
        except GdnError as error:
            # If the session does not exist any more, nor does the result of an earlier try.
            unanswered = (unanswered or not error.reason) and error.reason != "SESSION_NOT_FOUND"
            state.restoring = unanswered
            if error.reason != "EPOCH_MISMATCH" and not worth_another_try(error):
                raise
            yield backoff.wait(error)
            state.restoring = True
            if error.reason == "EPOCH_MISMATCH":  # because of a crash, or of a try whose reply was lost
                found = yield from _epoch_of_restored(state)
                if found == epoch:
                    raise  # the server refuses the epoch that it reports
                epoch = found
    promised = state.checkpoints.get(checkpoint_id, {})
    if not checkpoint_id:
        promised = {index: known.durable for index, known in state.layers.items()}
    state.restored(reply.session, checkpoint_id)
    for layer in reply.session.layers:
        want = promised.get(layer.layer, 0)
        if layer.token_count < want:
            raise SessionLostError(
                f"the checkpoint {checkpoint_id!r} of {state.name} has come back with {layer.token_count} tokens of "
                f"layer {layer.layer}, and had {want}: the server's store was set back. The session goes on from there",
                reason="STATE_ROLLED_BACK",
                metadata={"session": state.name, "layer": str(layer.layer), "token_count": str(layer.token_count)},
            )


def keep_prefix(state: SessionState, prefix: session_pb2.PromptPrefix) -> Flow[bool]:
    """Keeps the session's states as those of the prefix."""

    def send() -> Flow[bool]:
        request = prefix_pb2.KeepPrefixRequest(name=state.name, prefix=prefix, session_epoch=state.epoch)
        try:
            reply: prefix_pb2.KeepPrefixResponse = yield state.rpc("KeepPrefix", request)
            return reply.kept
        except FailedPreconditionError as error:
            if error.reason != "PREFIX_MISMATCH":
                raise
            found = yield from described(state)
            if found.epoch == state.epoch:
                raise
        raise of_another_state(state.name, "the state")

    return (yield from uses(state, send))


class StateFile:
    """A state file that arrives piece by piece."""

    def __init__(self, told: Told) -> None:
        self.data = bytearray()
        self._told = told
        self._total = 0

    def add(self, piece: Any) -> None:
        """Adds a piece. Raises DataLossError if it does not follow the pieces before."""
        if piece.offset != len(self.data):
            raise _not_whole(f"a piece begins at byte {piece.offset}, expected {len(self.data)}")
        self.data += piece.data
        self._total = piece.total_bytes
        self._told(len(piece.data))

    def whole(self) -> bytes:
        """Returns the file. Raises DataLossError if a part of it is missing."""
        if not self.data or len(self.data) != self._total:
            raise _not_whole(f"{len(self.data)} of {self._total} bytes came")
        return bytes(self.data)


def _not_whole(what: str) -> DataLossError:
    return DataLossError(f"the state file did not come whole: {what}; ask for it again", reason="INVALID_STATE_FILE")


def file_state(file: bytes) -> tuple[int, dict[int, tuple[int, int]]]:
    """Returns the epoch of a state file's session, and each layer's token count and draft length.

    Raises:
        DataLossError: the bytes are not a state file.

    """
    try:
        size = int.from_bytes(file[:8], "little")
        metadata = json.loads(file[8 : 8 + size])["__metadata__"]
        layers = {
            int(key.removeprefix("layer.")): json.loads(value)
            for key, value in metadata.items()
            if key.startswith("layer.")
        }
        return int(metadata["epoch"]), {
            index: (int(of["token_count"]), int(of.get("draft_length", 0))) for index, of in layers.items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise _not_whole(f"its header cannot be read ({type(error).__name__}: {error})") from error


def export(state: SessionState, told: Told) -> Flow[bytes]:
    """Returns the session's states as a file."""

    def send() -> Flow[bytes]:
        arriving = StateFile(told)
        request = session_pb2.ExportStateRequest(name=state.name, session_epoch=state.epoch)
        yield Download(state.rpc("ExportState", request), arriving.add)
        file = arriving.whole()
        epoch, layers = file_state(file)
        known = {index: (known.count, known.draft_tokens) for index, known in state.layers.items()}
        if epoch != state.epoch or any(layers.get(index, (0, 0)) != of for index, of in known.items()):
            raise of_another_state(state.name, "an exported file")
        return file

    return (yield from uses(state, send))


class SnapshotCheck:
    """Passes on snapshots of the session's present state or a later one."""

    def __init__(self, state: SessionState) -> None:
        self._name, self._epoch = state.name, state.epoch
        self._counts = {index: known.count for index, known in state.layers.items()}

    def __call__(self, snapshot: StateSnapshot) -> StateSnapshot:
        """Returns the snapshot. Raises AbortedError if its state is older."""
        epoch, layers = file_state(snapshot.file)
        found = {index: layers.get(index, (0, 0))[0] for index in self._counts}
        if epoch != self._epoch or any(found[index] < count for index, count in self._counts.items()):
            raise of_another_state(self._name, "a snapshot")
        self._counts = found
        return snapshot


# The check for a watch's snapshots, the first snapshot, and an iterator of the others.
Watched: TypeAlias = tuple[SnapshotCheck, StateSnapshot, Any]


def watch(state: SessionState, every_tokens: int, every: float | None) -> Flow[Watched]:
    """Starts a watch of the session's states."""

    def send() -> Flow[Watched]:
        check = SnapshotCheck(state)
        first, others = yield Watch(watch_request(state.name, every_tokens, every, state.epoch), state.session.affinity)
        return check, check(first), others

    return (yield from uses(state, send))
