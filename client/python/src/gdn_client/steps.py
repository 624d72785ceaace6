"""Requests of steps, and the steps that a client keeps in case the server loses them.

Thread safety: for one thread at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gdn_client.inputs import DeltaRule, Input, Projected, map_tensors, tensors_of
from gdn_client.proto.gdn.v1 import step_pb2, tensor_pb2
from gdn_client.tensors import Array, dtype_code, element_name, host_array

# A request with a step's tensors.
StepRequest: TypeAlias = step_pb2.PrefillRequest | step_pb2.DecodeRequest | step_pb2.StepRequest
# Puts an array into a message, either as bytes or as a place in shared memory.
Encoder: TypeAlias = Callable[[Array], tensor_pb2.Tensor]

_DATA: int = tensor_pb2.Tensor.DESCRIPTOR.fields_by_name["data"].number
_OUTPUT: int = step_pb2.StepResponse.DESCRIPTOR.fields_by_name["output"].number << 3 | 2  # its tag
_INPUT: int = step_pb2.StepRequest.DESCRIPTOR.fields_by_name["hidden_states"].number
_HIDDEN_STATES: int = step_pb2.HiddenStatesInput.DESCRIPTOR.fields_by_name["hidden_states"].number
_SMALL_REPLY = 4096  # bytes; a copy of fewer takes less time than to find the output


def fill_input(request: StepRequest, given: Input, encode: Encoder) -> None:
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


def name_sessions(
    request: step_pb2.PrefillRequest | step_pb2.DecodeRequest, request_id: str, rows: Sequence[tuple[str, int, int]]
) -> None:
    """Sets the request's id, and the name, the epoch and the expected token count of each session."""
    request.request_id = request_id
    if isinstance(request, step_pb2.PrefillRequest):
        [(request.session, request.session_epoch, request.expected_token_count)] = rows
    else:
        request.sessions[:], request.session_epochs[:], request.expected_token_counts[:] = zip(*rows, strict=True)


def tensors_in(request: StepRequest) -> Iterator[tensor_pb2.Tensor]:
    """Yields the tensors of the request's input."""
    kind = request.WhichOneof("input")
    for descriptor, value in getattr(request, kind).ListFields() if kind is not None else ():
        if descriptor.message_type is not None:
            yield value


def output_elements(given: Input) -> int:
    """Returns the number of elements of the step's output, which has the size of one of the inputs."""
    output = tensors_of(given)[{DeltaRule: "v", Projected: "z"}.get(type(given), "hidden_states")]
    return math.prod(output.shape)


def leading(given: Input) -> tuple[int, ...]:
    """Returns the shape of the first tensor."""
    return tuple(next(iter(tensors_of(given).values())).shape)


def cut(given: Input, begin: int, end: int, axis: int = 0) -> Input:
    """Returns the tokens, or rows, [begin, end) of each tensor."""
    where = (slice(None),) * axis + (slice(begin, end),)
    return map_tensors(given, lambda array: array[where])


def varint(number: int) -> bytes:
    """Returns a number as protobuf writes it."""
    if 0x7F < number < 1 << 14:  # most numbers; this is quicker
        return bytes((0x80 | number & 0x7F, number >> 7))
    digits = bytearray()
    while number > 0x7F:
        digits.append(0x80 | number & 0x7F)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def field_head(number: int, size: int) -> bytes:
    """Returns the tag and the length of a field of `size` bytes."""
    return varint(number << 3 | 2) + varint(size)


@lru_cache(maxsize=256)
def _tensor_head(number: int, dtype: tensor_pb2.DType, shape: tuple[int, ...], size: int) -> bytes:
    """Returns what is before the elements of a tensor of `size` bytes, which is the field `number`."""
    head = tensor_pb2.Tensor(dtype=dtype, shape=shape).SerializeToString() + field_head(_DATA, size)
    return field_head(number, len(head) + size) + head


def hidden_states_pieces(array: Array) -> list[Any]:
    """Returns the bytes of a StepRequest's input of hidden states, as `input_pieces` would, without a message."""
    flat = host_array(array).reshape(-1).view(np.uint8)
    head = _tensor_head(_HIDDEN_STATES, dtype_code(element_name(array)), tuple(array.shape), flat.size)
    return [field_head(_INPUT, len(head) + flat.size) + head, flat]


def input_pieces(request: StepRequest, arrays: Sequence[npt.NDArray[Any]]) -> list[Any]:
    """Returns the bytes of the request's input, whose tensors have the elements of `arrays`, which are not copied.

    The request's own tensors must have no elements. They are removed from the request.
    """
    kind = request.WhichOneof("input")
    assert kind is not None
    given, left = getattr(request, kind), iter(arrays)
    pieces: list[Any] = []
    for descriptor, tensor in given.ListFields():
        if descriptor.message_type is None:
            continue
        flat = next(left).reshape(-1).view(np.uint8)
        head = tensor.SerializeToString() + field_head(_DATA, flat.size)
        pieces += [field_head(descriptor.number, len(head) + flat.size) + head, flat]
        given.ClearField(descriptor.name)
    flags = given.SerializeToString()
    size = len(flags) + sum(len(piece) for piece in pieces)
    number = request.DESCRIPTOR.fields_by_name[kind].number
    request.ClearField(kind)
    return [field_head(number, size), *pieces, flags]


class SentStep:
    """The bytes of a step's request. The tensors were copied only once, into these bytes.

    Attributes:
        name: the first session, for routing.

    """

    __slots__ = ("_bytes", "_kind", "name")

    def __init__(self, request: StepRequest, pieces: Sequence[Any], name: str = "") -> None:
        """Joins a request, and pieces with more of its fields. `name`: the first session, if it is in the pieces."""
        if name:
            self.name = name
        elif isinstance(request, step_pb2.PrefillRequest):
            self.name = request.session
        else:
            self.name = request.sessions[0] if isinstance(request, step_pb2.DecodeRequest) else request.rows[0].session
        self._kind = type(request)
        self._bytes = b"".join((request.SerializeToString(), *pieces))

    def SerializeToString(self) -> bytes:  # noqa: N802 - the connection calls it as a message's
        """Returns the bytes."""
        return self._bytes

    def ByteSize(self) -> int:  # noqa: N802
        """Returns the number of bytes."""
        return len(self._bytes)

    def parsed(self) -> StepRequest:
        """Returns the request as a message."""
        return self._kind.FromString(self._bytes)


def _read_varint(wire: bytes, at: int) -> tuple[int, int]:
    """Returns the number at a place, and the place behind it. Raises IndexError at the end of the bytes."""
    number, shift = 0, 0
    while True:
        digit = wire[at]
        number |= (digit & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if digit < 0x80:
            return number, at


class StepReply:
    """A step's reply. Its output has no elements; they are `data`, which is not copied. It has the reply's fields."""

    __slots__ = ("_message", "data")

    def __init__(self, message: Any, data: memoryview) -> None:
        self._message, self.data = message, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def read_reply(kind: Any, wire: bytes) -> Any:
    """Parses a step's reply of this kind.

    Returns:
        A StepReply if the reply is large and has its output first, as servers write it. Else a message.

    """
    if len(wire) >= _SMALL_REPLY and wire[0] == _OUTPUT:
        try:
            size, begin = _read_varint(wire, 1)
            at, end = begin, begin + size
            while at < end:
                tag, behind = _read_varint(wire, at)
                number, behind = _read_varint(wire, behind)
                if tag == _DATA << 3 | 2 and behind + number <= end <= len(wire):
                    head = wire[begin:at] + wire[behind + number : end]
                    message = kind.FromString(field_head(_OUTPUT >> 3, len(head)) + head + wire[end:])
                    if not message.output.data:  # else it occurs twice
                        return StepReply(message, memoryview(wire)[behind : behind + number])
                    break
                if tag & 7 not in (0, 2):
                    break
                at = behind + number if tag & 7 == 2 else behind
        except IndexError:
            pass  # malformed bytes
    return kind.FromString(wire)


# A request that a client keeps: as it was sent, or as a message with its tensors.
KeptRequest: TypeAlias = StepRequest | SentStep


class KeptStep:
    """One step of one layer of one session, kept so that it can be sent again. Forked sessions share it.

    Attributes:
        before: tokens that the layer had seen before the step.
        tokens: number of tokens of the step.
        bytes: memory that the step takes in the client.

    """

    __slots__ = ("_request", "_row", "before", "bytes", "tokens")

    def __init__(
        self,
        before: int,
        tokens: int,
        request: KeptRequest,
        row: int | None = None,
        size: int | None = None,
    ) -> None:
        """Keeps a request of this session, or row `row` of a request of several, counted as `size` bytes."""
        self.before, self.tokens = before, tokens
        self._request, self._row = request, row
        self.bytes: int = request.ByteSize() if size is None else size

    @property
    def after(self) -> int:
        """Tokens that the layer has seen after the step."""
        return self.before + self.tokens

    def alone(self) -> step_pb2.PrefillRequest | step_pb2.DecodeRequest:
        """Returns a request for this session only, which the caller may change."""
        request = self._request.parsed() if isinstance(self._request, SentStep) else self._request
        if isinstance(request, step_pb2.StepRequest):
            return rows_alone(request)[self._row or 0]
        if isinstance(request, step_pb2.DecodeRequest) and self._row is not None:
            return row_of(request, self._row)
        copy = type(request)()
        copy.CopyFrom(request)  # type: ignore[arg-type]
        return copy


@dataclass
class LayerSteps:
    """A layer's steps that can be sent again, in order and without gaps.

    Attributes:
        count: tokens that the layer has seen, as far as the client knows.
        begin: steps from this count on are kept.
        reached: most tokens that the server's layer can have seen by calls of this client, answered or not.
        durable: most tokens that the server has reported as durable.
        kept: the steps.
        draft: the draft that waits to be accepted, if its inputs are known here.
        draft_tokens: tokens of the draft that waits.
        accepted: tokens of the last draft that AcceptTokens accepted in the place of `StepRow.accept`, and the count
            after them. None: there was no such acceptance.

    """

    count: int = 0
    begin: int = 0
    reached: int = 0
    durable: int = 0
    kept: deque[KeptStep] = field(default_factory=deque)
    draft: KeptStep | None = None
    draft_tokens: int = 0
    accepted: tuple[list[int], int] | None = None

    def drop_first(self) -> int:
        """Drops the oldest step, and returns its bytes."""
        first = self.kept.popleft()
        self.begin = first.after
        return first.bytes

    def trim(self) -> int:
        """Drops the steps that a durable copy contains, and returns their bytes."""
        freed = 0
        while self.kept and self.kept[0].after <= self.durable:
            freed += self.drop_first()
        return freed

    def since(self, count: int) -> list[KeptStep] | None:
        """Returns the steps to send to a server that has seen `count` tokens. None if no kept step begins there."""
        if count == self.count:
            return []
        steps = [step for step in self.kept if step.before >= count]
        return steps if steps and steps[0].before == count else None

    def cut_to(self, count: int, *, same_history: bool) -> int:
        """Goes back to `count`, drops the later steps, and returns their bytes.

        Args:
            count: tokens.
            same_history: whether the kept steps led to this count. If not, none of them can be used.

        """
        usable = same_history and self.since(count) is not None
        gone = [step for step in self.kept if not usable or step.before >= count]
        self.kept = deque(step for step in self.kept if usable and step.before < count)
        if not usable:
            self.begin = count
        self.count = self.reached = count
        self.draft, self.draft_tokens = None, 0
        return sum(step.bytes for step in gone)


def row_of(request: step_pb2.DecodeRequest, row: int) -> step_pb2.DecodeRequest:
    """Returns the request for its session `row` only. The request must contain its tensors."""
    alone = step_pb2.DecodeRequest(
        sessions=[request.sessions[row]], layer=request.layer, output_dtype=request.output_dtype
    )
    alone.allow_non_finite = request.allow_non_finite
    alone.draft = request.draft
    if request.lengths:
        alone.lengths.append(request.lengths[row])
    alone.draft_parents.extend(_parents_of(request, row))
    kind = request.WhichOneof("input")
    assert kind is not None
    source, target = getattr(request, kind), getattr(alone, kind)
    for descriptor, value in source.ListFields():
        if descriptor.message_type is not None:
            getattr(target, descriptor.name).CopyFrom(_take_row(value, row))
        else:
            setattr(target, descriptor.name, value)
    return alone


def rows_alone(request: step_pb2.StepRequest) -> list[step_pb2.PrefillRequest | step_pb2.DecodeRequest]:
    """Returns a request for each row only, without its acceptance. Every server knows its method.

    The request must contain its tensors.
    """
    alone: list[step_pb2.PrefillRequest | step_pb2.DecodeRequest] = []
    for row in request.rows:
        if row.kind == step_pb2.STEP_KIND_PREFILL:
            alone.append(step_pb2.PrefillRequest(session=row.session))
        else:
            is_draft = row.kind == step_pb2.STEP_KIND_DRAFT
            alone.append(
                step_pb2.DecodeRequest(sessions=[row.session], draft=is_draft, draft_parents=row.draft_parents)
            )
        alone[-1].layer, alone[-1].output_dtype = request.layer, request.output_dtype
        alone[-1].allow_non_finite = request.allow_non_finite
    kind = request.WhichOneof("input")
    assert kind is not None
    for descriptor, value in getattr(request, kind).ListFields():
        if descriptor.message_type is None:
            for one in alone:
                setattr(getattr(one, kind), descriptor.name, value)
            continue
        data, begin = value.data, 0  # each access makes a copy
        size = len(data) // max(1, value.shape[0])
        for row, one in zip(request.rows, alone, strict=True):
            axes = [row.token_count] if isinstance(one, step_pb2.PrefillRequest) else [1, row.token_count]
            end = begin + row.token_count * size
            part = tensor_pb2.Tensor(dtype=value.dtype, shape=[*axes, *value.shape[1:]], data=data[begin:end])
            getattr(getattr(one, kind), descriptor.name).CopyFrom(part)
            begin = end
    return alone


def _parents_of(request: step_pb2.DecodeRequest, row: int) -> Sequence[int]:
    """Returns the parents of a row's tokens. All rows may share one tree."""
    parents, tokens = request.draft_parents, next(tensors_in(request)).shape[1]
    return parents if len(parents) == tokens else parents[row * tokens : (row + 1) * tokens]


def _take_row(tensor: tensor_pb2.Tensor, row: int) -> tensor_pb2.Tensor:
    """Returns row `row` of a `[B, ..]` tensor, as `[1, ..]`."""
    data = tensor.data  # each access makes a copy
    size = len(data) // tensor.shape[0]
    return tensor_pb2.Tensor(dtype=tensor.dtype, shape=[1, *tensor.shape[1:]], data=data[row * size : (row + 1) * size])


def path_tokens(request: step_pb2.DecodeRequest, path: Sequence[int]) -> step_pb2.DecodeRequest:
    """Returns a draft's accepted tokens as a plain step, which has the same effect."""
    plain = step_pb2.DecodeRequest()
    plain.CopyFrom(request)
    plain.draft = False
    del plain.draft_parents[:]
    del plain.lengths[:]
    for tensor in tensors_in(plain):
        data, size = tensor.data, len(tensor.data) // tensor.shape[1]
        tensor.data = b"".join(data[token * size : (token + 1) * size] for token in path)
        tensor.shape[1] = len(path)
    return plain
