"""Requests and replies of steps are protobuf's, though their tensors are not copied through messages."""

from __future__ import annotations

import random as plain_random
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

import gdn_client
from gdn_client.first_try import fill_row, row_bytes
from gdn_client.flow import Retry
from gdn_client.proto.gdn.v1 import session_pb2, step_pb2, tensor_pb2
from gdn_client.session_state import SessionState, StepOptions
from gdn_client.shared_memory import StepMemory
from gdn_client.step_call import KINDS, StepCall, StepRow
from gdn_client.steps import SentStep, StepReply, fill_input, read_reply
from gdn_client.tensors import to_tensor


def inputs(random: np.random.Generator, dtype: Any) -> list[Any]:
    def some(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(dtype)

    return [
        some(3, 2, 5),
        some(2, 3, 5).transpose(1, 0, 2),  # not contiguous
        some(0, 2, 5),
        some(300, 2, 64),  # lengths of several bytes
        gdn_client.Projected(some(3, 1, 8), some(3, 1, 4), some(3, 1, 2), some(3, 1, 2)),
        gdn_client.DeltaRule(*(some(3, 1, 2, 4) for _ in range(3)), some(3, 1, 2), some(3, 1, 2)),
        gdn_client.DeltaRule(
            *(some(3, 1, 2, 4) for _ in range(3)), some(3, 1, 2), some(3, 1, 2), 0.5, use_qk_l2norm=True
        ),
    ]


def requests() -> list[Any]:
    return [
        step_pb2.PrefillRequest(session="sessions/a", layer=3, request_id="r", expected_token_count=7),
        step_pb2.DecodeRequest(sessions=["sessions/a", "sessions/b"], layer=300, lengths=[1, 2], draft=True),
        step_pb2.StepRequest(rows=[step_pb2.StepRow(session="sessions/a", token_count=4)], partial_ok=True),
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ">f4"])
def test_a_sent_request_is_the_message(random: np.random.Generator, dtype: Any) -> None:
    for request in requests():
        for given in inputs(random, dtype):
            want, sent = type(request)(), type(request)()
            want.CopyFrom(request)
            sent.CopyFrom(request)
            fill_input(want, given, to_tensor)
            memory = StepMemory(None, sent)
            fill_input(sent, given, memory.encode)
            for id_of_try in ("one", "another"):
                want.request_id = sent.request_id = id_of_try
                got = memory.request()
                assert isinstance(got, SentStep)
                assert got.parsed() == want
                assert got.ByteSize() == len(got.SerializeToString())
                assert got.name == "sessions/a"
            assert memory.kept() is got


def test_the_bytes_of_rows_are_the_messages() -> None:
    random = plain_random.Random(2)
    for _ in range(300):
        rows, states, want = [], [], step_pb2.StepRequest(request_id="r", layer=3)
        for _ in range(random.randrange(1, 6)):
            kind = random.choice(list(KINDS))
            parents = [-1, 0, 0] if kind == "draft" and random.random() < 0.5 else None
            accept = random.choice([None, 0, 1, 8, 200, [], [0, 2], [200, 300]])
            rows.append(StepRow(random.choice([0, 1, 7, 300, 70000]), kind, parents, accept))
            name = "sessions/" + "é" * random.choice([1, 20, 60, 120])
            session = session_pb2.Session(name=name, epoch=random.choice([0, 1, 1 << 52]))
            session.layers.add(layer=3, token_count=random.choice([0, 127, 128, 16383, 16384, 1 << 53]))
            states.append(SessionState(session, Retry()))
            row = want.rows.add(session=name, session_epoch=session.epoch)
            fill_row(row, rows[-1], rows[-1].x)
            moved = 0 if accept is None else accept if isinstance(accept, int) else len(accept)
            row.expected_token_count = session.layers[0].token_count + moved
        tokens = [row.x for row in rows]
        given = np.zeros((sum(tokens), 1), np.float16)
        request = step_pb2.StepRequest(request_id="r", layer=3)
        call = StepCall(3, rows, StepOptions(), x=given)
        memory = StepMemory(None, request, row_bytes(states, call, tokens), states[0].name)
        memory.hold(given)
        fill_input(want, given, to_tensor)
        sent = memory.request()
        assert isinstance(sent, SentStep)
        assert sent.parsed() == want
        assert sent.name == states[0].name
        assert memory.kept() is sent


def test_a_kept_request_does_not_change_with_the_callers_array() -> None:
    x = np.ones((1, 4), np.float32)
    request = step_pb2.PrefillRequest(session="sessions/a")
    memory = StepMemory(None, request)
    fill_input(request, x, memory.encode)
    kept = memory.request()
    x[:] = 2
    assert isinstance(kept, SentStep)
    assert np.frombuffer(kept.parsed().hidden_states.hidden_states.data, np.float32).tolist() == [1.0] * 4


@pytest.mark.parametrize("kind", [step_pb2.PrefillResponse, step_pb2.DecodeResponse, step_pb2.StepResponse])
def test_a_reply_is_read_as_protobuf_reads_it(kind: Any) -> None:
    random = plain_random.Random(1)
    for size in (0, 1, 100, 1000, 5000, 70000):
        output = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, shape=[size], data=random.randbytes(4 * size))
        reply = kind(output=output, compute_time_us=5)
        if kind is step_pb2.PrefillResponse:
            reply.token_count = 300
        else:
            reply.token_counts.extend([1, 300])
            reply.durable_token_counts.extend([0, 70000])
        wire = reply.SerializeToString()
        got = read_reply(kind, wire)
        assert isinstance(got, StepReply) == (size > 1000)
        if isinstance(got, StepReply):
            assert bytes(got.data) == output.data
            assert got.output.shape == [size]
            assert got.output.data == b""
            assert got.compute_time_us == 5
        # Unusual forms: the output twice, its elements twice, and bytes that end early.
        rest = wire[len(kind(output=output).SerializeToString()) :]
        twice = kind(output=output).SerializeToString()
        for unusual in (wire + twice, rest + twice):
            again = read_reply(kind, unusual)
            assert again == kind.FromString(unusual) if not isinstance(again, StepReply) else size == 0
        for end in {0, 1, 2, 5, len(wire) // 2, len(wire) - 1} if size > 1000 else ():
            try:
                want = kind.FromString(wire[:end])
            except DecodeError:
                with pytest.raises(DecodeError):
                    read_reply(kind, wire[:end])
            else:
                assert read_reply(kind, wire[:end]) == want
