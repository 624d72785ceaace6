"""The steps of one stream that are in flight. `streams` sends them and reads their outputs.

Thread safety: as that of a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from gdn_client.array_flow import PartStep, RowsStep
from gdn_client.flow import Flow
from gdn_client.mixed import MixedStep
from gdn_client.session_flow import Abilities
from gdn_client.session_state import SessionState, StepOptions
from gdn_client.step_call import StepCall, StepResults, StepRow
from gdn_client.tensors import Array

DEFAULT_WINDOW = 8
PREFILL_WINDOW = 2  # one part is computed while the next travels
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class StreamStep(Protocol[T_co]):
    """A step of a stream."""

    @property
    def layer(self) -> int:
        """The layer that it steps."""

    @property
    def moves(self) -> list[int]:
        """Number of tokens that each session's count grows by."""

    def message(self, ahead: Sequence[int] | None) -> Message:
        """Returns the stream's message, for sessions that have `ahead` more tokens in flight before it."""

    def taken(self, result: Any) -> T_co:
        """Returns the output of the stream's reply, and notes that the sessions have advanced."""

    def again(self, timeout: float | None) -> Flow[T_co]:
        """Repeats the step in a call of its own, and returns its output."""


class Pipeline(Generic[T]):
    """The steps of one stream that are in flight.

    `make` makes a step from an input of the stream. `is_known` tells whether the server may know the stream's method;
    without it, each step is a call of its own.
    """

    def __init__(
        self,
        method: str,
        states: Sequence[SessionState],
        make: Callable[[Any], StreamStep[T]],
        window: int,
        is_known: Callable[[], bool] = lambda: True,
    ) -> None:
        if window < 1:
            raise ValueError(f"window is {window}, expected at least 1")
        for state in states:
            state.check_not_ended()
        self.method = method
        self.states = states
        self.window = window
        self.under_way: deque[StreamStep[T]] = deque()
        self.is_known = is_known
        self._make = make

    @property
    def is_full(self) -> bool:
        """Whether an output must be read before the next step."""
        return len(self.under_way) >= self.window

    @property
    def affinity(self) -> str:
        """The stream's routing key."""
        return self.states[0].session.affinity

    def add(self, x: Any) -> Message:
        """Adds the next step, and returns its message."""
        step = self._make(x)
        ahead = [sum(tokens) for tokens in zip(*(one.moves for one in self.under_way), strict=True)] or None
        message = step.message(ahead)
        self.under_way.append(step)
        for row, state in enumerate(self.states):
            known = state.layer(step.layer)
            known.reached = max(known.reached, known.count + sum(one.moves[row] for one in self.under_way))
        return message

    def take(self, reply: Any) -> T | None:
        """Returns the oldest step's output, or None if the step has failed."""
        if reply.status.code != 0:
            return None
        return self.under_way.popleft().taken(reply.result)

    def again(self, timeout: float | None) -> Flow[T]:
        """Repeats the oldest step in flight in a call of its own. If it fails, the steps behind it are given up."""
        step = self.under_way[0]
        answered = False
        try:
            output = yield from step.again(timeout)
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
) -> Pipeline[Array]:
    """Makes a pipeline of decodes. `alone`: of one session, without axis B."""
    return Pipeline("StreamDecode", states, lambda x: RowsStep(states, layer, x, options, alone), window)


def prefill_pipeline(state: SessionState, layer: int, options: StepOptions, window: int) -> Pipeline[Array]:
    """Makes a pipeline of a prompt's parts."""
    return Pipeline("StreamPrefill", [state], lambda x: PartStep(state, layer, x, options), window)


def step_pipeline(
    states: Sequence[SessionState], layer: int, options: StepOptions, abilities: Abilities, window: int
) -> Pipeline[StepResults]:
    """Makes a pipeline of steps with a row for each session. If the server does not know them, each is its own call."""

    def make(rows: Sequence[StepRow]) -> MixedStep:
        for at, row in enumerate(rows):
            if row.kind == "draft" or row.accept is not None:
                # Such a step may leave the counts alone, and the server would apply it behind one that has failed.
                raise ValueError(
                    f"row {at} drafts or accepts, expected rows of a stream to decode or prefill; call step for drafts"
                )
        return MixedStep(states, StepCall(layer, rows, options), abilities)

    return Pipeline("StreamStep", states, make, window, lambda: abilities.step)
