"""Steps of arrays as flows, for `Session` and `Batch` and their asyncio twins.

Thread safety: as that of `session_flow`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from google.protobuf.message import Message

from gdn_client import session_flow
from gdn_client.errors import InvalidArgumentError
from gdn_client.flow import Flow
from gdn_client.inputs import DeltaRule, Input, map_tensors
from gdn_client.progress import Told
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.session_state import SessionState, StepOptions
from gdn_client.shared_memory import StepMemory
from gdn_client.steps import cut, fill_input, leading
from gdn_client.tensors import Array, is_torch, to_tensor


def _token_rank(given: Input) -> int:
    """Returns the number of axes of one token in the first tensor."""
    return 2 if isinstance(given, DeltaRule) else 1


def _with_axes(given: Input, axes: int, where: int) -> Input:
    """Inserts `axes` axes of length one, from axis `where` on."""
    index = (slice(None),) * where + (None,) * axes
    return map_tensors(given, lambda array: array[index])


def joined(parts: list[Array]) -> Array:
    """Returns the arrays as one, along the first axis."""
    if len(parts) == 1:
        return parts[0]
    if is_torch(parts[0]):
        import torch  # the caller has imported it

        return torch.cat(cast(Any, parts))
    return np.concatenate(parts)


def check_is_prompt(x: Input) -> None:
    """Raises ValueError if the input has no token axis."""
    if len(leading(x)) != _token_rank(x) + 1:
        raise ValueError(f"the input is {list(leading(x))}, expected an axis of tokens before those of one token")


def applied(step: session_flow.PrefillStep | session_flow.DecodeStep, timeout: float | None) -> Flow[Array]:
    """Applies a step in a call of its own, with tensors in shared memory if there is some. Returns its output."""
    begun = time.monotonic()
    region = yield from step.states[0].memory.open(timeout)
    return (yield from session_flow.applied(step, timeout, region, begun))


def prefill(
    state: SessionState,
    layer: int,
    x: Input,
    max_message_bytes: int,
    abilities: session_flow.Abilities,
    options: StepOptions,
    timeout: float | None,
    told: Told = lambda tokens: None,
    outputs: list[Array] | None = None,
) -> Flow[Array]:
    """Returns the outputs of the tokens `[T, ..]`. Makes as many calls as necessary, and reports each to `told`.

    `outputs` are those of tokens before `x`; the calls' outputs are added to them.
    """
    check_is_prompt(x)
    outputs = [] if outputs is None else outputs
    while not outputs or leading(x)[0] > 0:
        part = cut(x, 0, session_flow.tokens_a_call(x, max_message_bytes, abilities))
        tokens = leading(part)[0]
        try:
            outputs.append((yield from applied(session_flow.PrefillStep(state, layer, part, options), timeout)))
        except InvalidArgumentError as error:
            if tokens <= 1 or not abilities.learn(error):
                raise
            continue  # in smaller parts
        told(tokens)
        x = cut(x, tokens, leading(x)[0])
    return joined(outputs)


class _ArrayStep:
    """A step with one output, in a call of its own or in a stream (`pipeline.StreamStep`)."""

    step: session_flow.PrefillStep | session_flow.DecodeStep

    @property
    def layer(self) -> int:
        """The layer that it steps."""
        return self.step.layer

    @property
    def moves(self) -> list[int]:
        """Number of tokens that each session's count grows by."""
        return self.step.tokens

    def shaped(self, output: Array) -> Array:
        """Returns the output with the axes of x."""
        return output

    def message(self, ahead: Sequence[int] | None) -> Message:
        """Returns the stream's message, for sessions that have `ahead` more tokens in flight before it."""
        fill_input(self.step.request, self.step.given, to_tensor)
        request = self.step.make(ahead)
        if isinstance(request, step_pb2.PrefillRequest):
            return step_pb2.StreamPrefillRequest(segment=request)
        return step_pb2.StreamDecodeRequest(step=request)

    def taken(self, result: Any) -> Array:
        """Returns the output of the stream's reply, and notes that the sessions have advanced."""
        return self.shaped(self.step.taken(result, StepMemory(None, self.step.request)))

    def again(self, timeout: float | None) -> Flow[Array]:
        """Repeats the step in a call of its own, and returns its output."""
        return self.shaped((yield from session_flow.applied(self.step, timeout)))


class PartStep(_ArrayStep):
    """A part of a prompt, `[T, ..]`."""

    def __init__(self, state: SessionState, layer: int, x: Input, options: StepOptions) -> None:
        check_is_prompt(x)
        self.step = session_flow.PrefillStep(state, layer, x, options)


class RowsStep(_ArrayStep):
    """A decode of `[B, ..]`, with one token in each row, or of `[B, T, ..]`. `alone`: one session, without axis B."""

    def __init__(
        self, states: Sequence[SessionState], layer: int, x: Input, options: StepOptions, alone: bool = False
    ) -> None:
        given = _with_axes(x, 1, 0) if alone else x
        rank = len(leading(given)) - _token_rank(x)
        if rank not in (1, 2) or leading(given)[0] != len(states):
            rows = "" if alone else f"{len(states)}, "
            what = "a token, or an axis of tokens" if alone else "a row a session"
            raise ValueError(f"the input is {list(leading(x))}, expected [{rows}..] or [{rows}T, ..]: {what}")
        self._where: Any = (0,) if alone else (slice(None),)
        if rank == 1:
            given = _with_axes(given, 1, 1)
            self._where += (0,)
        self.step = session_flow.DecodeStep(states, layer, given, options)

    def shaped(self, output: Array) -> Array:
        """Returns the output with the axes of x."""
        return cast(Array, output[self._where])

    def flow(self, timeout: float | None) -> Flow[Array]:
        """Applies the step in a call of its own, and returns the output with the axes of x."""
        return self.shaped((yield from applied(self.step, timeout)))


def decode(
    states: Sequence[SessionState],
    layer: int,
    x: Input,
    options: StepOptions,
    timeout: float | None,
    alone: bool = False,
) -> Flow[Array]:
    """Returns the outputs of `[B, ..]`, with one token in each row, or of `[B, T, ..]`. `alone`: without axis B."""
    return (yield from RowsStep(states, layer, x, options, alone).flow(timeout))
