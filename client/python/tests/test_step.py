"""`Batch.step`: rows of every kind in one call. Servers fail, and older ones do not know Step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toy_server import LAYERS, SIZE, ToyServer, aio_client_of, client_of, tokens

import gdn_client
from gdn_client import StepResult, StepResults, StepRow
from gdn_client.flow import Retry
from gdn_client.mixed import MixedStep
from gdn_client.session_state import StepOptions
from gdn_client.step_call import StepCall

LAYER, OTHER = LAYERS
FAULTS = ["lose", "drop", "crash", "crash after", "roll back", "take state", "durable lose", "durable drop"]
TREE = [-1, 0, 0, 2]


def nth(method: str, *faults: str) -> Callable[[str], str]:
    """Faults of the method's next calls."""
    left = list(faults)
    return lambda called: left.pop(0) if called == method and left else ""


def same(got: np.ndarray | None, want: np.ndarray | None) -> None:
    assert got is not None
    np.testing.assert_array_equal(got, want)


def alone(session: gdn_client.Session, row: StepRow) -> np.ndarray:
    """The row by the other methods."""
    if row.accept is not None and (session._state.layer(LAYER).draft_tokens > 0):
        session.accept(row.accept)
    if row.kind == "prefill":
        return session.prefill(LAYER, row.x)
    if len(row.x) == 0:
        return row.x
    return session.decode(LAYER, row.x, draft=row.kind == "draft", parents=row.parents)


def mixed_rows(x: np.ndarray) -> list[StepRow]:
    """Rows for six sessions: three without a draft, two with a chain of four tokens, one with the tree TREE."""
    return [
        StepRow(x[:1]),
        StepRow(x[1:8], "prefill"),
        StepRow(x[8:11], "draft"),
        StepRow(x[11:13], accept=2),
        StepRow(x[13:17], "draft", parents=[-1, -1, 0, 1], accept=3),
        StepRow(x[17:23], "prefill", accept=[0, 2, 3]),
    ]


class Sides:
    """Six sessions on a server that will fail, and the same on one that will not."""

    def __init__(self, **server: Any) -> None:
        self.server = ToyServer(**server)
        self.x = tokens(60)
        self.sessions: list[gdn_client.Session] = []
        self.twins: list[gdn_client.Session] = []
        self.client = client_of(self.server)
        for client, made in ((self.client, self.sessions), (client_of(ToyServer()), self.twins)):
            made += [client.session("toy", session_id=f"s{i}") for i in range(6)]
            for at, session in enumerate(made):
                for layer in LAYERS:
                    session.prefill(layer, self.x[at : at + 5])
                if at > 2:
                    session.decode(LAYER, self.x[50:54], draft=True, parents=TREE if at == 5 else None)
        self.batch = self.client.batch(self.sessions)
        self.server.calls.clear()

    def step(self, rows: Sequence[StepRow], *, packed: bool = False) -> Sequence[StepResult]:
        if not packed:
            return self.batch.step(LAYER, rows)
        lengths = [replace(row, x=len(row.x)) for row in rows]
        return self.batch.step(LAYER, lengths, x=np.concatenate([row.x for row in rows]))

    def check(self, rows: Sequence[StepRow], got: Sequence[StepResult]) -> None:
        for row, result, session, twin in zip(rows, got, self.sessions, self.twins, strict=True):
            assert result.error is None
            same(result.output, alone(twin, row))
            assert result.token_count == session.token_count(LAYER) == twin.token_count(LAYER)

    def check_outputs(self, rows: Sequence[StepRow], got: Sequence[StepResult]) -> None:
        """As check, while later steps may have been applied."""
        for row, result, twin in zip(rows, got, self.twins, strict=True):
            assert result.error is None
            same(result.output, alone(twin, row))
            assert result.token_count == twin.token_count(LAYER)

    def go_on(self) -> None:
        """Outputs tell of all that was before."""
        for session, twin in zip(self.sessions, self.twins, strict=True):
            if session._state.layer(LAYER).draft_tokens > 0:
                for one in (session, twin):
                    one.accept(1)
            for layer in LAYERS:
                same(session.decode(layer, self.x[40]), twin.decode(layer, self.x[40]))
                assert session.token_count(layer) == twin.token_count(layer)

    def patience(self, seconds: float) -> None:
        for session in self.sessions:
            session._state.retry = Retry(overall=seconds)


def test_rows_are_their_own_calls() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    got = sides.step(rows)
    assert sides.server.calls == ["Step"]
    sides.check(rows, got)
    sides.go_on()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("second", ["", "lose", "crash after", "drop"])
@pytest.mark.parametrize("packed", [False, True])
def test_each_row_is_applied_once_whatever_fails(fault: str, second: str, packed: bool) -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.server.faults = nth("Step", fault, second)
    sides.check(rows, sides.step(rows, packed=packed))
    sides.go_on()


@pytest.mark.parametrize("sent", [False, True])
def test_a_first_try_that_is_broken_off_is_gone_on_with(sent: bool) -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    states = [session._state for session in sides.sessions]
    flow = MixedStep(states, StepCall(LAYER, rows, StepOptions()), sides.client.abilities).applied()
    call = next(flow)
    if sent:
        sides.client.connection.call(call)
    flow.close()
    given_up = {state.given_up.request_id.value for state in states if state.given_up is not None}
    assert given_up == {call.request.parsed().request_id}
    sides.check(rows, sides.step(rows))
    sides.go_on()


def test_a_packed_input_has_the_tokens_of_all_rows() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    got = sides.step(rows, packed=True)
    assert sides.server.calls == ["Step"]
    sides.check(rows, got)
    assert isinstance(got, StepResults)
    same(got.output, np.concatenate([result.output for result in got]))
    assert got.token_counts == [result.token_count for result in got]
    assert len(got) == len(rows)
    same(got[-1].output, got[5].output)
    assert [len(result.output) for result in got[1:3]] == [7, 3]
    with pytest.raises(IndexError):
        got[6]


@pytest.mark.parametrize("fault", ["", "drop", "crash after"])
def test_numbers_may_be_numpys(fault: str) -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.server.faults = nth("Step", fault) if fault else sides.server.faults
    lengths: list[Any] = [replace(row, x=np.int64(len(row.x))) for row in rows]
    lengths[3] = replace(lengths[3], accept=np.int64(2))
    sides.check(rows, sides.batch.step(LAYER, lengths, x=np.concatenate([row.x for row in rows])))
    sides.go_on()


def test_wrong_packed_inputs_are_refused_before_a_call() -> None:
    sides = Sides()
    x = sides.x[:6]
    whole = [StepRow(1)] * 6
    for rows, given, said in (
        (whole, None, "row 0 has 1 tokens, and the call has no packed input"),
        ([*whole[:5], StepRow(2)], x, "7 tokens together, and x has 6"),
        ([*whole[:5], StepRow(-1)], x, "row 5 has x -1"),
        ([*whole[:5], StepRow(x[:1])], x, "row 5 has x array"),
        (whole, x[0], "expected an axis of tokens"),
        (whole[:5], x, "there are 5 rows, expected 6"),
        ([*whole[:5], StepRow(1, accept=-1)], x, "row 5 accepts -1 tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            sides.batch.step(LAYER, rows, x=given)
    assert sides.server.calls == []


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("fault", ["lose", "drop", "durable lose", "crash after"])
def test_the_same_step_again_goes_on_with_one_that_was_given_up(fault: str, crash: bool) -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.patience(0)
    sides.server.faults = nth("Step", fault)
    with pytest.raises(gdn_client.UnavailableError):
        sides.step(rows)
    sides.patience(60)
    if crash:
        sides.server.crash()
    sides.check(rows, sides.step(rows))
    sides.go_on()


@pytest.mark.parametrize("fault", ["lose", "away", "crash after"])
def test_another_step_takes_back_one_that_was_given_up(fault: str) -> None:
    sides = Sides()
    sides.patience(0)
    sides.server.faults = nth("Step", fault)
    with pytest.raises(gdn_client.UnavailableError):
        sides.step(mixed_rows(sides.x))
    sides.patience(60)
    rows = mixed_rows(tokens(60, seed=2))
    rows[3] = StepRow(rows[3].x, accept=1)  # not what the step before accepted
    sides.check(rows, sides.step(rows))
    sides.go_on()


def test_an_acceptance_is_replayed_with_its_step() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.check(rows, sides.step(rows))
    sides.server.crash()
    sides.go_on()
    assert all(session.stats.replays == 1 for session in sides.sessions)


def test_more_lost_states_than_recoveries_of_one_session_are_no_reason_to_fail() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.server.make_durable()
    sides.server.faults = nth("Step", "roll back")
    sides.check(rows, sides.step(rows))
    sides.go_on()


def test_without_tokens_a_row_only_accepts() -> None:
    sides = Sides()
    rows = (
        [StepRow(sides.x[:0])] * 3
        + [StepRow(sides.x[:0], accept=n) for n in (3, 0)]
        + [StepRow(sides.x[:0], accept=[0])]
    )
    for fault in ("lose", ""):
        sides.server.faults = nth("Step", fault)
        got = sides.step(rows)
        assert [result.token_count for result in got] == [5, 5, 5, 8, 5, 6]
        rows = [StepRow(sides.x[:0])] * 6
    for twin, accepted in zip(sides.twins[3:], (3, 0, [0]), strict=True):
        twin.accept(accepted)
    sides.go_on()


def test_other_layers_keep_their_drafts() -> None:
    sides = Sides()
    session, twin = sides.sessions[3], sides.twins[3]
    session.decode(OTHER, sides.x[20:23], draft=True)
    (result,) = sides.client.batch([session]).step(LAYER, [StepRow(sides.x[30:31], accept=2)])
    twin.accept(2)
    same(result.output, twin.decode(LAYER, sides.x[30:31]))
    assert (session.token_count(OTHER), session._state.layer(OTHER).draft_tokens) == (5, 3)
    sides.server.crash()
    (result,) = sides.client.batch([session]).step(OTHER, [StepRow(sides.x[31:32], accept=1)])
    twin.decode(OTHER, sides.x[20])
    same(result.output, twin.decode(OTHER, sides.x[31:32]))


def test_a_bad_row_fails_all_or_alone() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    rows[0] = StepRow(np.full((1, SIZE), np.nan, np.float32))
    with pytest.raises(gdn_client.InvalidArgumentError) as refused:
        sides.step(rows)
    assert refused.value.reason == "NON_FINITE_INPUT"
    assert [session.token_count(LAYER) for session in sides.sessions] == [5] * 6
    got = sides.batch.step(LAYER, rows, partial_ok=True)
    assert [result.error is None for result in got] == [False] + [True] * 5
    assert got[0].error is not None
    assert (got[0].error.reason, got[0].output, got[0].token_count) == ("NON_FINITE_INPUT", None, 5)
    for row, result, twin in zip(rows[1:], got[1:], sides.twins[1:], strict=True):
        same(result.output, alone(twin, row))
    sides.go_on()


def test_all_rows_may_fail_alone() -> None:
    sides = Sides()
    rows = [StepRow(np.full((1, SIZE), np.nan, np.float32))] * 6
    got = sides.batch.step(LAYER, rows, partial_ok=True)
    assert [result.error is None for result in got] == [False] * 6
    assert [result.output for result in got] == [None] * 6
    sides.go_on()


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_fail_alone_are_recovered_too(fault: str) -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.server.faults = nth("Step", fault)
    sides.check(rows, sides.batch.step(LAYER, rows, partial_ok=True))
    sides.go_on()


@pytest.mark.parametrize("name", ["s0", "s2", "s4"])
@pytest.mark.parametrize("partial_ok", [False, True])
def test_one_row_that_was_lost_does_not_move_the_others_twice(name: str, partial_ok: bool) -> None:
    sides = Sides(durable=False)
    rows = mixed_rows(sides.x)
    sides.server.lose_states([name])
    sides.check(rows, sides.batch.step(LAYER, rows, partial_ok=partial_ok))
    assert [session.stats.recreations for session in sides.sessions] == [
        session.id == name for session in sides.sessions
    ]
    sides.go_on()


def test_a_session_that_is_lost_for_good_fails_alone() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    sides.sessions[1]._state.create = None  # as if attached
    del sides.server.sessions["s1"]
    got = sides.batch.step(LAYER, rows, partial_ok=True)
    assert isinstance(got[1].error, gdn_client.SessionLostError)
    for at in (0, 2, 3, 4, 5):
        same(got[at].output, alone(sides.twins[at], rows[at]))


def test_with_nobody_there_each_row_has_the_error() -> None:
    sides = Sides()
    sides.patience(0)
    sides.server.faults = nth("Step", "lose")
    rows = mixed_rows(sides.x)
    got = sides.batch.step(LAYER, rows, partial_ok=True)
    assert all(isinstance(result.error, gdn_client.UnavailableError) for result in got)
    sides.patience(60)
    sides.check(rows, sides.batch.step(LAYER, rows, partial_ok=True))
    sides.go_on()


# --- A server that does not know Step


@pytest.mark.parametrize("partial_ok", [False, True])
def test_an_older_server_gives_the_same(partial_ok: bool) -> None:
    sides = Sides(knows_step=False)
    rows = mixed_rows(sides.x)
    sides.check(rows, sides.batch.step(LAYER, rows, partial_ok=partial_ok))
    assert sides.server.calls.count("Step") == 1
    sides.server.calls.clear()
    more = [StepRow(sides.x[30:32], accept=0 if at in (2, 4) else None) for at in range(6)]
    sides.check(more, sides.batch.step(LAYER, more, partial_ok=partial_ok))
    assert "Step" not in sides.server.calls
    sides.go_on()


@pytest.mark.parametrize("method", ["AcceptTokens", "Decode", "Prefill"])
@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("fault", ["away", "lose", "crash", "crash after", "durable drop"])
def test_an_older_server_that_fails_between_its_calls(method: str, call: int, fault: str) -> None:
    sides = Sides(knows_step=False, reply_bytes=4 * 4 * SIZE)  # so a prefill takes several calls
    sides.client.abilities.step = False
    rows = mixed_rows(sides.x)
    sides.patience(0)
    sides.server.faults = nth(method, *[""] * call, fault)
    with pytest.raises(gdn_client.GdnError):
        sides.step(rows)
    sides.patience(60)
    sides.check(rows, sides.step(rows))
    sides.go_on()


def test_an_older_server_accepts_for_all_layers() -> None:
    sides = Sides(knows_step=False)
    session, twin = sides.sessions[0], sides.twins[0]
    batch = sides.client.batch([session])
    for layer in LAYERS:
        (got,) = batch.step(layer, [StepRow(sides.x[10:13], "draft")])
        same(got.output, twin.decode(layer, sides.x[10:13], draft=True))
    twin.accept(2)
    for layer in LAYERS:
        (got,) = batch.step(layer, [StepRow(sides.x[20:21], accept=2)])
        same(got.output, twin.decode(layer, sides.x[20:21]))
    assert sides.server.calls.count("AcceptTokens") == 1
    with pytest.raises(gdn_client.InvalidArgumentError) as refused:
        batch.step(LAYER, [StepRow(sides.x[20:21], accept=2)])
    assert refused.value.reason == "TOO_MANY_TOKENS"
    sides.go_on()


def test_a_refused_row_of_an_older_server_can_be_mended() -> None:
    sides = Sides(knows_step=False)
    rows = mixed_rows(sides.x)
    long = [*rows[:2], StepRow(rows[2].x, "draft"), *rows[3:]]
    sides.server.faults = nth("Prefill", "away")
    sides.patience(0)
    with pytest.raises(gdn_client.UnavailableError):
        sides.step(long)
    sides.patience(60)
    other = [*rows[:1], StepRow(sides.x[33:36], "prefill"), *rows[2:]]  # the row that failed is another
    sides.check(other, sides.step(other))
    sides.go_on()


# --- Futures and streams


def plain_steps(x: np.ndarray) -> list[list[StepRow]]:
    """Three steps that a stream takes, of six sessions."""
    return [
        [StepRow(x[at : at + n], kind) for at, (n, kind) in enumerate(zip(lengths, kinds, strict=True))]
        for lengths, kinds in (
            ((1, 7, 2, 0, 3, 1), ("decode", "prefill", "decode", "decode", "prefill", "decode")),
            ((2, 1, 0, 5, 1, 1), ("decode", "decode", "prefill", "prefill", "decode", "decode")),
            ((1, 1, 1, 1, 1, 4), ("decode", "decode", "decode", "decode", "decode", "prefill")),
        )
    ]


class PlainSides(Sides):
    """Sessions without drafts."""

    def __init__(self, **server: Any) -> None:
        super().__init__(**server)
        for session in (*self.sessions, *self.twins):
            if session._state.layer(LAYER).draft_tokens > 0:
                session.accept(1)
        self.server.calls.clear()


def test_futures_of_steps_run_in_order() -> None:
    sides = Sides()
    first, second = mixed_rows(sides.x), [StepRow(sides.x[30:33])] * 6
    second = [StepRow(row.x, accept=1 if at in (2, 4) else None) for at, row in enumerate(second)]
    futures = [sides.batch.step_future(LAYER, rows) for rows in (first, second)]
    for rows, future in zip((first, second), futures, strict=True):
        for row, result, twin in zip(rows, future.result(), sides.twins, strict=True):
            same(result.output, alone(twin, row))
    assert sides.server.calls == ["Step", "Step"]
    sides.go_on()


def test_a_failed_future_of_a_step_stops_those_behind_it() -> None:
    sides = PlainSides()
    bad = [StepRow(np.full((1, SIZE), np.nan, np.float32))] * 6
    futures = [sides.batch.step_future(LAYER, rows) for rows in (bad, plain_steps(sides.x)[0])]
    assert isinstance(futures[1].exception(), gdn_client.AbortedError)
    assert isinstance(futures[0].exception(), gdn_client.InvalidArgumentError)
    alone_failed = sides.batch.step_future(LAYER, [*bad[:1], *plain_steps(sides.x)[0][1:]], partial_ok=True).result()
    assert [result.error is None for result in alone_failed] == [False] + [True] * 5


@pytest.mark.parametrize("knows_step", [True, False])
@pytest.mark.parametrize("window", [1, 2, 9])
def test_a_stream_of_steps_is_their_calls(window: int, knows_step: bool) -> None:
    sides = PlainSides(knows_step=knows_step)
    steps = plain_steps(sides.x)
    got = list(sides.batch.step_stream(LAYER, steps, window=window))
    assert (sides.server.calls == ["Step"] * 3) == knows_step
    assert sides.server.calls.count("Step") == (3 if knows_step else 2)  # in a stream, and in a call
    for rows, results in zip(steps, got, strict=True):
        for row, result, twin in zip(rows, results, sides.twins, strict=True):
            same(result.output, alone(twin, row))
            assert result.token_count == twin.token_count(LAYER)
    sides.go_on()


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("second", ["", "lose", "crash after", "drop"])
@pytest.mark.parametrize("fault", ["away", *FAULTS])
def test_a_stream_of_steps_outlives_faults(fault: str, second: str, call: int) -> None:
    sides = PlainSides()
    steps = plain_steps(sides.x)
    sides.server.faults = nth("Step", *[""] * call, fault, second)
    got = list(sides.batch.step_stream(LAYER, steps))
    for rows, results in zip(steps, got, strict=True):
        sides.check_outputs(rows, results)
    sides.go_on()


def test_a_step_of_a_stream_that_is_refused_leaves_those_behind_it_out() -> None:
    sides = PlainSides()
    steps = plain_steps(sides.x)
    steps[1][3] = StepRow(np.full((1, SIZE), np.nan, np.float32))
    results = sides.batch.step_stream(LAYER, steps)
    sides.check_outputs(steps[0], next(results))
    with pytest.raises(gdn_client.InvalidArgumentError):
        next(results)
    sides.check_outputs(steps[2], sides.step(steps[2]))
    sides.go_on()


def test_a_stream_takes_no_drafts() -> None:
    sides = PlainSides()
    for row in (StepRow(sides.x[:1], "draft"), StepRow(sides.x[:1], accept=0)):
        with pytest.raises(ValueError, match="row 5 drafts or accepts"):
            list(sides.batch.step_stream(LAYER, [[*plain_steps(sides.x)[0][:5], row]]))
    with pytest.raises(ValueError, match="there are 5 rows, expected 6"):
        list(sides.batch.step_stream(LAYER, [plain_steps(sides.x)[0][:5]]))
    assert sides.server.calls == []


# --- Prefills


def test_a_prompt_is_cut_by_the_size_of_messages_only() -> None:
    x = tokens(1000)
    server = ToyServer(reply_bytes=1000, message_bytes=(64 << 10) + 8000)
    with client_of(server).session("toy") as session, client_of(ToyServer()).session("toy") as twin:
        same(session.prefill(LAYER, x[:200]), twin.prefill(LAYER, x[:200]))
        assert server.calls.count("Prefill") == 1
        same(session.prefill(LAYER, x[200:]), twin.prefill(LAYER, x[200:]))
        assert server.calls.count("Prefill") > 2


def test_an_older_server_gets_what_it_can_store() -> None:
    x = tokens(100)
    server = ToyServer(reply_bytes=20 * 4 * SIZE, knows_step=False)
    with client_of(server).session("toy") as session, client_of(ToyServer()).session("toy") as twin:
        for _ in range(2):
            same(session.prefill(LAYER, x), twin.prefill(LAYER, x))
        assert server.calls.count("Prefill") == 1 + 5 + 5
        same(session.prefill(LAYER, x[:0]), x[:0])


# --- Arguments, and asyncio


def test_rows_that_do_not_fit_together_are_refused_here() -> None:
    sides = Sides()
    rows = mixed_rows(sides.x)
    wrong = [
        (rows[:5], "there are 5 rows, expected 6"),
        ([StepRow(sides.x[0]), *rows[1:]], "expected an axis of tokens"),
        ([*rows[:5], StepRow(sides.x[:2].astype(np.float16))], "row 5 and row 0 have inputs of different"),
        ([*rows[:5], StepRow(sides.x[:2, :2])], "row 5 and row 0 have inputs of different"),
        ([*rows[:5], StepRow(sides.x[:2], "verify")], "kind 'verify', expected one of decode, draft, prefill"),
        ([*rows[:5], StepRow(sides.x[:2], parents=[-1, 0])], "which are a draft's"),
    ]
    for given, why in wrong:
        with pytest.raises(ValueError, match=why):
            sides.step(given)
    assert sides.server.calls == []


@pytest.mark.parametrize("knows_step", [True, False])
def test_asyncio_gives_the_same(knows_step: bool) -> None:
    sides = Sides()

    async def main() -> None:
        client = aio_client_of(ToyServer(knows_step=knows_step))
        sessions = [await client.session("toy", session_id=f"s{i}") for i in range(2)]
        for session in sessions:
            await session.decode(LAYER, sides.x[:3], draft=True)
        rows = [StepRow(sides.x[3:4], accept=2), StepRow(sides.x[4:9], "prefill", accept=0)]
        got = await client.batch(sessions).step(LAYER, rows)
        calm = client_of(ToyServer())
        for row, result in zip(rows, got, strict=True):
            session = calm.session("toy")
            session.decode(LAYER, sides.x[:3], draft=True)
            same(result.output, alone(session, row))

    asyncio.run(main())


@pytest.mark.parametrize("knows_step", [True, False])
def test_streams_of_asyncio_give_the_same(knows_step: bool) -> None:
    sides = PlainSides()
    steps = [rows[:3] for rows in plain_steps(sides.x)]

    async def main() -> list[list[StepResult]]:
        client = aio_client_of(ToyServer(knows_step=knows_step))
        sessions = [await client.session("toy", session_id=f"s{i}") for i in range(3)]
        return [results async for results in client.batch(sessions).step_stream(LAYER, steps)]

    calm = client_of(ToyServer())
    twins = [calm.session("toy", session_id=f"s{i}") for i in range(3)]
    for rows, results in zip(steps, asyncio.run(main()), strict=True):
        for row, result, twin in zip(rows, results, twins, strict=True):
            same(result.output, alone(twin, row))
