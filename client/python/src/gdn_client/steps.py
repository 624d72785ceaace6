"""Requests of steps, and the steps that a client keeps in case the server loses them.

Thread safety: for one thread at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gdn_client.inputs import DeltaRule, Input, Projected, map_tensors, tensors_of
from gdn_client.proto.gdn.v1 import step_pb2, tensor_pb2
from gdn_client.tensors import Array


class Encoder(Protocol):
    """Puts an array into a message, by its bytes or by where they lie in shared memory."""

    def __call__(self, array: Array) -> tensor_pb2.Tensor: ...


def fill_input(request: step_pb2.PrefillRequest | step_pb2.DecodeRequest, given: Input, encode: Encoder) -> None:
    """Sets the request's input."""
    if isinstance(given, Projected):
        target: step_pb2.ProjectedInput | step_pb2.DeltaRuleInput | step_pb2.HiddenStatesInput = request.projected
    elif isinstance(given, DeltaRule):
        target = request.delta_rule
        if given.scale is not None:
            request.delta_rule.scale = given.scale
        request.delta_rule.use_qk_l2norm = given.use_qk_l2norm
        request.delta_rule.allow_beta_to_two = given.allow_beta_to_two
    else:
        target = request.hidden_states
    for name, array in tensors_of(given).items():
        getattr(target, name).CopyFrom(encode(array))


def tensors_in(request: step_pb2.PrefillRequest | step_pb2.DecodeRequest) -> Iterator[tensor_pb2.Tensor]:
    """Those of the request's input."""
    kind = request.WhichOneof("input")
    for descriptor, value in getattr(request, kind).ListFields() if kind is not None else ():
        if descriptor.message_type is not None:
            yield value


def output_elements(given: Input) -> int:
    """Of what a step gives: what comes out is as large as one of what goes in."""
    output = tensors_of(given)[{DeltaRule: "v", Projected: "z"}.get(type(given), "hidden_states")]
    return math.prod(output.shape)


def leading(given: Input) -> tuple[int, ...]:
    """The shape of the first tensor."""
    return tuple(next(iter(tensors_of(given).values())).shape)


def cut(given: Input, begin: int, end: int, axis: int = 0) -> Input:
    """Tokens, or rows, [begin, end) of each tensor."""
    where = (slice(None),) * axis + (slice(begin, end),)
    return map_tensors(given, lambda array: array[where])


@dataclass
class KeptStep:
    """One step of one layer of one session, as it can be sent again."""

    before: int  # tokens that the layer had seen
    tokens: int
    request: step_pb2.PrefillRequest | step_pb2.DecodeRequest  # of this session alone

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.request.ByteSize()


@dataclass
class LayerSteps:
    """A layer's steps since its newest durable copy, in order and without gaps."""

    count: int = 0  # tokens that the layer has seen
    kept: deque[KeptStep] = field(default_factory=deque)
    draft: KeptStep | None = None  # computed, and waits to be accepted

    def add(self, step: KeptStep) -> None:
        """`step.before` is `count`."""
        self.count = step.before + step.tokens
        if step.tokens > 0:
            self.kept.append(step)

    def trim(self, durable: int) -> int:
        """Forgets what a durable copy of so many tokens has; returns the bytes."""
        freed = 0
        while self.kept and self.kept[0].before + self.kept[0].tokens <= durable:
            freed += self.kept.popleft().bytes
        return freed

    def since(self, count: int) -> list[KeptStep] | None:
        """Those to send where the server has seen `count`; None where they are not kept from there."""
        if count == self.count:
            return []
        steps = [step for step in self.kept if step.before >= count]
        return steps if steps and steps[0].before == count else None


def rows_of(
    request: step_pb2.DecodeRequest, bytes_of: Callable[[tensor_pb2.Tensor], bytes]
) -> list[step_pb2.DecodeRequest]:
    """The request for each of its sessions alone, with the tensors in it."""
    kind = request.WhichOneof("input")
    assert kind is not None
    fields = getattr(request, kind).ListFields()
    # Once for all rows: each look at a message's bytes is a copy.
    data = {descriptor.name: bytes_of(value) for descriptor, value in fields if descriptor.message_type is not None}
    rows = []
    for row, session in enumerate(request.sessions):
        alone = step_pb2.DecodeRequest(sessions=[session], layer=request.layer, output_dtype=request.output_dtype)
        alone.allow_non_finite = request.allow_non_finite
        alone.draft = request.draft
        if request.lengths:
            alone.lengths.append(request.lengths[row])
        target = getattr(alone, kind)
        for descriptor, value in fields:
            if descriptor.name in data:
                _take_row(value, row, data[descriptor.name], getattr(target, descriptor.name))
            else:
                setattr(target, descriptor.name, value)
        rows.append(alone)
    return rows


def _take_row(tensor: tensor_pb2.Tensor, row: int, data: bytes, to: tensor_pb2.Tensor) -> None:
    """Row `row` of a `[B, ..]` tensor, as `[1, ..]`."""
    size = len(data) // tensor.shape[0]
    to.dtype = tensor.dtype
    to.shape.append(1)
    to.shape.extend(tensor.shape[1:])
    to.data = data[row * size : (row + 1) * size]


def first_tokens(request: step_pb2.DecodeRequest, tokens: int) -> step_pb2.DecodeRequest:
    """A draft's first tokens, as the plain step that they have become."""
    plain = step_pb2.DecodeRequest()
    plain.CopyFrom(request)
    plain.draft = False
    del plain.lengths[:]
    plain.lengths.append(tokens)
    return plain
