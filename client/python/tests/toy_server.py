"""A server in this process, for tests of what a client does when its server fails.

Its sessions, ids, epochs, drafts, checkpoints and reasons are gdn_server's; a layer is a chain of hashes, so that every
output tells of all tokens before it. Faults are asked for by call.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gdn_client
from gdn_client import aio, errors
from gdn_client.aio_connection import Connection as AioConnection
from gdn_client.connection import Connection
from gdn_client.flow import Rpc, Sleep
from gdn_client.proto.gdn.v1 import batch_pb2, info_pb2, prefix_pb2, session_pb2, state_pb2, step_pb2, tensor_pb2
from gdn_client.proto.google.rpc import error_details_pb2, status_pb2
from gdn_client.steps import SentStep

SIZE = 4  # of a token
LAYERS = (0, 2)
MOST_SLEEPS = 60  # of one call: more are a client that tries in vain


def _refuse(kind: type[errors.GdnError], reason: str, session: str = "", **metadata: str) -> errors.GdnError:
    if session:
        metadata["session"] = f"sessions/{session}"
    return kind(f"{reason} {metadata}", reason=reason, metadata=metadata)


@dataclass
class Layer:
    count: int = 0
    state: bytes = b"zero"
    draft: list[bytes] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    prefills: int = 0
    request: tuple[str, bytes] = ("", b"")
    reply: np.ndarray | None = None
    reply_count: int = 0


@dataclass
class Copy:
    layers: dict[int, Layer]
    epoch: int
    accept: tuple[str, bytes] = ("", b"")


@dataclass
class ToySession:
    create: bytes
    session: session_pb2.Session
    layers: dict[int, Layer]
    epoch: int = 1
    accept: tuple[str, bytes] = ("", b"")
    newest: Copy | None = None
    named: dict[str, Copy] = field(default_factory=dict)
    gone: str = ""  # STATE_ROLLED_BACK or STATE_LOST
    forked_by: bytes = b""


class ToyServer:
    """`faults` says what happens to a call of this method; "": nothing.

    "away": it does not come. "lose": its reply is lost. "drop": and stored replies are dropped. "crash": before it.
    "crash after": its reply is lost. "roll back": before it sessions with a durable copy lose their present state.
    "take state": before it those without one do. With "durable" what the call has done is durable.

    A server that does not know Step is of version 0.1.0: it refuses replies of more than `reply_bytes`.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        knows_epochs: bool = True,
        knows_step: bool = True,
        knows_many: bool = True,
        reply_bytes: int = 1 << 24,
        message_bytes: int = 1 << 24,
    ) -> None:
        self.durable, self.knows_epochs, self.knows_step = durable, knows_epochs, knows_step
        self.knows_many = knows_many
        self.reply_bytes, self.message_bytes = reply_bytes, message_bytes
        self.sessions: dict[str, ToySession] = {}
        self.prefixes: dict[bytes, dict[int, Layer]] = {}
        self.faults: Callable[[str], str] = lambda method: ""
        self.calls: list[str] = []
        self.refuses: dict[str, errors.GdnError] = {}
        self.most = 64

    # --- What happens to it.

    def crash(self) -> None:
        for name, one in list(self.sessions.items()):
            if one.newest is None:
                del self.sessions[name]
                continue
            self._install(one, one.newest, one.epoch + 1)
        self.prefixes.clear()

    def lose_states(self, names: Sequence[str] | None = None) -> None:
        """Loses the present state of each session, as a step that fails in its middle does."""
        for name in self.sessions if names is None else names:
            one = self.sessions[name.removeprefix("sessions/")]
            one.gone = "STATE_LOST" if one.newest is None else "STATE_ROLLED_BACK"

    def drop_replies(self) -> None:
        for one in self.sessions.values():
            for layer in one.layers.values():
                layer.reply = None

    def make_durable(self) -> None:
        for one in self.sessions.values():
            if self.durable and not one.gone:
                one.newest = self._copy(one)

    def _install(self, one: ToySession, saved: Copy, epoch: int) -> None:
        again = copy.deepcopy(saved)
        one.layers, one.accept, one.epoch, one.gone = again.layers, again.accept, epoch, ""

    @staticmethod
    def _copy(one: ToySession) -> Copy:
        return Copy(copy.deepcopy(one.layers), one.epoch, one.accept)

    # --- Calls.

    def call(self, rpc: Rpc) -> Any:
        self.calls.append(rpc.method)
        knows = self.knows_step if rpc.method == "Step" else self.knows_many or not rpc.method.endswith("Sessions")
        if not knows:
            raise errors.UnimplementedError("")
        fault = self.faults(rpc.method)
        if fault == "away":
            raise errors.UnavailableError("nobody is there")
        if fault == "crash":
            self.crash()
            raise errors.UnavailableError("the connection is gone")
        if fault in ("roll back", "take state"):
            self.lose_states([n for n, one in self.sessions.items() if (one.newest is None) == (fault == "take state")])
        request = rpc.request.parsed() if isinstance(rpc.request, SentStep) else copy.deepcopy(rpc.request)
        reply = getattr(self, f"_{rpc.method}")(request)
        if "durable" in fault:
            self.make_durable()
        if "crash after" in fault:
            self.crash()
        if "drop" in fault:
            self.drop_replies()
        if "lose" in fault.split() or "drop" in fault or "crash after" in fault:
            raise errors.UnavailableError("the connection is gone")
        return reply

    def _find(self, name: str, request: Any = None, *, alive: bool = True) -> ToySession:
        one = self.sessions.get(name.removeprefix("sessions/"))
        if one is None:
            raise _refuse(errors.NotFoundError, "SESSION_NOT_FOUND")
        if one.gone and alive:
            raise _refuse(errors.DataLossError, one.gone, name.removeprefix("sessions/"))
        if request is not None and self.knows_epochs and request.HasField("session_epoch"):
            self._check_epoch(one, request.session_epoch)
        return one

    @staticmethod
    def _check_epoch(one: ToySession, epoch: int) -> None:
        if epoch != one.epoch:
            raise _refuse(errors.AbortedError, "EPOCH_MISMATCH", one.session.name.removeprefix("sessions/"))

    def _described(self, one: ToySession) -> session_pb2.Session:
        session = session_pb2.Session()
        session.CopyFrom(one.session)
        session.epoch = one.epoch
        session.layers.extend(self._counts(one))
        if one.newest is not None:
            session.durable_time.seconds = 1
        return session

    @staticmethod
    def _counts(one: ToySession) -> Iterator[session_pb2.LayerState]:
        for index, layer in one.layers.items():
            durable = 0 if one.newest is None else one.newest.layers[index].count
            yield session_pb2.LayerState(
                layer=index, token_count=layer.count, draft_length=len(layer.draft), durable_token_count=durable
            )

    def _GetServerInfo(self, _: Any) -> Any:  # noqa: N802
        limits = info_pb2.Limits(
            max_message_bytes=self.message_bytes,
            max_stored_reply_bytes=self.reply_bytes,
            max_draft=16,
            max_batch=self.most,
        )
        return info_pb2.GetServerInfoResponse(limits=limits)

    def _CreateSession(self, request: session_pb2.CreateSessionRequest) -> Any:  # noqa: N802
        if request.snapshot:
            raise errors.NotFoundError("no such snapshot", reason="SNAPSHOT_NOT_FOUND")
        name, made = request.session_id, request.SerializeToString(deterministic=True)
        if name in self.sessions:
            if self.sessions[name].create != made:
                raise _refuse(errors.AlreadyExistsError, "SESSION_EXISTS", name)
            return session_pb2.CreateSessionResponse(session=self._described(self.sessions[name]))
        session = session_pb2.Session(name=f"sessions/{name}", model=request.model, affinity=request.affinity or name)
        layers = {index: Layer() for index in LAYERS}
        key, segments = b"", list(request.prefix.segments)
        for end in range(len(segments), 0, -1):
            key = b"".join(one.SerializeToString() for one in segments[:end])
            if key in self.prefixes:
                layers = copy.deepcopy(self.prefixes[key])
                session.prefix_tokens = sum(one.tokens for one in segments[:end])
                break
        self.sessions[name] = ToySession(made, session, layers)
        return session_pb2.CreateSessionResponse(session=self._described(self.sessions[name]))

    def _GetSession(self, request: session_pb2.GetSessionRequest) -> Any:  # noqa: N802
        return session_pb2.GetSessionResponse(session=self._described(self._find(request.name, alive=False)))

    def _DeleteSession(self, request: session_pb2.DeleteSessionRequest) -> Any:  # noqa: N802
        self._find(request.name, alive=False)
        del self.sessions[request.name.removeprefix("sessions/")]
        return session_pb2.DeleteSessionResponse()

    def _each(self, entries: Any, method: str, take: Callable[[Any, Any], None], results: Any) -> None:
        """Answers each entry by itself. `refuses` names sessions whose entries fail for now, with their errors."""
        assert 1 <= len(entries) <= self.most
        for entry in entries:
            result, named = results.add(), getattr(entry, "session_id", "") or getattr(entry, "name", entry)
            try:
                if (error := self.refuses.pop(named.removeprefix("sessions/"), None)) is not None:
                    raise error
                take(result, getattr(self, f"_{method}")(entry))
            except errors.GdnError as error:
                self._tell(error, getattr(result, "error", result))

    def _CreateSessions(self, request: batch_pb2.CreateSessionsRequest) -> Any:  # noqa: N802
        reply = batch_pb2.CreateSessionsResponse()
        self._each(request.requests, "CreateSession", lambda to, made: to.session.CopyFrom(made.session), reply.results)
        return reply

    def _DeleteSessions(self, request: batch_pb2.DeleteSessionsRequest) -> Any:  # noqa: N802
        reply = batch_pb2.DeleteSessionsResponse()
        assert len(set(request.names)) == len(request.names)
        self._each(
            [session_pb2.DeleteSessionRequest(name=name) for name in request.names],
            *("DeleteSession", lambda to, made: None, reply.statuses),
        )
        return reply

    def _ForkSessions(self, request: batch_pb2.ForkSessionsRequest) -> Any:  # noqa: N802
        reply = batch_pb2.ForkSessionsResponse()
        assert sum(len(entry.session_ids) for entry in request.requests) <= self.most
        self._each(request.requests, "ForkSession", lambda to, made: to.sessions.extend(made.sessions), reply.results)
        return reply

    def _ResetSessions(self, request: batch_pb2.ResetSessionsRequest) -> Any:  # noqa: N802
        reply = batch_pb2.ResetSessionsResponse()
        self._each(request.resets, "reset", lambda to, made: to.session.CopyFrom(made), reply.results)
        return reply

    def _reset(self, entry: batch_pb2.SessionReset) -> session_pb2.Session:
        one = self._find(entry.name, entry)
        one.layers, one.accept = {index: Layer() for index in LAYERS}, ("", b"")
        one.session.prefix_tokens = 0
        if one.newest is not None:
            one.newest = self._copy(one)
        return self._described(one)

    def _Prefill(self, request: step_pb2.PrefillRequest) -> Any:  # noqa: N802
        tensor = request.hidden_states.hidden_states
        tokens = [row.tobytes() for row in np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)]
        found = {"found": str(len(tensor.data)), "expected": str(self.reply_bytes)}
        if not self.knows_step and len(tensor.data) > self.reply_bytes:
            raise _refuse(errors.InvalidArgumentError, "REPLY_TOO_LARGE_TO_STORE", **found)
        layer, output, again = self._check(request.session, request.layer, request, tokens, request.session_epoch, 0)
        if not again:
            output = self._step(layer, tokens)
            layer.prefills += 1
        self._keep(layer, request, tokens, output)
        one = self._find(request.session)
        durable = 0 if one.newest is None else one.newest.layers[request.layer].count
        return step_pb2.PrefillResponse(
            output=self._tensor(output), token_count=layer.count, durable_token_count=durable
        )

    def _Decode(self, request: step_pb2.DecodeRequest) -> Any:  # noqa: N802
        tensor = request.hidden_states.hidden_states
        rows = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        checked = []
        for row, name in enumerate(request.sessions):
            length = request.lengths[row] if request.lengths else rows.shape[1]
            tokens = [token.tobytes() for token in rows[row, :length]]
            checked.append(
                (*self._check(name, request.layer, request, tokens, request.session_epochs[row], row), tokens)
            )
        reply, whole = step_pb2.DecodeResponse(), np.zeros(rows.shape, np.float32)
        for row, (layer, stored, again, tokens) in enumerate(checked):
            output = stored
            if not again and request.draft:
                width = rows.shape[1]
                parents = list(request.draft_parents)
                parents = parents[row * width :][:width] if len(parents) > width else parents
                layer.draft, layer.parents = tokens, parents[: len(tokens)] or list(range(-1, len(tokens) - 1))
                output = self._tree(layer)
            elif not again:
                output = self._step(layer, tokens)
            self._keep(layer, request, tokens, output)
            whole[row, : len(tokens)] = output
            one = self._find(request.sessions[row])
            reply.token_counts.append(layer.count)
            reply.durable_token_counts.append(0 if one.newest is None else one.newest.layers[request.layer].count)
        reply.output.CopyFrom(self._tensor(whole))
        return reply

    def _Step(self, request: step_pb2.StepRequest) -> Any:  # noqa: N802
        tensor, begin, checked = request.hidden_states.hidden_states, 0, []
        packed = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
        assert len(packed) == sum(row.token_count for row in request.rows)
        for row in request.rows:
            tokens = [token.tobytes() for token in packed[begin : begin + row.token_count]]
            begin += row.token_count
            try:
                checked.append((row, tokens, *self._check_row(request, row, tokens)))
            except errors.GdnError as error:
                if not request.partial_ok:
                    raise
                checked.append((row, tokens, None, error, False))
        reply, outputs = step_pb2.StepResponse(), []
        for row, tokens, layer, output, again in checked:
            status = status_pb2.Status()
            if layer is None:
                self._tell(output, status)
                reply.token_counts.append(0)
                reply.durable_token_counts.append(0)
                outputs.append(np.zeros((len(tokens), SIZE), np.float32))
            else:
                outputs.append(output if again else self._apply_row(layer, row, tokens))
                layer.request, layer.reply = (request.request_id, self._row_payload(request, row, tokens)), outputs[-1]
                if not again:
                    layer.reply_count = layer.count
                one = self._find(row.session)
                reply.token_counts.append(layer.reply_count)
                reply.durable_token_counts.append(0 if one.newest is None else one.newest.layers[request.layer].count)
            if request.partial_ok:
                reply.row_statuses.append(status)
        if any(layer is not None for _, _, layer, _, _ in checked):
            reply.output.CopyFrom(self._tensor(np.concatenate(outputs)))
        return reply

    @staticmethod
    def _tell(error: errors.GdnError, status: status_pb2.Status) -> None:
        status.code, status.message = error.code.value[0], error.message
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, metadata=error.metadata))
        if error.retry_after is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.nanos = int(1e9 * error.retry_after)
            status.details.add().Pack(retry)

    @staticmethod
    def _row_payload(request: step_pb2.StepRequest, row: step_pb2.StepRow, tokens: list[bytes]) -> bytes:
        accept = row.accept_before.SerializeToString() if row.HasField("accept_before") else None
        return repr(("Step", request.layer, row.kind, list(row.draft_parents), accept, tokens)).encode()

    def _check_row(
        self, request: step_pb2.StepRequest, row: step_pb2.StepRow, tokens: list[bytes]
    ) -> tuple[Layer, Any, bool]:
        """In the order of session_rules/session_rules.cc."""
        one, short = self._find(row.session), row.session.removeprefix("sessions/")
        layer = one.layers[request.layer]
        if request.request_id and layer.request[0] == request.request_id:
            if layer.request[1] != self._row_payload(request, row, tokens):
                raise _refuse(errors.InvalidArgumentError, "REQUEST_ID_REUSED", short)
            if layer.reply is None:
                raise _refuse(errors.AbortedError, "REPLY_DROPPED", short)
            return layer, layer.reply, True
        self._check_epoch(one, row.session_epoch)
        accepts = row.HasField("accept_before")
        path, count = self._path(row) if accepts else [], layer.count
        if accepts and layer.draft:
            follows = [-1, *path][: len(path)]
            if len(path) > len(layer.draft):
                raise _refuse(errors.InvalidArgumentError, "TOO_MANY_TOKENS", short)
            if any(layer.parents[token] != parent for token, parent in zip(path, follows, strict=True)):
                raise _refuse(errors.InvalidArgumentError, "VALUE_OUT_OF_RANGE", short)
            count += len(path)
        if row.expected_token_count != count:
            raise _refuse(errors.AbortedError, "TOKEN_COUNT_MISMATCH", short, token_count=str(count))
        if layer.draft and not accepts:
            raise _refuse(errors.FailedPreconditionError, "DRAFT_PENDING", short)
        if path and not layer.draft:
            raise _refuse(errors.InvalidArgumentError, "TOO_MANY_TOKENS", short)
        if any(np.isnan(np.frombuffer(token, np.float32)).any() for token in tokens):
            raise _refuse(errors.InvalidArgumentError, "NON_FINITE_INPUT", short)
        return layer, None, False

    @staticmethod
    def _path(row: step_pb2.StepRow) -> list[int]:
        return list(row.accept_before.path) or list(range(row.accept_before.accepted_tokens))

    def _apply_row(self, layer: Layer, row: step_pb2.StepRow, tokens: list[bytes]) -> np.ndarray:
        if layer.draft:
            self._step(layer, [layer.draft[token] for token in self._path(row)])
            layer.draft, layer.parents = [], []
        if row.kind == step_pb2.STEP_KIND_DRAFT:
            layer.draft, layer.parents = tokens, list(row.draft_parents) or list(range(-1, len(tokens) - 1))
            return self._tree(layer)
        layer.prefills += row.kind == step_pb2.STEP_KIND_PREFILL
        return self._step(layer, tokens)

    def _check(
        self, name: str, index: int, request: Any, tokens: list[bytes], epoch: int, row: int
    ) -> tuple[Layer, Any, bool]:
        one, short = self._find(name), name.removeprefix("sessions/")
        layer = one.layers[index]
        if request.request_id and layer.request[0] == request.request_id:
            if layer.request[1] != self._payload(request, tokens):
                raise _refuse(errors.InvalidArgumentError, "REQUEST_ID_REUSED", short)
            if layer.reply is None:
                raise _refuse(errors.AbortedError, "REPLY_DROPPED", short)
            return layer, layer.reply, True
        self._check_epoch(one, epoch)
        counts = request.expected_token_counts if isinstance(request, step_pb2.DecodeRequest) else None
        expected = request.expected_token_count if counts is None else counts[row]
        if expected != layer.count:
            raise _refuse(errors.AbortedError, "TOKEN_COUNT_MISMATCH", short, token_count=str(layer.count))
        if layer.draft:
            raise _refuse(errors.FailedPreconditionError, "DRAFT_PENDING", short)
        return layer, None, False

    @staticmethod
    def _payload(request: Any, tokens: list[bytes]) -> bytes:
        return repr((type(request).__name__, request.layer, getattr(request, "draft", False), tokens)).encode()

    def _keep(self, layer: Layer, request: Any, tokens: list[bytes], output: Any) -> None:
        layer.request, layer.reply = (request.request_id, self._payload(request, tokens)), output

    @staticmethod
    def _tensor(output: np.ndarray) -> tensor_pb2.Tensor:
        return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=output.shape, data=output.tobytes())

    @staticmethod
    def _next(state: bytes, token: bytes) -> bytes:
        return hashlib.blake2b(state + token, digest_size=4 * SIZE).digest()

    @staticmethod
    def _output(states: list[bytes]) -> np.ndarray:
        numbers = np.frombuffer(b"".join(states), np.uint32).reshape(len(states), SIZE)
        return (numbers >> 8).astype(np.float32)

    def _step(self, layer: Layer, tokens: list[bytes]) -> np.ndarray:
        states = []
        for token in tokens:
            layer.state = self._next(layer.state, token)
            states.append(layer.state)
        layer.count += len(tokens)
        return self._output(states)

    def _tree(self, layer: Layer) -> np.ndarray:
        states: list[bytes] = []
        for token, parent in zip(layer.draft, layer.parents, strict=True):
            states.append(self._next(layer.state if parent < 0 else states[parent], token))
        return self._output(states)

    def _AcceptTokens(self, request: state_pb2.AcceptTokensRequest) -> Any:  # noqa: N802
        rows = []
        for row in request.acceptances:
            one = self._find(row.session)
            payload = repr((row.accepted_tokens, list(row.path))).encode()
            again = request.request_id != "" and one.accept[0] == request.request_id and one.accept[1] == payload
            if not again and row.HasField("session_epoch"):
                self._check_epoch(one, row.session_epoch)
            rows.append((one, row, payload, again))
        reply = state_pb2.AcceptTokensResponse()
        for one, row, payload, again in rows:
            tokens = row.accepted_tokens or len(row.path)
            if not again and tokens > 0 and not any(layer.draft for layer in one.layers.values()):
                raise _refuse(errors.InvalidArgumentError, "TOO_MANY_TOKENS", one.session.name.split("/")[1])
            for layer in one.layers.values():
                if again or not layer.draft:
                    continue
                path = list(row.path) or list(range(row.accepted_tokens))
                if len(path) > len(layer.draft):
                    raise _refuse(errors.InvalidArgumentError, "TOO_MANY_TOKENS")
                self._step(layer, [layer.draft[token] for token in path])
                layer.draft, layer.parents = [], []
            one.accept = (request.request_id, payload)
            reply.counts.add(session=row.session, layers=self._counts(one))
        return reply

    def _ForkSession(self, request: state_pb2.ForkSessionRequest) -> Any:  # noqa: N802
        same = request.SerializeToString(deterministic=True)
        if all(self._made_by(name, request) for name in request.session_ids):
            found = [self._described(self.sessions[name]) for name in request.session_ids]
            return state_pb2.ForkSessionResponse(sessions=found)
        one = self._find(request.name, request)
        for name in request.session_ids:
            if name in self.sessions:
                raise _refuse(errors.AlreadyExistsError, "SESSION_EXISTS", name)
        children = []
        for name in request.session_ids:
            session = session_pb2.Session()
            session.CopyFrom(one.session)
            session.name, session.prefix_tokens = f"sessions/{name}", 0
            layers = copy.deepcopy(one.layers)
            for layer in layers.values():
                layer.request, layer.reply = ("", b""), None
            self.sessions[name] = ToySession(b"", session, layers, forked_by=same)
            children.append(self._described(self.sessions[name]))
        return state_pb2.ForkSessionResponse(sessions=children)

    def _made_by(self, name: str, request: state_pb2.ForkSessionRequest) -> bool:
        if name not in self.sessions or not self.sessions[name].forked_by:
            return False
        made = state_pb2.ForkSessionRequest.FromString(self.sessions[name].forked_by)
        made.ClearField("session_epoch")
        other = state_pb2.ForkSessionRequest()
        other.CopyFrom(request)
        other.ClearField("session_epoch")
        return made == other

    def _CheckpointSession(self, request: state_pb2.CheckpointSessionRequest) -> Any:  # noqa: N802
        one = self._find(request.name, request)
        self._check_durable()
        if request.checkpoint_id:
            one.named[request.checkpoint_id] = self._copy(one)
        else:
            one.newest = self._copy(one)
        made = state_pb2.Checkpoint(checkpoint_id=request.checkpoint_id, epoch=one.epoch, layers=self._counts(one))
        return state_pb2.CheckpointSessionResponse(checkpoint=made)

    def _check_durable(self) -> None:
        if not self.durable:
            raise _refuse(errors.FailedPreconditionError, "NO_DURABLE_TIER")

    def _RestoreCheckpoint(self, request: state_pb2.RestoreCheckpointRequest) -> Any:  # noqa: N802
        one = self._find(request.name, request, alive=False)
        self._check_durable()
        saved = one.named.get(request.checkpoint_id) if request.checkpoint_id else one.newest
        if saved is None:
            raise _refuse(errors.NotFoundError, "CHECKPOINT_NOT_FOUND", checkpoint=request.checkpoint_id)
        self._install(one, saved, one.epoch + 1)
        one.newest = self._copy(one)
        return state_pb2.RestoreCheckpointResponse(session=self._described(one))

    def _ListCheckpoints(self, request: state_pb2.ListCheckpointsRequest) -> Any:  # noqa: N802
        one = self._find(request.name, alive=False)
        self._check_durable()
        return state_pb2.ListCheckpointsResponse(
            checkpoints=[state_pb2.Checkpoint(checkpoint_id=name) for name in one.named]
        )

    def _KeepPrefix(self, request: prefix_pb2.KeepPrefixRequest) -> Any:  # noqa: N802
        one = self._find(request.name, request)
        tokens = sum(segment.tokens for segment in request.prefix.segments)
        if any(layer.count != tokens for layer in one.layers.values()):
            raise _refuse(errors.FailedPreconditionError, "PREFIX_MISMATCH")
        key = b"".join(segment.SerializeToString() for segment in request.prefix.segments)
        self.prefixes[key] = copy.deepcopy(one.layers)
        return prefix_pb2.KeepPrefixResponse(kept=True, tokens=tokens)

    def file_of(self, one: ToySession) -> bytes:
        metadata = {"epoch": str(one.epoch), "states": json.dumps({i: of.state.hex() for i, of in one.layers.items()})}
        for index, layer in one.layers.items():
            if layer.count > 0 or layer.draft:
                metadata[f"layer.{index}"] = json.dumps({"token_count": layer.count, "draft_length": len(layer.draft)})
        header = json.dumps({"__metadata__": metadata}).encode()
        return len(header).to_bytes(8, "little") + header

    def _ExportState(self, request: session_pb2.ExportStateRequest) -> Any:  # noqa: N802
        file = self.file_of(self._find(request.name, request))
        half = len(file) // 2
        return [
            session_pb2.ExportStateResponse(data=file[:half], offset=0, total_bytes=len(file)),
            session_pb2.ExportStateResponse(data=file[half:], offset=half, total_bytes=len(file)),
        ]

    def import_file(self, target: session_pb2.ImportStateRequest.Target, file: bytes) -> Any:
        metadata = json.loads(file[8:])["__metadata__"]
        states = json.loads(metadata["states"])
        session = session_pb2.Session(name=f"sessions/{target.session_id}", model=target.model)
        session.affinity = target.affinity or target.session_id
        layers = {}
        for index in LAYERS:
            count = json.loads(metadata.get(f"layer.{index}", '{"token_count": 0}'))["token_count"]
            layers[index] = Layer(count=count, state=bytes.fromhex(states[str(index)]))
        self.sessions[target.session_id] = ToySession(b"", session, layers)
        return session_pb2.ImportStateResponse(session=self._described(self.sessions[target.session_id]))

    def _WatchState(self, request: state_pb2.WatchStateRequest) -> Any:  # noqa: N802
        """One snapshot."""
        file = self.file_of(self._find(request.name, request))
        return [state_pb2.WatchStateResponse(data=file, offset=0, total_bytes=len(file))]


class ToyStream:
    """In place of a MessageStream: the server has taken what was sent."""

    def __init__(self, server: ToyServer, method: str) -> None:
        self._server, self._method = server, method
        self._replies: deque[Any] = deque()

    def send(self, message: Any) -> None:
        method = self._method.removeprefix("Stream")
        rpc = Rpc(method, message.segment if method == "Prefill" else message.step)
        kind = getattr(step_pb2, f"{self._method}Response")
        if self._replies and isinstance(self._replies[-1], errors.GdnError):
            return
        try:
            self._replies.append(kind(result=self._server.call(rpc)))
        except (errors.UnavailableError, errors.UnimplementedError) as error:
            self._replies.append(error)
        except errors.GdnError as error:
            failed = kind()
            failed.status.code, failed.status.message = error.code.value[0], error.message
            self._replies.append(failed)

    def receive(self) -> Any:
        reply = self._replies.popleft()
        if isinstance(reply, errors.GdnError):
            self._replies.appendleft(reply)
            raise reply
        return reply

    def close(self) -> None:
        pass


class ToyConnection(Connection):
    def __init__(self, server: ToyServer) -> None:
        self.target, self._server, self._sleeps = "toy", server, 0

    def call(self, rpc: Rpc) -> Any:
        return self._server.call(rpc)

    def _replies(self, rpc: Rpc) -> Any:
        return contextlib.nullcontext(self._server.call(rpc))

    def open_stream(self, name: str, affinity: str, timeout: float | None) -> Any:
        return ToyStream(self._server, name)

    def send_all(self, name: str, requests: Iterator[Any]) -> Any:
        return self._server.import_file(next(requests).target, b"".join(one.data for one in requests))

    def run(self, flow: Any) -> Any:
        self._sleeps = 0
        return super().run(flow)

    def _do(self, wanted: Any) -> Any:
        if not isinstance(wanted, Sleep):
            return super()._do(wanted)
        self._sleeps += 1
        if self._sleeps > MOST_SLEEPS:
            raise AssertionError(f"it tries in vain: {self._server.calls[-12:]}")
        return None

    def close(self) -> None:
        pass


class ToyCall:
    """In place of grpc.aio's."""

    def __init__(self, replies: list[Any]) -> None:
        self._replies = iter(replies)

    def __aiter__(self) -> ToyCall:
        return self

    async def __anext__(self) -> Any:
        for reply in self._replies:
            return reply
        raise StopAsyncIteration

    def cancel(self) -> None:
        pass


class ToyAioStream:
    def __init__(self, stream: ToyStream) -> None:
        self._stream = stream

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        self._stream.send(message)

    async def receive(self) -> Any:
        await asyncio.sleep(0)
        return self._stream.receive()

    def close(self) -> None:
        pass


class ToyAioConnection(AioConnection):
    def __init__(self, server: ToyServer) -> None:
        self.target, self._server, self._sleeps = "toy", server, 0

    async def call(self, rpc: Rpc) -> Any:
        await asyncio.sleep(0)
        return self._server.call(rpc)

    async def run(self, flow: Any) -> Any:
        sleeps, self._sleeps = self._sleeps, 0
        try:
            return await super().run(flow)
        finally:
            self._sleeps = sleeps

    async def _do(self, wanted: Any) -> Any:
        if not isinstance(wanted, Sleep):
            return await super()._do(wanted)
        self._sleeps += 1
        if self._sleeps > MOST_SLEEPS:
            raise AssertionError(f"it tries in vain: {self._server.calls[-12:]}")
        return await asyncio.sleep(0)

    def _replies(self, rpc: Rpc) -> Any:
        return contextlib.nullcontext(ToyCall(self._server.call(rpc)))

    async def send_all(self, name: str, requests: Iterator[Any]) -> Any:
        return self._server.import_file(next(requests).target, b"".join(one.data for one in requests))

    def open_stream(self, name: str, affinity: str, timeout: float | None) -> Any:
        return ToyAioStream(ToyStream(self._server, name))

    async def close(self) -> None:
        pass


def client_of(server: ToyServer, **options: Any) -> gdn_client.Client:
    client = gdn_client.Client("toy", **options)
    client.connection.close()
    client.connection = ToyConnection(server)
    return client


def aio_client_of(server: ToyServer) -> aio.Client:
    client = aio.Client("toy")
    client.connection = ToyAioConnection(server)
    return client


def tokens(*lead: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*lead, SIZE)).astype(np.float32)
