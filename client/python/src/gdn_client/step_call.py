"""What a caller of `Batch.step` asks for, and what it gets: rows of one layer, and their results.

Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np

from gdn_client import array_flow
from gdn_client.errors import GdnError
from gdn_client.inputs import DeltaRule, Input, Projected, tensors_of
from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.session_flow import Accepted, path_of
from gdn_client.session_state import StepOptions
from gdn_client.steps import cut, leading
from gdn_client.tensors import Array, element_name, host_array, is_torch

Kind: TypeAlias = Literal["decode", "draft", "prefill"]
KINDS: dict[str, step_pb2.StepKind] = {
    "decode": step_pb2.STEP_KIND_DECODE,
    "draft": step_pb2.STEP_KIND_DRAFT,
    "prefill": step_pb2.STEP_KIND_PREFILL,
}
_FLAGS = ("scale", "use_qk_l2norm", "allow_beta_to_two")


@dataclass(frozen=True, eq=False)
class StepRow:
    """One session's part of a `Batch.step`.

    Attributes:
        x: hidden states `[T, D]` for T tokens and hidden size D, or a `Projected` or a `DeltaRule` with T tokens. T may
            be 0, for example if the row only accepts. If the call has a packed input, x is T, and the row takes the
            next T tokens of that input.
        kind: how the tokens are computed. "decode" is `Session.decode`, "draft" is that with `draft`, and "prefill" is
            `Session.prefill`.
        parents: for a draft that is a tree, as in `Session.decode`. None: a chain.
        accept: tokens of this layer's draft that are accepted first, as in `Session.accept`. The other tokens are
            dropped. 0 drops the whole draft. None: the layer must have no draft. Other layers keep their drafts.

    """

    x: Input | int
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


class StepResults(Sequence[StepResult]):
    """The results of a step's rows, in their order.

    A result is made when it is asked for, so a caller that reads `output` alone does not pay for the rows.
    """

    def __init__(self, output: Array | None, tokens: Sequence[int], counts: Sequence[int]) -> None:
        """Takes the output of all rows, one after the other, and each row's tokens and token count."""
        self._output, self._tokens, self._counts = output, tokens, counts
        self._begins: list[int] = []
        self._made: Sequence[StepResult] = ()

    @classmethod
    def of(cls, made: Sequence[StepResult]) -> StepResults:
        """Returns the results of rows that were applied, or failed, one by one."""
        results = cls(None, [], [result.token_count for result in made])
        results._made = made
        return results

    @property
    def output(self) -> Array | None:
        """The outputs of all rows, one after the other, as a packed input has them. None if a row has failed."""
        outputs = [result.output for result in self._made]
        if outputs and all(output is not None for output in outputs):
            self._output, self._made = array_flow.joined(cast(list[Array], outputs)), ()
            self._tokens = [leading(cast(Array, output))[0] for output in outputs]
        return self._output

    @property
    def token_counts(self) -> list[int]:
        """Each session's token count in the layer, as far as the client knows."""
        return list(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    @overload
    def __getitem__(self, at: int) -> StepResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[StepResult]: ...
    def __getitem__(self, at: int | slice) -> StepResult | list[StepResult]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        if self._made or self._output is None:
            return self._made[at]
        if not self._begins:
            self._begins = list(accumulate(self._tokens, initial=0))
        count = self._counts[at]  # raises IndexError
        begin = self._begins[:-1][at]
        return StepResult(self._output[begin : begin + self._tokens[at]], count)

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass(frozen=True)
class StepCall:
    """A step of one layer, as the caller asks for it.

    Attributes:
        layer: index of the layer.
        rows: a row for each session.
        options: dtype of the outputs, and whether NaN and Inf are accepted.
        partial_ok: let each row fail alone.
        timeout: seconds for each call. None: the client's.
        x: the packed input, with the tokens of all rows one after the other. None: each row has its own input.

    """

    layer: int
    rows: Sequence[StepRow]
    options: StepOptions
    partial_ok: bool = False
    timeout: float | None = None
    x: Input | None = None

    def tokens(self) -> list[int]:
        """Returns each row's number of tokens.

        Raises:
            ValueError: a row is wrong in itself, or the rows do not fit each other or the packed input.

        """
        for at, row in enumerate(self.rows):
            if row.kind not in KINDS:
                raise ValueError(f"row {at} has kind {row.kind!r}, expected one of {', '.join(KINDS)}")
            if row.parents is not None and row.kind != "draft":
                raise ValueError(f"row {at} has parents, which are a draft's, and kind {row.kind!r}")
            if row.accept is not None and not isinstance(row.accept, Sequence) and row.accept < 0:
                raise ValueError(f"row {at} accepts {row.accept} tokens, expected 0 or more")
        return _own_tokens(self.rows) if self.x is None else _packed_tokens(self.rows, self.x)

    def packed(self) -> Input:
        """Returns the tokens of all rows, one after the other."""
        if self.x is not None:
            return self.x
        given = [row.x for row in self.rows]
        if len(given) == 1:
            return cast(Input, given[0])
        if not isinstance(given[0], Projected | DeltaRule):
            return array_flow.joined(cast(list[Array], given))
        return packed(cast(list[Input], given))

    def with_own_inputs(self) -> StepCall:
        """Returns the same call, in which each row has its own input."""
        if self.x is None:
            return self
        rows, begin = [], 0
        for row, tokens in zip(self.rows, self.tokens(), strict=True):
            rows.append(replace(row, x=cut(self.x, begin, begin + tokens)))
            begin += tokens
        return replace(self, rows=rows, x=None)


def digest_of(layer: int, given: StepRow, options: StepOptions) -> bytes:
    """Returns a digest that is equal for rows with the same effect on a session."""
    rest = [getattr(given.x, name, None) for name in _FLAGS]
    path = None if given.accept is None else path_of(given.accept)
    what = ("step", layer, options.output_dtype, options.allow_non_finite, given.kind, path, rest)
    digest = hashlib.blake2b(repr((*what, list(given.parents or ()))).encode())
    for name, array in tensors_of(cast(Input, given.x)).items():
        digest.update(f"{name} {tuple(array.shape)} {element_name(array)}".encode())
        digest.update(host_array(array).tobytes())
    return digest.digest()


def _own_tokens(rows: Sequence[StepRow]) -> list[int]:
    """Returns the number of tokens of each row's input. This is quick, because every call checks every row."""
    first: Any = rows[0].x
    if not isinstance(first, Projected | DeltaRule | int | np.integer):
        kind, dtype, shape = type(first), first.dtype, first.shape[1:]
        tokens = []
        for row in rows:
            x: Any = row.x
            if type(x) is not kind or x.dtype != dtype or x.shape[1:] != shape:
                break
            tokens.append(x.shape[0])
        if len(tokens) == len(rows) and len(shape) == 1:
            return tokens
    for at, row in enumerate(rows):
        if isinstance(row.x, int | np.integer):
            raise ValueError(f"row {at} has {row.x} tokens, and the call has no packed input x; give the row its own")
        array_flow.check_is_prompt(row.x)
        if _form(row.x) != _form(cast(Input, first)):
            raise ValueError(
                f"row {at} and row 0 have inputs of different kinds, libraries, dtypes, shapes of a token or options: "
                f"{_form(row.x)} and {_form(cast(Input, first))}"
            )
    return [leading(cast(Input, row.x))[0] for row in rows]


def _packed_tokens(rows: Sequence[StepRow], x: Input) -> list[int]:
    array_flow.check_is_prompt(x)
    counts: list[int] = []
    for at, row in enumerate(rows):
        own: Any = row.x
        if not isinstance(own, int | np.integer) or own < 0:
            raise ValueError(f"row {at} has x {own!r}, expected its number of tokens, because the call has an input x")
        counts.append(int(own))
    if sum(counts) != leading(x)[0]:
        raise ValueError(f"the rows have {sum(counts)} tokens together, and x has {leading(x)[0]}")
    return counts


def _form(x: Input) -> list[object]:
    kind = type(x).__name__ if isinstance(x, Projected | DeltaRule) else "hidden states"
    tensors = [(is_torch(array), element_name(array), *array.shape[1:]) for array in tensors_of(x).values()]
    return [kind, tensors, *(getattr(x, name, None) for name in _FLAGS)]


def with_tensors(like: Input, make: Callable[[str], Array]) -> Input:
    """Returns an input of the same kind with other tensors."""
    tensors: dict[str, Any] = {name: make(name) for name in tensors_of(like)}
    return replace(like, **tensors) if isinstance(like, Projected | DeltaRule) else tensors["hidden_states"]


def packed(inputs: Sequence[Input]) -> Input:
    """Returns the tokens of all inputs, one after the other."""
    return with_tensors(inputs[0], lambda name: array_flow.joined([tensors_of(x)[name] for x in inputs]))
