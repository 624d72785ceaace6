"""The first try of a `mixed.MixedStep` whose sessions need no care first, which is nearly every step.

It makes no objects and no messages for rows: it writes the rows' bytes, and notes the answer in one loop. `mixed` goes
on from here if the try fails, or if a row has failed.
Thread safety: as for sessions, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gdn_client.proto.gdn.v1 import step_pb2
from gdn_client.session_flow import check_count, note_acceptance, path_of
from gdn_client.session_state import SessionState
from gdn_client.shared_memory import StepMemory
from gdn_client.step_call import KINDS, Kind, StepCall, StepRow
from gdn_client.steps import KeptRequest, KeptStep, SentStep, field_head, rows_alone, varint

_ROWS = step_pb2.StepRequest.DESCRIPTOR.fields_by_name["rows"].number
_EXPECTED = bytes([step_pb2.StepRow.DESCRIPTOR.fields_by_name["expected_token_count"].number << 3])  # its tag
_ROW_HEADS = [field_head(_ROWS, size) for size in range(256)]

# The arguments of `KeptStep` for one row, which is kept in case the server loses it.
Kept = tuple[KeptRequest, int | None, int | None]


def is_plain(states: Sequence[SessionState], layer: int) -> bool:
    """Whether all sessions are as the client knows them, so that nothing has to be done before the step."""
    return all(
        not (
            state.astray
            or state.ended
            or state.restoring
            or state.given_up is not None
            or state.part_done is not None
            or state.kept_bytes > state.keep_bytes
        )
        and layer in state.layers
        for state in states
    )


@lru_cache(maxsize=1024)
def _plain_row(tokens: int, kind: Kind, accepted: int | None) -> bytes:
    row = step_pb2.StepRow(token_count=tokens, kind=KINDS[kind])
    if accepted is not None:
        row.accept_before.accepted_tokens = accepted
    return row.SerializeToString()


def fill_row(row: step_pb2.StepRow, given: StepRow, tokens: int, *, accepts: bool = True) -> None:
    """Sets what a row asks for, but for its session and the counts that depend on it."""
    row.token_count, row.kind = tokens, KINDS[given.kind]
    row.draft_parents.extend(given.parents or ())
    if given.accept is None or not accepts:
        return
    path = path_of(given.accept)
    if isinstance(given.accept, Sequence) and path:
        row.accept_before.path.extend(path)
    else:
        row.accept_before.accepted_tokens = len(path)


def row_bytes(states: Sequence[SessionState], call: StepCall, tokens: Sequence[int]) -> bytes:
    """Returns the field `rows` of the request, for the sessions as they are now."""
    pieces: list[bytes] = []
    layer = call.layer
    for state, given, own in zip(states, call.rows, tokens, strict=True):
        accept, expected = given.accept, state.layers[layer].count
        if given.parents or not (accept is None or isinstance(accept, int)):
            row = step_pb2.StepRow()
            fill_row(row, given, own)
            asked = row.SerializeToString()
        else:
            asked = _plain_row(own, given.kind, accept)
        if accept is not None:
            expected += accept if isinstance(accept, int) else len(path_of(accept))
        head, count = state.row_head, varint(expected)
        size = len(head) + len(asked) + 1 + len(count)
        pieces += (
            _ROW_HEADS[size] if size < len(_ROW_HEADS) else field_head(_ROWS, size),
            head,
            asked,
            _EXPECTED,
            count,
        )
    return b"".join(pieces)


def kept_of(states: Sequence[SessionState], tokens: Sequence[int], memory: StepMemory) -> list[Kept]:
    """Returns what each row keeps. Rows of about equal length share the whole request, so that nothing is copied.

    A short row does not keep the tokens of a much longer one in memory.
    """
    if all(state.keep_bytes <= 0 for state in states):
        return [(step_pb2.DecodeRequest(), None, 0)] * len(states)
    request = memory.kept()
    if len(states) * max(tokens) <= 2 * sum(tokens):
        size = request.ByteSize() // len(states)
        return [(request, at, size) for at in range(len(states))]
    whole = request.parsed() if isinstance(request, SentStep) else request
    assert isinstance(whole, step_pb2.StepRequest)
    return [(alone, None, None) for alone in rows_alone(whole)]


def note_row(state: SessionState, layer: int, given: StepRow, tokens: int, counts: tuple[int, int], kept: Kept) -> None:
    """Notes that a row was applied.

    Args:
        state: its session.
        layer: index of the layer.
        given: the row.
        tokens: number of its tokens.
        counts: the layer's token count and durable token count, as the server has answered.
        kept: what is kept of the row.

    """
    known, is_draft = state.layer(layer), given.kind == "draft"
    path = [] if given.accept is None else path_of(given.accept)
    expected = known.count + len(path) + (0 if is_draft else tokens)
    if counts[0] != expected:
        check_count(state, layer, counts[0], expected)
    if given.accept is not None:
        known.draft_tokens = max(known.draft_tokens, len(path))  # somebody else may have drafted
        note_acceptance(state, layer, path, counts[1])
    step = KeptStep(known.count, tokens, *kept)
    if is_draft:
        state.note_draft(layer, step)
    else:
        state.note(layer, step, counts[1])


def note_all(
    states: Sequence[SessionState], call: StepCall, tokens: Sequence[int], reply: Any, memory: StepMemory
) -> list[int]:
    """Notes that all rows were applied, and returns the layer's token count of each session."""
    layer, counts = call.layer, list(reply.token_counts)
    rows = zip(
        states, call.rows, tokens, counts, reply.durable_token_counts, kept_of(states, tokens, memory), strict=True
    )
    for state, given, own, count, durable, kept in rows:
        known = state.layers[layer]
        before = known.count
        if durable > 0 or own == 0 or given.accept is not None or given.kind == "draft" or count != before + own:
            note_row(state, layer, given, own, (count, durable), kept)
            continue
        # The usual row is noted as note_row would, without its calls.
        known.count = count
        known.reached = max(known.reached, count)
        if state.keep_bytes <= 0:
            known.begin = count
            continue
        step = KeptStep(before, own, *kept)
        known.kept.append(step)
        state.kept_bytes += step.bytes
        if state.kept_bytes > state.keep_bytes:
            state.note_durable(layer, durable)
    return counts
