"""Steps of many sessions in one call, each with its own number of tokens and its own kind: `Batch.step`.

A row is decoded, drafted or prefilled, and may accept tokens of its layer's draft first. Rows hold to the rules of the
steps of `session_flow`: `calls` retries them, and each row is applied exactly once, together with its acceptance. A row
that must be sent under another request id than the others, after a recovery, goes in a call of its own. Servers that do
not know the method Step get Prefill, Decode and AcceptTokens instead.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from gdn_client import array_flow
from gdn_client.calls import ASTRAY, answered, give_up
from gdn_client.errors import GdnError, InvalidArgumentError, UnimplementedError, from_status
from gdn_client.flow import Flow, Rpc, is_unknown_method, worth_another_try
from gdn_client.inputs import DeltaRule, Input, Projected, tensors_of
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.recovery import STATE_IS_GONE
from gdn_client.session_flow import (
    Abilities,
    Accepted,
    DecodeStep,
    accept,
    check_count,
    note_acceptance,
    output_bytes,
    path_of,
)
from gdn_client.session_state import InFlight, PartDone, RequestId, SessionState, StepOptions, new_id
from gdn_client.shared_memory import StepMemory
from gdn_client.steps import KeptRequest, KeptStep, LayerSteps, SentStep, cut, fill_input, leading, rows_alone
from gdn_client.tensors import Array, element_name, host_array, is_torch, to_tensor

Kind: TypeAlias = Literal["decode", "draft", "prefill"]
_KINDS: dict[str, step_pb2.StepKind] = {
    "decode": step_pb2.STEP_KIND_DECODE,
    "draft": step_pb2.STEP_KIND_DRAFT,
    "prefill": step_pb2.STEP_KIND_PREFILL,
}
_ANY_SIZE = 1 << 62
_FLAGS = ("scale", "use_qk_l2norm", "allow_beta_to_two")


@dataclass(frozen=True, eq=False)
class StepRow:
    """One session's part of a `Batch.step`.

    Attributes:
        x: hidden states `[T, D]` for T tokens and hidden size D, or a `Projected` or a `DeltaRule` with T tokens. T may
            be 0, for example if the row only accepts.
        kind: how the tokens are computed. "decode" is `Session.decode`, "draft" is that with `draft`, and "prefill" is
            `Session.prefill`.
        parents: for a draft that is a tree, as in `Session.decode`. None: a chain.
        accept: tokens of this layer's draft that are accepted first, as in `Session.accept`. The other tokens are
            dropped. 0 drops the whole draft. None: the layer must have no draft. Other layers keep their drafts.

    """

    x: Input
    kind: Kind = "decode"
    parents: Sequence[int] | None = None
    accept: Accepted | None = None


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of a `StepRow`.

    Attributes:
        output: `[T, D]`, or `[T, HV * V]` for Projected, or `[T, HV, V]` for DeltaRule, like the row's input. None if
            the row has failed.
        token_count: tokens that the session's layer has seen after the row, as far as the client knows.
        error: why the row has failed. None: it was applied.

    """

    output: Array | None
    token_count: int
    error: GdnError | None = None


@dataclass(frozen=True)
class StepCall:
    """A step of one layer, as the caller asks for it.

    Attributes:
        layer: index of the layer.
        rows: a row for each session.
        options: dtype of the outputs, and whether NaN and Inf are accepted.
        partial_ok: let each row fail alone.
        timeout: seconds for each call. None: the client's.

    """

    layer: int
    rows: Sequence[StepRow]
    options: StepOptions
    partial_ok: bool = False
    timeout: float | None = None


@dataclass(frozen=True, eq=False)
class _Answer:
    """The server's answer to a row, and the row's request if the client keeps inputs (arguments of `KeptStep`)."""

    output: Array
    token_count: int
    durable: int
    kept: tuple[KeptRequest, int | None, int | None]


class _Row:
    """A row of a call: what was asked, and its effect on the session."""

    def __init__(self, state: SessionState, call: StepCall, given: StepRow, request_id: RequestId) -> None:
        self.state, self.layer, self.given, self.options = state, call.layer, given, call.options
        self.tokens = leading(given.x)[0]
        self.path = None if given.accept is None else path_of(given.accept)
        self.error: GdnError | None = None
        self.result: StepResult | None = None
        accepted = None if self.path is None else len(self.path)
        self.flight = InFlight(request_id, call.layer, self.tokens, given.kind == "draft", self.digest, accepted)

    def digest(self) -> bytes:
        """Identifies the row. It is equal for rows with the same effect on a session."""
        return digest_of(self.layer, self.given, self.options)

    @property
    def known(self) -> LayerSteps:
        """The layer, as the client knows it."""
        return self.state.layer(self.layer)

    def fill(self, row: step_pb2.StepRow, ahead: int = 0) -> None:
        """Sets the row of a request, for the session as it is now, or after its `ahead` tokens in flight."""
        row.session, row.session_epoch = self.state.name, self.state.epoch
        row.token_count, row.kind = self.tokens, _KINDS[self.given.kind]
        row.expected_token_count = self.known.count + ahead + (self.flight.accepted or 0)
        row.draft_parents.extend(self.given.parents or ())
        if self.path is None or self.flight.accepted_before:
            return
        if isinstance(self.given.accept, Sequence) and self.path:
            row.accept_before.path.extend(self.path)
        else:
            row.accept_before.accepted_tokens = len(self.path)

    def take(self) -> None:
        """Notes that the session has advanced, as the answer says, and sets the result."""
        state, answer = self.state, self.flight.answer
        check_count(state, self.layer, answer.token_count, self.known.count + self.flight.moves)
        if self.path is not None:
            self.known.draft_tokens = max(self.known.draft_tokens, len(self.path))  # somebody else may have drafted
            note_acceptance(state, self.layer, self.path, answer.durable)
        kept = KeptStep(self.known.count, self.tokens, *answer.kept)
        if self.flight.draft:
            state.note_draft(self.layer, kept)
        else:
            state.note(self.layer, kept, answer.durable)
        self.done(answer.output)

    def done(self, output: Array) -> None:
        """Sets the result of a row that was applied."""
        self.result = StepResult(output, self.known.count)

    def outcome(self) -> StepResult:
        """Returns the result, or the error."""
        return self.result or StepResult(None, self.known.count, self.error)


def digest_of(layer: int, given: StepRow, options: StepOptions) -> bytes:
    """Returns a digest that is equal for rows with the same effect on a session."""
    rest = [getattr(given.x, name, None) for name in _FLAGS]
    path = None if given.accept is None else path_of(given.accept)
    what = ("step", layer, options.output_dtype, options.allow_non_finite, given.kind, path, rest)
    digest = hashlib.blake2b(repr((*what, list(given.parents or ()))).encode())
    for name, array in tensors_of(given.x).items():
        digest.update(f"{name} {tuple(array.shape)} {element_name(array)}".encode())
        digest.update(host_array(array).tobytes())
    return digest.digest()


def _check_row(given: StepRow, first: StepRow, at: int) -> None:
    if given.kind not in _KINDS:
        raise ValueError(f"row {at} has kind {given.kind!r}, expected one of {', '.join(_KINDS)}")
    if given.parents is not None and given.kind != "draft":
        raise ValueError(f"row {at} has parents, which are a draft's, and kind {given.kind!r}")
    array_flow.check_is_prompt(given.x)
    if not _is_plainly_alike(given.x, first.x) and _form(given.x) != _form(first.x):
        raise ValueError(
            f"row {at} and row 0 have inputs of different kinds, libraries, dtypes, shapes of a token or options: "
            f"{_form(given.x)} and {_form(first.x)}"
        )


def _is_plainly_alike(one: Any, other: Any) -> bool:
    """Whether both are hidden states of one form. This is quick, because every row is checked in every call."""
    if type(one) is not type(other) or isinstance(one, Projected | DeltaRule):
        return False
    return bool(one.dtype == other.dtype and one.shape[1:] == other.shape[1:])


def _form(x: Input) -> list[object]:
    kind = type(x).__name__ if isinstance(x, Projected | DeltaRule) else "hidden states"
    tensors = [(is_torch(array), element_name(array), *array.shape[1:]) for array in tensors_of(x).values()]
    return [kind, tensors, *(getattr(x, name, None) for name in _FLAGS)]


def _with_tensors(like: Input, make: Callable[[str], Array]) -> Input:
    """Returns an input of the same kind with other tensors."""
    tensors: dict[str, Any] = {name: make(name) for name in tensors_of(like)}
    return replace(like, **tensors) if isinstance(like, Projected | DeltaRule) else tensors["hidden_states"]


def _packed(inputs: Sequence[Input]) -> Input:
    """Returns the tokens of all inputs, one after the other."""
    return _with_tensors(inputs[0], lambda name: array_flow.joined([tensors_of(x)[name] for x in inputs]))


def _padded(inputs: Sequence[Input], tokens: int) -> Input:
    """Returns the inputs as rows `[B, T, ..]`, with zeros behind the tokens of each."""

    def rows(name: str) -> Array:
        arrays: list[Any] = [tensors_of(x)[name] for x in inputs]
        shape = (len(arrays), tokens, *arrays[0].shape[1:])
        whole: Any = arrays[0].new_zeros(shape) if is_torch(arrays[0]) else np.zeros(shape, arrays[0].dtype)
        for row, array in enumerate(arrays):
            whole[row, : array.shape[0]] = array
        return whole

    return _with_tensors(inputs[0], rows)


def _has_to_accept(row: _Row) -> bool:
    """Whether AcceptTokens is to be called before the row.

    Raises:
        InvalidArgumentError: TOO_MANY_TOKENS, there is no draft whose tokens could be accepted.

    """
    if row.path is None or row.known.draft_tokens > 0:
        return row.path is not None
    if not row.path or row.known.accepted == (row.path, row.known.count):
        return False
    raise InvalidArgumentError(
        f"{row.state.name} layer {row.layer} has no draft, and {len(row.path)} tokens of one are to be accepted",
        reason="TOO_MANY_TOKENS",
        metadata={"session": row.state.name, "found": str(len(row.path)), "expected": "0"},
    )


class MixedStep:
    """One step of one layer, with a row for each session.

    Raises:
        ValueError: there is not one row for each session, or a row does not fit the others.

    """

    def __init__(self, states: Sequence[SessionState], call: StepCall, abilities: Abilities) -> None:
        if len(call.rows) != len(states):
            raise ValueError(f"there are {len(call.rows)} rows, expected {len(states)}, one for each session")
        for at, given in enumerate(call.rows):
            _check_row(given, call.rows[0], at)
        self._call, self._abilities = call, abilities
        self._request_id = new_id()
        # Each row has its own object, because a recovery may give a row another id.
        self._rows = [
            _Row(state, call, given, RequestId(self._request_id))
            for state, given in zip(states, call.rows, strict=True)
        ]
        self._affinity = states[0].session.affinity
        self._streamed = step_pb2.StepRequest()  # the request of a stream

    @property
    def layer(self) -> int:
        """The layer that it steps."""
        return self._call.layer

    @property
    def moves(self) -> list[int]:
        """Number of tokens that each session's count grows by."""
        return [row.flight.moves for row in self._rows]

    def applied(self) -> Flow[list[StepResult]]:
        """Applies the rows, and returns each row's result. A flow that has failed may be run again.

        Raises:
            GdnError: without `partial_ok`, the error of the call. Its rows are given up, or were not applied.

        """
        if self._abilities.step:
            try:
                yield from self._by_step()
                return self._results()
            except UnimplementedError as error:
                if not is_unknown_method(error):
                    raise
                self._abilities.step = False
        yield from self._by_other_methods()
        return self._results()

    def _results(self) -> list[StepResult]:
        return [row.outcome() for row in self._rows]

    # ---- Streams (`pipeline.StreamStep`)

    def message(self, ahead: Sequence[int] | None) -> step_pb2.StreamStepRequest:
        """Returns the stream's message, for sessions that have `ahead` more tokens in flight before it."""
        self._streamed = self._request(self._request_id, self._rows, ahead)
        fill_input(self._streamed, _packed([row.given.x for row in self._rows]), to_tensor)
        return step_pb2.StreamStepRequest(step=self._streamed)

    def taken(self, result: step_pb2.StepResponse) -> list[StepResult]:
        """Returns the results of the stream's reply, and notes that the sessions have advanced."""
        self._answered(self._rows, result, StepMemory(None, self._streamed))
        for row in self._rows:
            row.take()
        return self._results()

    def again(self, timeout: float | None) -> Flow[list[StepResult]]:
        """Repeats the step in a call of its own, and returns its results."""
        self._call = replace(self._call, timeout=timeout)
        return (yield from self.applied())

    # ---- The method Step

    def _by_step(self) -> Flow[None]:
        """Applies the rows by the method Step.

        Raises:
            UnimplementedError: the server does not know the method; without a reason.
            GdnError: without `partial_ok`, the error of the call. Its rows are given up, or were not applied.

        """
        while rows := [row for row in self._rows if row.error is None]:
            try:
                yield from answered([row.state for row in rows], [row.flight for row in rows], self._send)
                break
            except GdnError as error:
                if not self._call.partial_ok or is_unknown_method(error):
                    done = [row for row in rows if row.flight.answer is not None]
                    give_up([row.state for row in done], [row.flight for row in done])
                    raise
                if not self._fails_alone(rows, error):
                    break
        for row in self._rows:
            if row.error is None and row.flight.answer is not None:
                row.state.given_up = None
                row.take()

    def _fails_alone(self, rows: Sequence[_Row], error: GdnError) -> bool:
        """Notes the error of the row that it names, or of all rows without an answer. Returns whether it names one."""
        named = [row for row in rows if row.state.name == error.metadata.get("session")]
        alone = len(named) > 0 and not worth_another_try(error)
        for row in named if alone else rows:
            row.error = error if alone or row.flight.answer is None else None
        return alone

    def _send(self) -> Flow[None]:
        """Makes one try of the rows that have no answer, with a call for each request id."""
        calls: dict[str, list[_Row]] = {}
        for row in self._rows:
            if row.error is None and row.flight.answer is None:
                calls.setdefault(row.flight.request_id.value, []).append(row)
        for request_id, rows in calls.items():
            yield from self._send_rows(request_id, rows)

    def _request(
        self, request_id: str, rows: Sequence[_Row], ahead: Sequence[int] | None = None
    ) -> step_pb2.StepRequest:
        """Returns a request for these rows, without an input."""
        call, options = self._call, self._call.options
        request = step_pb2.StepRequest(layer=call.layer, output_dtype=options.output_dtype, request_id=request_id)
        request.allow_non_finite, request.partial_ok = options.allow_non_finite, call.partial_ok
        for row, tokens in zip(rows, ahead or [0] * len(rows), strict=True):
            row.fill(request.rows.add(), tokens)
        return request

    def _send_rows(self, request_id: str, rows: Sequence[_Row]) -> Flow[None]:
        request, given = self._request(request_id, rows), _packed([row.given.x for row in rows])
        region = yield from rows[0].state.memory.open()
        with StepMemory(region, request) as memory:
            fill_input(request, given, memory.encode)
            memory.place_output(output_bytes(given, self._call.options))
            self._answered(rows, (yield from self._reply(memory)), memory)

    def _reply(self, memory: StepMemory) -> Flow[step_pb2.StepResponse]:
        while True:
            try:
                memory.sending()
                reply: step_pb2.StepResponse = yield Rpc("Step", memory.request(), self._call.timeout, self._affinity)
                memory.answered(reply)
                return reply
            except GdnError as error:
                if not memory.failed(error):
                    raise

    def _answered(self, rows: Sequence[_Row], reply: step_pb2.StepResponse, memory: StepMemory) -> None:
        """Notes each row's answer.

        Raises:
            GdnError: of a row that may succeed after a recovery, or later.

        """
        # A reply to rows that have all failed has no output.
        output: Any = None
        if not reply.row_statuses or any(status.code == 0 for status in reply.row_statuses):
            output = memory.array_of(reply.output, next(iter(tensors_of(rows[0].given.x).values())))
        kept = self._kept(rows, memory)
        begin, again = 0, None
        for at, row in enumerate(rows):
            end = begin + row.tokens
            if not reply.row_statuses or reply.row_statuses[at].code == 0:
                counts = reply.token_counts[at], reply.durable_token_counts[at]
                row.flight.answer = _Answer(output[begin:end], *counts, kept[at])
            else:
                error = from_status(reply.row_statuses[at])
                error.metadata.setdefault("session", row.state.name)
                if error.reason in ASTRAY:
                    row.flight.refusal = error.reason
                    row.state.rolled_back |= error.reason in STATE_IS_GONE
                if error.reason in ASTRAY or worth_another_try(error):
                    again = again or error
                else:
                    row.error = error
            begin = end
        if again is not None:
            raise again

    @staticmethod
    def _kept(rows: Sequence[_Row], memory: StepMemory) -> list[tuple[KeptRequest, int | None, int | None]]:
        """Returns what each row keeps. Rows of about equal length share the whole request, so that nothing is copied.

        A short row does not keep the tokens of a much longer one in memory.
        """
        if all(row.state.keep_bytes <= 0 for row in rows):
            return [(step_pb2.DecodeRequest(), None, 0)] * len(rows)
        request, tokens = memory.kept(), [row.tokens for row in rows]
        if len(rows) * max(tokens) <= 2 * sum(tokens):
            size = request.ByteSize() // len(rows)
            return [(request, at, size) for at in range(len(rows))]
        whole = request.parsed() if isinstance(request, SentStep) else request
        assert isinstance(whole, step_pb2.StepRequest)
        return [(alone, None, None) for alone in rows_alone(whole)]

    # ---- Servers without the method Step

    def _by_other_methods(self) -> Flow[None]:
        """Applies the rows by AcceptTokens, Decode and Prefill, which take several calls.

        If a call fails, the rows before it stay applied. The same step again goes on with the others.
        """
        for rows in self._alike():
            try:
                open_rows = [row for row in rows if not self._was_done(row)]
                yield from self._accept(open_rows)
                if rows[0].given.kind == "prefill":
                    for row in open_rows:
                        yield from self._prefill(row)
                else:
                    yield from self._decode(open_rows)
            except GdnError as error:
                if not self._call.partial_ok:
                    raise
                for row in rows:
                    row.error = row.error if row.result else error
        for row in self._rows:
            row.state.part_done = None

    def _alike(self) -> list[list[_Row]]:
        """Returns the rows that one call takes: those of a kind, or each row alone if it may fail alone."""
        if self._call.partial_ok:
            return [[row] for row in self._rows]
        kinds = [[row for row in self._rows if row.given.kind == kind] for kind in _KINDS]
        return [rows for rows in kinds if rows]

    def _was_done(self, row: _Row) -> bool:
        """Sets the result of a row that an earlier try of the same step has applied."""
        done, known = row.state.part_done, row.known
        if done is None or (done.count, done.draft_tokens) != (known.count, known.draft_tokens):
            row.state.part_done = None
            return False
        if done.digest != row.digest():
            row.state.part_done = None
            return False
        if sum(leading(output)[0] for output in done.outputs) < row.tokens:
            return False
        row.done(array_flow.joined(done.outputs))
        return True

    def _note_done(self, row: _Row, outputs: list[Array]) -> None:
        row.state.part_done = PartDone(row.digest(), row.known.count, row.known.draft_tokens, outputs)

    def _accept(self, rows: Sequence[_Row]) -> Flow[None]:
        """Accepts by AcceptTokens, which takes the drafts of all layers; a step of these then accepts the same."""
        accepting = [row for row in rows if row.state.part_done is None and _has_to_accept(row)]
        if not accepting:
            return
        states = [row.state for row in accepting]
        drafts = [[known for known in state.layers.values() if known.draft_tokens > 0] for state in states]
        yield from accept(states, [row.given.accept or 0 for row in accepting])
        for row, layers in zip(accepting, drafts, strict=True):
            for known in layers:
                known.accepted = row.path or [], known.count

    def _prefill(self, row: _Row) -> Flow[None]:
        done = row.state.part_done
        outputs: list[Array] = [] if done is None else done.outputs
        rest = cut(row.given.x, sum(leading(output)[0] for output in outputs), row.tokens)

        def told(_: int) -> None:
            self._note_done(row, outputs)

        call = self._call
        output = yield from array_flow.prefill(
            row.state, call.layer, rest, _ANY_SIZE, self._abilities, call.options, call.timeout, told, outputs
        )
        row.done(output)

    def _decode(self, rows: Sequence[_Row]) -> Flow[None]:
        most = max((row.tokens for row in rows), default=0)
        if not rows:
            return
        parents: list[int] = []
        if any(row.given.parents for row in rows):
            for row in rows:
                own = list(row.given.parents or range(-1, row.tokens - 1))
                parents += own + [-1] * (most - row.tokens)
        options = replace(
            self._call.options,
            draft=rows[0].given.kind == "draft",
            lengths=[row.tokens for row in rows],
            parents=parents,
        )
        given = _padded([row.given.x for row in rows], max(most, 1))
        step = DecodeStep([row.state for row in rows], self._call.layer, given, options)
        output = yield from array_flow.applied(step, self._call.timeout)
        for at, row in enumerate(rows):
            row.done(output[at, : row.tokens])
            self._note_done(row, [output[at, : row.tokens]])
