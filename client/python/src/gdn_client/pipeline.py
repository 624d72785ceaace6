"""The steps of one stream that are in flight. `streams` sends them and reads their outputs.

Thread safety: as that of a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from gdn_client.array_flow import PartStep, RowsStep
from gdn_client.flow import Flow
from gdn_client.inputs import Input
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.session_flow import applied
from gdn_client.session_state import SessionState, StepOptions
from gdn_client.shared_memory import StepMemory
from gdn_client.steps import fill_input
from gdn_client.tensors import Array, to_tensor

DEFAULT_WINDOW = 8
PREFILL_WINDOW = 2  # one part is computed while the next travels


class Pipeline:
    """The steps of one stream that are in flight."""

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
        """Whether an output must be read before the next step."""
        return len(self.under_way) >= self.window

    @property
    def affinity(self) -> str:
        """The stream's routing key."""
        return self.states[0].session.affinity

    def add(self, x: Input) -> Message:
        """Adds the next step, and returns its message."""
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
        """Returns the oldest step's output, or None if the step has failed."""
        if reply.status.code != 0:
            return None
        rows = self.under_way.popleft()
        memory = StepMemory(None, rows.step.request)
        return rows.shaped(rows.step.taken(reply.result, memory))

    def again(self, timeout: float | None) -> Flow[Array]:
        """Repeats the oldest step in flight in a call of its own. If it fails, the steps behind it are given up."""
        rows = self.under_way[0]
        answered = False
        try:
            output = rows.shaped((yield from applied(rows.step, timeout)))
            answered = True
            self.under_way.popleft()
            return output
        finally:
            if not answered:
                self.give_up()

    def give_up(self) -> None:
        """Gives up the steps in flight. They may be applied or not; the sessions' next call finds out."""
        for state in self.states if self.under_way else ():
            state.astray = state.keep_bytes > 0
        self.under_way.clear()


def decode_pipeline(
    states: Sequence[SessionState], layer: int, options: StepOptions, window: int, alone: bool = False
) -> Pipeline:
    """Makes a pipeline of decodes. `alone`: of one session, without axis B."""
    return Pipeline("StreamDecode", states, lambda x: RowsStep(states, layer, x, options, alone), window)


def prefill_pipeline(state: SessionState, layer: int, options: StepOptions, window: int) -> Pipeline:
    """Makes a pipeline of a prompt's parts."""
    return Pipeline("StreamPrefill", [state], lambda x: PartStep(state, layer, x, options), window)
