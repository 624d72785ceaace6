"""Steps of many sessions in one call, each with its own number of tokens and its own kind: `Batch.step`.

A row is decoded, drafted or prefilled, and may accept tokens of its layer's draft first. Rows hold to the rules of the
steps of `session_flow`: `calls` retries them, and each row is applied exactly once, together with its acceptance. A row
that must be sent under another request id than the others, after a recovery, goes in a call of its own. Servers that do
not know the method Step get Prefill, Decode and AcceptTokens instead.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from gdn_client import array_flow
from gdn_client.calls import ASTRAY, abandoned, answered, give_up
from gdn_client.errors import GdnError, InvalidArgumentError, UnimplementedError, from_status
from gdn_client.first_try import Kept, fill_row, is_plain, kept_of, note_all, note_row, row_bytes
from gdn_client.flow import Flow, Rpc, is_unknown_method, worth_another_try
from gdn_client.inputs import Input, tensors_of
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.recovery import STATE_IS_GONE
from gdn_client.session_flow import Abilities, DecodeStep, accept, output_bytes, path_of
from gdn_client.session_state import InFlight, PartDone, RequestId, SessionState, new_id
from gdn_client.shared_memory import StepMemory
from gdn_client.step_call import KINDS, StepCall, StepResult, StepResults, StepRow, digest_of, packed, with_tensors
from gdn_client.steps import LayerSteps, cut, fill_input, leading
from gdn_client.tensors import Array, is_torch, to_tensor

_ANY_SIZE = 1 << 62


@dataclass(frozen=True, eq=False)
class _Answer:
    """The server's answer to a row, and what is kept of the row."""

    output: Array
    counts: tuple[int, int]  # tokens, and durable tokens
    kept: Kept


class _Row:
    """A row of a call: what was asked, and its effect on the session."""

    def __init__(self, state: SessionState, call: StepCall, given: StepRow, request_id: RequestId) -> None:
        self.state, self.layer, self.given, self.options = state, call.layer, given, call.options
        self.x = cast(Input, given.x)
        self.tokens = leading(self.x)[0]
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
        row.expected_token_count = self.known.count + ahead + (self.flight.accepted or 0)
        fill_row(row, self.given, self.tokens, accepts=not self.flight.accepted_before)

    def take(self) -> None:
        """Notes that the session has advanced, as the answer says, and sets the result."""
        answer = self.flight.answer
        note_row(self.state, self.layer, self.given, self.tokens, answer.counts, answer.kept)
        self.done(answer.output)

    def done(self, output: Array) -> None:
        """Sets the result of a row that was applied."""
        self.result = StepResult(output, self.known.count)

    def outcome(self) -> StepResult:
        """Returns the result, or the error."""
        return self.result or StepResult(None, self.known.count, self.error)


def _padded(inputs: Sequence[Input], tokens: int) -> Input:
    """Returns the inputs as rows `[B, T, ..]`, with zeros behind the tokens of each."""

    def rows(name: str) -> Array:
        arrays: list[Any] = [tensors_of(x)[name] for x in inputs]
        shape = (len(arrays), tokens, *arrays[0].shape[1:])
        whole: Array = arrays[0].new_zeros(shape) if is_torch(arrays[0]) else np.zeros(shape, arrays[0].dtype)
        for row, array in enumerate(arrays):
            whole[row, : array.shape[0]] = array
        return whole

    return with_tensors(inputs[0], rows)


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
        self._states, self._call, self._abilities = states, call, abilities
        self._tokens = call.tokens()
        self._request_id = new_id()
        # The outcome of the first try, if it was made without `_rows`: its error, or None.
        self._first: GdnError | None = None
        self._begun = 0.0  # `time.monotonic()` when the call's time began
        self._spent = 0.0  # seconds of the next try's timeout that are over
        self._affinity = states[0].session.affinity
        self._streamed = step_pb2.StepRequest()  # the request of a stream

    @property
    def layer(self) -> int:
        """The layer that it steps."""
        return self._call.layer

    @property
    def moves(self) -> list[int]:
        """Number of tokens that each session's count grows by."""
        return [
            (0 if row.kind == "draft" else tokens) + (0 if row.accept is None else len(path_of(row.accept)))
            for row, tokens in zip(self._call.rows, self._tokens, strict=True)
        ]

    @cached_property
    def _rows(self) -> list[_Row]:
        """The rows, each with an id of its own, because a recovery may give a row another one."""
        call = self._call.with_own_inputs()
        return [
            _Row(state, call, given, RequestId(self._request_id))
            for state, given in zip(self._states, call.rows, strict=True)
        ]

    def applied(self) -> Flow[StepResults]:
        """Applies the rows, and returns each row's result. A flow that has failed may be run again.

        Raises:
            GdnError: without `partial_ok`, the error of the call. Its rows are given up, or were not applied.

        """
        self._begun, self._spent = time.monotonic(), 0.0
        if self._abilities.step:
            try:
                if "_rows" not in self.__dict__ and is_plain(self._states, self.layer):
                    results = yield from self._by_first_try()
                    if results is not None:
                        return results
                yield from self._by_step()
                return self._results()
            except UnimplementedError as error:
                if not is_unknown_method(error):
                    raise
                self._abilities.step = False
        yield from self._by_other_methods()
        return self._results()

    def _results(self) -> StepResults:
        return StepResults.of([row.outcome() for row in self._rows])

    # ---- Streams (`pipeline.StreamStep`)

    def message(self, ahead: Sequence[int] | None) -> step_pb2.StreamStepRequest:
        """Returns the stream's message, for sessions that have `ahead` more tokens in flight before it."""
        self._streamed = self._request(self._request_id, self._rows, ahead)
        fill_input(self._streamed, self._call.packed(), to_tensor)
        return step_pb2.StreamStepRequest(step=self._streamed)

    def taken(self, result: step_pb2.StepResponse) -> StepResults:
        """Returns the results of the stream's reply, and notes that the sessions have advanced."""
        self._answered(self._rows, result, StepMemory(None, self._streamed))
        for row in self._rows:
            row.take()
        return self._results()

    def again(self, timeout: float | None) -> Flow[StepResults]:
        """Repeats the step in a call of its own, and returns its results."""
        self._call = replace(self._call, timeout=timeout)
        return (yield from self.applied())

    # ---- The method Step

    def _by_first_try(self) -> Flow[StepResults | None]:
        """Makes the first try. Returns the results, or None: it has failed, or a row has, and `_by_step` goes on."""
        states, call, given = self._states, self._call, self._call.packed()
        request = self._head(self._request_id)
        region = yield from states[0].memory.open(call.timeout)
        with StepMemory(region, request, row_bytes(states, call, self._tokens), states[0].name) as memory:
            memory.hold(given)
            memory.place_output(output_bytes(given, call.options))
            try:
                memory.sending()
                used = time.monotonic() - self._begun
                reply = yield Rpc("Step", memory.request(), call.timeout, self._affinity, used)
                memory.answered(reply)
                if any(status.code != 0 for status in reply.row_statuses):
                    self._answered(self._rows, reply, memory)
                    return None
            except GdnError as error:
                if memory.failed(error):  # the same try goes on as a message
                    self._spent = time.monotonic() - self._begun
                else:
                    self._first = error
                return None
            except BaseException:
                abandoned(states, [row.flight for row in self._rows])
                raise
            output = memory.array_of(reply.output, next(iter(tensors_of(given).values())))
            return StepResults(output, self._tokens, note_all(states, call, self._tokens, reply, memory))

    def _by_step(self) -> Flow[None]:
        """Applies the rows by the method Step.

        Raises:
            UnimplementedError: the server does not know the method; without a reason.
            GdnError: without `partial_ok`, the error of the call. Its rows are given up, or were not applied.

        """
        while rows := [row for row in self._rows if row.error is None]:
            try:
                states, flights = [row.state for row in rows], [row.flight for row in rows]
                yield from answered(states, flights, self._send, self._begun)
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
        if self._first is not None:
            error, self._first = self._first, None
            raise error
        calls: dict[str, list[_Row]] = {}
        for row in self._rows:
            if row.error is None and row.flight.answer is None:
                calls.setdefault(row.flight.request_id.value, []).append(row)
        for request_id, rows in calls.items():
            yield from self._send_rows(request_id, rows)

    def _head(self, request_id: str) -> step_pb2.StepRequest:
        """Returns a request without rows and without an input."""
        call, options = self._call, self._call.options
        request = step_pb2.StepRequest(layer=call.layer, output_dtype=options.output_dtype, request_id=request_id)
        request.allow_non_finite, request.partial_ok = options.allow_non_finite, call.partial_ok
        return request

    def _request(
        self, request_id: str, rows: Sequence[_Row], ahead: Sequence[int] | None = None
    ) -> step_pb2.StepRequest:
        """Returns a request for these rows, without an input."""
        request = self._head(request_id)
        for row, tokens in zip(rows, ahead or [0] * len(rows), strict=True):
            row.fill(request.rows.add(), tokens)
        return request

    def _send_rows(self, request_id: str, rows: Sequence[_Row]) -> Flow[None]:
        begun, self._spent = time.monotonic() - self._spent, 0.0
        request, given = self._request(request_id, rows), packed([row.x for row in rows])
        region = yield from rows[0].state.memory.open(self._call.timeout)
        with StepMemory(region, request) as memory:
            fill_input(request, given, memory.encode)
            memory.place_output(output_bytes(given, self._call.options))
            self._answered(rows, (yield from self._reply(memory, begun)), memory)

    def _reply(self, memory: StepMemory, begun: float) -> Flow[step_pb2.StepResponse]:
        """Returns the reply to a try whose timeout began at `begun`."""
        while True:
            try:
                memory.sending()
                used = time.monotonic() - begun
                rpc = Rpc("Step", memory.request(), self._call.timeout, self._affinity, used)
                reply: step_pb2.StepResponse = yield rpc
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
            output = memory.array_of(reply.output, next(iter(tensors_of(rows[0].x).values())))
        kept = kept_of([row.state for row in rows], [row.tokens for row in rows], memory)
        begin, again = 0, None
        for at, row in enumerate(rows):
            end = begin + row.tokens
            if not reply.row_statuses or reply.row_statuses[at].code == 0:
                counts = reply.token_counts[at], reply.durable_token_counts[at]
                row.flight.answer = _Answer(output[begin:end], counts, kept[at])
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
        kinds = [[row for row in self._rows if row.given.kind == kind] for kind in KINDS]
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
        rest = cut(row.x, sum(leading(output)[0] for output in outputs), row.tokens)

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
        given = _padded([row.x for row in rows], max(most, 1))
        step = DecodeStep([row.state for row in rows], self._call.layer, given, options)
        output = yield from array_flow.applied(step, self._call.timeout)
        for at, row in enumerate(rows):
            row.done(output[at, : row.tokens])
            self._note_done(row, [output[at, : row.tokens]])
