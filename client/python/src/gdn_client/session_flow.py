"""What a session does, whoever carries the calls out; steps and their recovery are `recovery`'s.

Thread safety: a SessionState and its flows are for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdn_client.errors import GdnError
from gdn_client.flow import Backoff, Flow, Retry, Rpc, exact, worth_another_try
from gdn_client.inputs import Input, tensors_of
from gdn_client.proto.gdn.v1 import session_pb2, state_pb2, step_pb2
from gdn_client.recovery import ASTRAY, delete, recover, take_step
from gdn_client.session_state import SessionState, StepOptions, duration, new_id
from gdn_client.shared_memory import Region, SharedMemory, StepMemory
from gdn_client.steps import KeptStep, cut, fill_input, leading, output_elements, path_tokens
from gdn_client.tensors import ELEMENT_BYTES, Array, dtype_code, element_name, to_tensor

__all__ = [
    "DecodeStep",
    "PrefillStep",
    "accept",
    "checkpoint",
    "create",
    "delete",
    "fork",
    "new_id",
    "restore",
    "segments",
    "tokens_a_call",
]


def create(
    request: session_pb2.CreateSessionRequest, retry: Retry, keep_bytes: int, memory: SharedMemory
) -> Flow[SessionState]:
    """A new session; the request has an id, so that it may be sent again."""
    reply = yield from exact(Rpc("CreateSession", request, None, request.affinity or request.session_id), retry)
    _begin_no_further(request, reply.session.prefix_tokens)
    return SessionState(reply.session, retry, request, keep_bytes, memory=memory)


def _begin_no_further(request: session_pb2.CreateSessionRequest, tokens: int) -> None:
    """What is behind the prefix is kept here; made anew, the session must not begin further on."""
    while request.prefix.segments and sum(segment.tokens for segment in request.prefix.segments) > tokens:
        del request.prefix.segments[-1]
    if not request.prefix.segments:
        request.ClearField("prefix")


def _output_bytes(given: Input, options: StepOptions) -> int:
    first = next(iter(tensors_of(given).values()))
    return output_elements(given) * ELEMENT_BYTES[options.output_dtype or dtype_code(element_name(first))]


class PrefillStep:
    """One prefill of the tokens `[T, ..]`: its request, and what its reply changes here."""

    def __init__(self, state: SessionState, layer: int, given: Input, options: StepOptions) -> None:
        self.states, self.layer, self.given, self.options = [state], layer, given, options
        self.tokens = [leading(given)[0]]
        self.request_id = new_id()
        self.request = step_pb2.PrefillRequest(
            layer=layer, output_dtype=options.output_dtype, allow_non_finite=options.allow_non_finite
        )

    def make(self, ahead: Sequence[int] | None = None) -> step_pb2.PrefillRequest:
        """The request as the session is now, or will be once it has taken the tokens that are `ahead`."""
        request, state = self.request, self.states[0]
        request.session, request.request_id = state.name, self.request_id
        request.session_epoch = state.epoch
        request.expected_token_count = state.layer(self.layer).count + sum(ahead or ())
        return request

    def taken(self, reply: step_pb2.PrefillResponse, memory: StepMemory) -> Array:
        """The output; the session has moved."""
        state, before = self.states[0], self.states[0].layer(self.layer).count
        if state.keep_bytes > 0:
            memory.to_message()
            kept = KeptStep(before, reply.token_count - before, self.request)
            state.note(self.layer, kept, False, reply.durable_token_count)
        else:
            state.layer(self.layer).count = reply.token_count
        return memory.array_of(reply.output, next(iter(tensors_of(self.given).values())))

    def flow(self, timeout: float | None, region: Region | None = None) -> Flow[Array]:
        """Takes it in a call of its own, which may have been tried in a stream before."""
        with StepMemory(region, self.request) as memory:
            fill_input(self.request, self.given, memory.encode)
            memory.place_output(_output_bytes(self.given, self.options))
            reply = yield from take_step(
                self.states, self.layer, self.tokens, False, self.make, "Prefill", timeout, memory
            )
            return self.taken(reply, memory)


class DecodeStep:
    """One decode of `[B, T, ..]`, of a row a session: its request, and what its reply changes here."""

    def __init__(self, states: Sequence[SessionState], layer: int, given: Input, options: StepOptions) -> None:
        self.states, self.layer, self.given, self.options = states, layer, given, options
        self.tokens = list(options.lengths or [leading(given)[1]] * len(states))
        self.request_id = new_id()
        self.request = step_pb2.DecodeRequest(
            layer=layer, output_dtype=options.output_dtype, allow_non_finite=options.allow_non_finite
        )
        self.request.draft = options.draft
        self.request.lengths.extend(options.lengths or ())
        self.request.draft_parents.extend(options.parents)

    def make(self, ahead: Sequence[int] | None = None) -> step_pb2.DecodeRequest:
        """The request as the sessions are now, or will be once each has taken the tokens that are `ahead` of it."""
        request = self.request
        request.request_id = self.request_id
        for rows in (request.sessions, request.session_epochs, request.expected_token_counts):
            del rows[:]
        for state, tokens in zip(self.states, ahead or [0] * len(self.states), strict=True):
            request.sessions.append(state.name)
            request.session_epochs.append(state.epoch)
            request.expected_token_counts.append(state.layer(self.layer).count + tokens)
        return request

    def taken(self, reply: step_pb2.DecodeResponse, memory: StepMemory) -> Array:
        """The output; the sessions have moved."""
        output = memory.array_of(reply.output, next(iter(tensors_of(self.given).values())))
        size = 0
        if any(state.keep_bytes > 0 for state in self.states):
            memory.to_message()  # the request is kept, the region's parts are not
            size = self.request.ByteSize() // len(self.states)
        for row, state in enumerate(self.states):
            before = state.layer(self.layer).count
            if state.keep_bytes > 0:
                kept = KeptStep(before, self.tokens[row], self.request, row, size)
                state.note(self.layer, kept, self.options.draft, reply.durable_token_counts[row])
            elif not self.options.draft:
                state.layer(self.layer).count = reply.token_counts[row]
        return output

    def flow(self, timeout: float | None, region: Region | None = None) -> Flow[Array]:
        """Takes it in a call of its own, which may have been tried in a stream before."""
        with StepMemory(region, self.request) as memory:
            fill_input(self.request, self.given, memory.encode)
            memory.place_output(_output_bytes(self.given, self.options))
            states, draft = self.states, self.options.draft
            reply = yield from take_step(states, self.layer, self.tokens, draft, self.make, "Decode", timeout, memory)
            return self.taken(reply, memory)


Accepted = int | Sequence[int]  # so many of a draft's first tokens, or those of a path


def accept(states: Sequence[SessionState], accepted: Sequence[Accepted], request_id: str | None = None) -> Flow[None]:
    """Tokens of session i's drafts become part of it, by `accepted[i]`; the others never were.

    With a `request_id` the same call may be made again that had no answer.
    """
    request_id = request_id or new_id()
    backoff = Backoff(states[0].retry)
    while True:
        request = state_pb2.AcceptTokensRequest(request_id=request_id)
        for state, tokens in zip(states, accepted, strict=True):
            row = request.acceptances.add(session=state.name, session_epoch=state.epoch)
            if isinstance(tokens, Sequence):
                row.path.extend(tokens)
            else:
                row.accepted_tokens = tokens
        try:
            reply = yield Rpc("AcceptTokens", request, None, states[0].session.affinity)
            break
        except GdnError as error:
            astray = error.reason in ASTRAY and any(state.keep_bytes > 0 for state in states)
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
            count = len(tokens) if isinstance(tokens, Sequence) else tokens
            if draft is None or count == 0:
                continue
            assert isinstance(draft.request, step_pb2.DecodeRequest)
            path = tokens if isinstance(tokens, Sequence) else range(tokens)
            layer.add(KeptStep(draft.before, count, path_tokens(draft.request, path)))
            state.kept_bytes += layer.kept[-1].bytes
        for counted in counts.layers:
            state.layer(counted.layer).count = counted.token_count


def fork(state: SessionState, ids: Sequence[str], idle_ttl: float | None) -> Flow[list[SessionState]]:
    """New sessions that go on from here."""
    request = state_pb2.ForkSessionRequest(name=state.name, session_ids=ids, idle_ttl=duration(idle_ttl))
    reply = yield from exact(state.rpc("ForkSession", request), state.retry)
    # Children can be replayed from where they begin, if their own beginning is durable; they cannot be made anew.
    return [
        SessionState(session, state.retry, None, state.keep_bytes, memory=state.memory) for session in reply.sessions
    ]


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


def tokens_a_call(given: Input, max_message_bytes: int, max_reply_bytes: int) -> int:
    """The most tokens of such an input that fit a message, and whose output the server keeps for a retry."""
    tokens = leading(given)[0]
    whole = step_pb2.PrefillRequest()
    fill_input(whole, cut(given, 0, min(1, tokens)), to_tensor)
    in_bytes = max(1, whole.ByteSize())
    out_bytes = 4 * output_elements(cut(given, 0, 1)) + 64 if tokens > 0 else 1  # float32 and the tensor's shape
    return max(1, min((max_message_bytes - (64 << 10)) // in_bytes, max_reply_bytes // out_bytes))


def segments(given: Input, max_message_bytes: int, max_reply_bytes: int) -> list[Input]:
    """A prompt in such parts."""
    tokens = leading(given)[0]
    room = tokens_a_call(given, max_message_bytes, max_reply_bytes)
    return [cut(given, begin, min(begin + room, tokens)) for begin in range(0, max(tokens, 1), room)]
