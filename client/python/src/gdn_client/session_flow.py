"""The calls that change a session: creation, steps and acceptances of drafts. `calls` retries them.

Thread safety: a SessionState and its flows are for one thread at a time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gdn_client.calls import answered
from gdn_client.errors import GdnError, InternalError
from gdn_client.flow import Flow, Retry, Rpc, exact
from gdn_client.inputs import Input, tensors_of
from gdn_client.proto.gdn.v1 import session_pb2, state_pb2, step_pb2
from gdn_client.session_state import InFlight, RequestId, SessionState, StepOptions
from gdn_client.shared_memory import Region, SharedMemory, StepMemory
from gdn_client.steps import KeptStep, cut, fill_input, leading, name_sessions, output_elements, path_tokens
from gdn_client.tensors import ELEMENT_BYTES, Array, dtype_code, element_name, host_array, to_tensor


def create(
    request: session_pb2.CreateSessionRequest, retry: Retry, keep_bytes: int, memory: SharedMemory
) -> Flow[SessionState]:
    """Creates a session. The request must name an id, so that it can be repeated."""
    reply = yield from exact(Rpc("CreateSession", request, None, request.affinity or request.session_id), retry)
    _begin_no_further(request, reply.session.prefix_tokens)
    return SessionState(reply.session, retry, request, keep_bytes, start=reply.session.prefix_tokens, memory=memory)


def _begin_no_further(request: session_pb2.CreateSessionRequest, tokens: int) -> None:
    """Drops the segments behind the prefix that the server knew.

    The client keeps the inputs behind this prefix. When it recreates the session, the session must not start later.
    """
    while request.prefix.segments and sum(segment.tokens for segment in request.prefix.segments) > tokens:
        del request.prefix.segments[-1]
    if not request.prefix.segments:
        request.ClearField("prefix")


def output_bytes(given: Input, options: StepOptions) -> int:
    """Returns the size of the step's output."""
    first = next(iter(tensors_of(given).values()))
    return output_elements(given) * ELEMENT_BYTES[options.output_dtype or dtype_code(element_name(first))]


def _digest_of(method: str, layer: int, given: Input, options: StepOptions, row: int | None) -> bytes:
    """Returns a digest that is equal for steps with the same effect on a session."""
    lengths = None if options.lengths is None or row is None else options.lengths[row]
    digest = hashlib.blake2b(
        repr((method, layer, options.output_dtype, options.allow_non_finite, options.draft, lengths)).encode()
    )
    for name, array in tensors_of(given).items():
        one = array if row is None else array[row : row + 1]
        digest.update(f"{name} {tuple(one.shape)} {element_name(one)}".encode())
        digest.update(host_array(one).tobytes())
    parents, tokens = options.parents, leading(given)[0 if row is None else 1]
    if row is not None and len(parents) > tokens:  # a tree for each row
        parents = parents[row * tokens : (row + 1) * tokens]
    rest = [getattr(given, name, None) for name in ("scale", "use_qk_l2norm", "allow_beta_to_two")]
    digest.update(repr((list(parents), rest)).encode())
    return digest.digest()


def check_count(state: SessionState, layer: int, found: int, expected: int) -> None:
    """Raises InternalError if the server has counted other tokens than the client."""
    if found != expected:
        raise InternalError(
            f"{state.name} layer {layer} has seen {found} tokens after a call, expected {expected}", reason="INTERNAL"
        )


class _Step:
    """A step of some sessions: its request, and the changes that its reply makes in the client."""

    method: ClassVar[str]

    def __init__(
        self,
        states: Sequence[SessionState],
        layer: int,
        given: Input,
        options: StepOptions,
        tokens: list[int],
        kind: Any,
    ) -> None:
        self.states, self.layer, self.given, self.options, self.tokens = states, layer, given, options, tokens
        self.request_id = RequestId()
        self.request = kind(layer=layer, output_dtype=options.output_dtype, allow_non_finite=options.allow_non_finite)

    def make(self, ahead: Sequence[int] | None = None) -> Any:
        """Returns the request for the sessions as they are now, or each after its `ahead` tokens of steps in flight."""
        rows = [
            (state.name, state.epoch, state.layer(self.layer).count + tokens)
            for state, tokens in zip(self.states, ahead or [0] * len(self.states), strict=True)
        ]
        name_sessions(self.request, self.request_id.value, rows)
        return self.request


class PrefillStep(_Step):
    """One prefill of the tokens `[T, ..]`."""

    method = "Prefill"

    def __init__(self, state: SessionState, layer: int, given: Input, options: StepOptions) -> None:
        super().__init__([state], layer, given, options, [leading(given)[0]], step_pb2.PrefillRequest)

    def rows(self) -> list[InFlight]:
        """Returns the step's effect on the session, as one row."""

        def digest() -> bytes:
            return _digest_of("prefill", self.layer, self.given, self.options, None)

        return [InFlight(self.request_id, self.layer, self.tokens[0], False, digest)]

    def taken(self, reply: step_pb2.PrefillResponse, memory: StepMemory) -> Array:
        """Returns the output, and notes that the session has advanced."""
        state, before = self.states[0], self.states[0].layer(self.layer).count
        check_count(state, self.layer, reply.token_count, before + self.tokens[0])
        request = memory.kept() if state.keep_bytes > 0 else self.request
        state.note(self.layer, KeptStep(before, self.tokens[0], request), reply.durable_token_count)
        return memory.array_of(reply.output, next(iter(tensors_of(self.given).values())))


class DecodeStep(_Step):
    """One decode of `[B, T, ..]`, with one row for each session."""

    method = "Decode"

    def __init__(self, states: Sequence[SessionState], layer: int, given: Input, options: StepOptions) -> None:
        tokens = list(options.lengths or [leading(given)[1]] * len(states))
        super().__init__(states, layer, given, options, tokens, step_pb2.DecodeRequest)
        self.request.draft = options.draft
        self.request.lengths.extend(options.lengths or ())
        self.request.draft_parents.extend(options.parents)

    def rows(self) -> list[InFlight]:
        """Returns the step's effect on each session, one row each."""

        def digest(row: int) -> Callable[[], bytes]:
            return lambda: _digest_of("decode", self.layer, self.given, self.options, row)

        return [
            InFlight(self.request_id, self.layer, tokens, self.options.draft, digest(row))
            for row, tokens in enumerate(self.tokens)
        ]

    def taken(self, reply: step_pb2.DecodeResponse, memory: StepMemory) -> Array:
        """Returns the output, and notes that the sessions have advanced."""
        draft = self.options.draft
        for state, tokens, count in zip(self.states, self.tokens, reply.token_counts, strict=True):
            check_count(state, self.layer, count, state.layer(self.layer).count + (0 if draft else tokens))
        output = memory.array_of(reply.output, next(iter(tensors_of(self.given).values())))
        size, request = 0, self.request
        if any(state.keep_bytes > 0 for state in self.states):
            request = memory.kept()
            size = request.ByteSize() // len(self.states)
        for row, state in enumerate(self.states):
            kept = KeptStep(state.layer(self.layer).count, self.tokens[row], request, row, size)
            if draft:
                state.note_draft(self.layer, kept)
            else:
                state.note(self.layer, kept, reply.durable_token_counts[row])
        return output


def applied(
    step: PrefillStep | DecodeStep,
    timeout: float | None,
    region: Region | None = None,
    begun: float | None = None,
) -> Flow[Array]:
    """Applies a step exactly once, in a call of its own, and returns its output. A stream may have tried it before.

    `begun` is `time.monotonic()` when the first try's timeout began. None: now.
    """
    now = time.monotonic()
    begun = now if begun is None else begun
    spent = now - begun  # of the first try's timeout
    with StepMemory(region, step.request) as memory:
        fill_input(step.request, step.given, memory.encode)
        memory.place_output(output_bytes(step.given, step.options))

        def send() -> Flow[Any]:
            nonlocal spent
            tried, spent = time.monotonic() - spent, 0.0
            affinity = step.states[0].session.affinity
            while True:
                try:
                    step.make()
                    memory.sending()
                    used = time.monotonic() - tried
                    reply = yield Rpc(step.method, memory.request(), timeout, affinity, used)
                    memory.answered(reply)
                    return reply
                except GdnError as error:
                    if not memory.failed(error):
                        raise

        reply = yield from answered(step.states, step.rows(), send, begun)
        return step.taken(reply, memory)


Accepted = int | Sequence[int]  # a number of the draft's first tokens, or the tokens of a path


def accept(
    states: Sequence[SessionState], accepted: Sequence[Accepted], request_id: RequestId | None = None
) -> Flow[None]:
    """Accepts tokens of session i's drafts, as `accepted[i]` says, and drops the others.

    With a `request_id`, a call that got no answer can be repeated.
    """
    known_id = request_id or RequestId()
    rows = [_acceptance(known_id, tokens) for tokens in accepted]

    def send() -> Flow[state_pb2.AcceptTokensResponse]:
        request = state_pb2.AcceptTokensRequest(request_id=known_id.value)
        for state, flight, tokens in zip(states, rows, accepted, strict=True):
            row = request.acceptances.add(session=state.name, session_epoch=state.epoch)
            if flight.is_accepted:
                continue
            if isinstance(tokens, Sequence):
                row.path.extend(tokens)
            else:
                row.accepted_tokens = tokens
        reply: state_pb2.AcceptTokensResponse = yield Rpc("AcceptTokens", request, None, states[0].session.affinity)
        return reply

    reply = yield from answered(states, rows, send)
    for state, tokens, counts in zip(states, accepted, reply.counts, strict=True):
        for layer in counts.layers:
            _accepted(state, layer, tokens)


def _acceptance(request_id: RequestId, tokens: Accepted) -> InFlight:
    digest = repr(("accept", list(tokens) if isinstance(tokens, Sequence) else tokens)).encode()
    return InFlight(request_id, None, len(tokens) if isinstance(tokens, Sequence) else tokens, False, lambda: digest)


def _accepted(state: SessionState, layer: session_pb2.LayerState, tokens: Accepted) -> None:
    note_acceptance(state, layer.layer, path_of(tokens), layer.durable_token_count)
    check_count(state, layer.layer, layer.token_count, state.layer(layer.layer).count)


def path_of(tokens: Accepted) -> list[int]:
    """Returns the indices of the accepted tokens in the draft."""
    return list(tokens if isinstance(tokens, Sequence) else range(tokens))


def note_acceptance(state: SessionState, layer: int, path: Sequence[int], durable: int) -> None:
    """Notes that these tokens of a layer's draft are accepted. They are kept as a plain step."""
    known = state.layer(layer)
    waited, draft = known.draft_tokens > 0, known.draft
    known.draft, known.draft_tokens = None, 0
    if not waited or len(path) == 0:
        return
    if draft is None:  # its inputs are not known here, so the steps before it are useless
        state.kept_bytes -= known.cut_to(known.count + len(path), same_history=False)
    else:
        alone = draft.alone()
        assert isinstance(alone, step_pb2.DecodeRequest)
        state.note(layer, KeptStep(draft.before, len(path), path_tokens(alone, path)), durable)


@dataclass
class Abilities:
    """What the server of a connection has refused because it is older than this client. Starts as nothing.

    Attributes:
        step: it may know the method Step.
        many: it may know the methods for many sessions, such as CreateSessions.
        reply_bytes: most bytes of a prefill's reply, which servers of version 0.1.0 limit. None: there is no limit.

    """

    step: bool = True
    many: bool = True
    reply_bytes: int | None = None

    def learn(self, error: GdnError) -> bool:
        """Returns whether a prefill was refused because of the size of its reply, and notes the limit."""
        limit = error.metadata.get("expected", "") if error.reason == "REPLY_TOO_LARGE_TO_STORE" else ""
        if limit.isdecimal():
            self.reply_bytes = int(limit)
        return limit.isdecimal()


def tokens_a_call(given: Input, max_message_bytes: int, abilities: Abilities) -> int:
    """Returns the most tokens of such an input that fit one call."""
    tokens = leading(given)[0]
    whole = step_pb2.PrefillRequest()
    fill_input(whole, cut(given, 0, min(1, tokens)), to_tensor)
    room = (max_message_bytes - (64 << 10)) // max(1, whole.ByteSize())
    if abilities.reply_bytes is not None and tokens > 0:
        room = min(room, abilities.reply_bytes // (4 * output_elements(cut(given, 0, 1))))  # float32 is the largest
    return max(1, room)


def segments(given: Input, max_message_bytes: int, abilities: Abilities) -> list[Input]:
    """Cuts a prompt into parts of at most `tokens_a_call` tokens."""
    tokens = leading(given)[0]
    room = tokens_a_call(given, max_message_bytes, abilities)
    return [cut(given, begin, min(begin + room, tokens)) for begin in range(0, max(tokens, 1), room)]
