"""Steps one behind the other in a stream, for inputs that are known before the outputs: scoring, replays, given tokens.

Up to `window` steps are on their way at once, so that none waits for the one before to have travelled. The server takes
them in order, and each says the token count that it is for: behind one that was not taken none is. Where a step fails,
or the stream breaks, those that were under way are asked for again in calls of their own, by the same ids, so each is
taken once, and the outputs are the bits of plain calls. Tensors travel in messages.
Between two outputs nothing else is to be asked of the sessions.
Thread safety: as of a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from gdn_client.array_flow import PartStep, RowsStep
from gdn_client.errors import GdnError
from gdn_client.flow import Flow
from gdn_client.futures import settle
from gdn_client.inputs import Input
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.session_state import SessionState, StepOptions
from gdn_client.shared_memory import StepMemory
from gdn_client.steps import fill_input
from gdn_client.tensors import Array, to_tensor

if TYPE_CHECKING:
    from gdn_client.connection import Connection

DEFAULT_WINDOW = 8
PREFILL_WINDOW = 2  # one is computed while the next travels


class Pipeline:
    """The steps of one stream that are under way."""

    def __init__(
        self, method: str, states: Sequence[SessionState], make: Callable[[Input], RowsStep | PartStep], window: int
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}, expected at least 1")
        for state in states:
            state.check_not_ended()
        self.method = method
        self.states = states
        self.window = window
        self.under_way: deque[RowsStep | PartStep] = deque()
        self._make = make

    @property
    def is_full(self) -> bool:
        """Whether an output is to be had before the next step."""
        return len(self.under_way) >= self.window

    @property
    def affinity(self) -> str:
        """Of the stream."""
        return self.states[0].session.affinity

    def add(self, x: Input) -> Message:
        """The message of the next step."""
        rows = self._make(x)
        fill_input(rows.step.request, rows.step.given, to_tensor)
        ahead = [sum(tokens) for tokens in zip(*(one.step.tokens for one in self.under_way), strict=True)] or None
        message: Message
        if isinstance(rows, PartStep):
            message = step_pb2.StreamPrefillRequest(segment=rows.step.make(ahead))
        else:
            message = step_pb2.StreamDecodeRequest(step=rows.step.make(ahead))
        self.under_way.append(rows)
        for row, state in enumerate(self.states):
            known = state.layer(rows.step.layer)
            known.reached = max(known.reached, known.count + sum(one.step.tokens[row] for one in self.under_way))
        return message

    def take(self, reply: Any) -> Array | None:
        """The oldest step's output; None where it has failed."""
        if reply.status.code != 0:
            return None
        rows = self.under_way.popleft()
        memory = StepMemory(None, rows.step.request)
        return rows.shaped(rows.step.taken(reply.result, memory))

    def again(self, timeout: float | None) -> Flow[Array]:
        """The oldest that is under way, in a call of its own; if it fails, those behind it are given up."""
        rows = self.under_way[0]
        answered = False
        try:
            output = rows.shaped((yield from rows.step.flow(timeout)))
            answered = True
            self.under_way.popleft()
            return output
        finally:
            if not answered:
                self.give_up()

    def give_up(self) -> None:
        """Steps that are still under way may be taken or not; the sessions' next call finds out."""
        for state in self.states if self.under_way else ():
            state.astray = state.keep_bytes > 0
        self.under_way.clear()


def decode_pipeline(
    states: Sequence[SessionState], layer: int, options: StepOptions, window: int, alone: bool = False
) -> Pipeline:
    """Of decodes; `alone`: of one session, without B."""
    return Pipeline("StreamDecode", states, lambda x: RowsStep(states, layer, x, options, alone), window)


def prefill_pipeline(state: SessionState, layer: int, options: StepOptions, window: int) -> Pipeline:
    """Of a prompt's parts."""
    return Pipeline("StreamPrefill", [state], lambda x: PartStep(state, layer, x, options), window)


def outputs(
    connection: Connection, pipeline: Pipeline, inputs: Iterable[Input], timeout: float | None
) -> Iterator[Array]:
    """The outputs, in order. What is under way when the caller leaves is taken all the same."""
    settle(pipeline.states)
    stream: Any = None

    def from_stream() -> Array | None:
        """The oldest step's; None: the stream has failed."""
        nonlocal stream
        try:
            output = pipeline.take(stream.receive())
            if output is not None:
                return output
            for _ in range(len(pipeline.under_way) - 1):  # refused as well, for their counts; nothing moves behind us
                stream.receive()
        except GdnError:
            pass  # the stream is over; the calls tell why
        stream.close()
        stream = None
        return None

    def oldest() -> Array:
        output = from_stream() if stream is not None else None
        return connection.run(pipeline.again(timeout)) if output is None else output

    try:
        for x in inputs:
            message = pipeline.add(x)
            if stream is None:
                stream = connection.open_stream(pipeline.method, pipeline.affinity, timeout)
            stream.send(message)
            while pipeline.is_full or (stream is None and pipeline.under_way):
                yield oldest()
        while pipeline.under_way:
            yield oldest()
    finally:
        try:
            while pipeline.under_way:
                oldest()
        finally:
            if stream is not None:
                stream.close()
