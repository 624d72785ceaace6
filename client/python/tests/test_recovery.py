"""A client whose server fails, case by case: nothing is lost that need not be, and what is lost is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from toy_server import LAYERS, ToyServer, aio_client_of, client_of, tokens

import gdn_client
from gdn_client.flow import Retry

LAYER, OTHER = LAYERS


def once(method: str, fault: str) -> Callable[[str], str]:
    """A fault of the method's next call."""
    left = [fault]
    return lambda called: left.pop() if called == method and left else ""


class Twins:
    """A session on a server that will fail, and the same on one that will not."""

    def __init__(self, **server: bool) -> None:
        self.server = ToyServer(**server)
        self.client, self.calm = client_of(self.server), client_of(ToyServer())
        self.x = tokens(40)
        self.at = 0

    def sessions(self, count: int = 1, **options: int) -> tuple[list[gdn_client.Session], list[gdn_client.Session]]:
        made = [
            client.session("toy", session_id=f"s{i}", **options)
            for client in (self.client, self.calm)
            for i in range(count)
        ]
        return made[:count], made[count:]

    def pair(self, **options: int) -> tuple[gdn_client.Session, gdn_client.Session]:
        """With a few tokens in both layers."""
        (one,), (other,) = self.sessions(**options)
        for layer in LAYERS:
            same(*(session.prefill(layer, self.x[:5]) for session in (one, other)))
            same(*(session.decode(layer, self.x[5]) for session in (one, other)))
        return one, other

    def pair_past(self, checkpoint: str) -> tuple[gdn_client.Session, gdn_client.Session]:
        """A pair with a named checkpoint, and steps after it."""
        one, other = self.pair()
        for session in (one, other):
            session.checkpoint(checkpoint)
        self.go_on(one, other)
        return one, other

    def batches(self, *, drafts: bool) -> tuple[gdn_client.Batch, gdn_client.Batch]:
        """Batches of two sessions with a few tokens each, and with `drafts` a draft of three."""
        both = []
        for client, sessions in zip((self.client, self.calm), self.sessions(2), strict=True):
            for session in sessions:
                session.prefill(LAYER, self.x[:5])
            both.append(client.batch(sessions))
        if drafts:
            same(*(batch.decode(LAYER, self.x[:6].reshape(2, 3, -1), draft=True) for batch in both))
        return both[0], both[1]

    def give_up_a_step(self, session: gdn_client.Session) -> None:
        """The server takes a decode of token 6, and its reply is lost."""
        session._state.retry = Retry(overall=0.0)
        self.server.faults = once("Decode", "lose")
        with pytest.raises(gdn_client.UnavailableError):
            session.decode(LAYER, self.x[6])
        session._state.retry = Retry()

    def go_on(self, *pair: gdn_client.Session) -> None:
        """Outputs tell of all that was before."""
        for layer in LAYERS:
            same(*(session.decode(layer, self.x[30]) for session in pair))
            same(*(session.prefill(layer, self.x[31:34]) for session in pair))


def same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("fault", ["drop", "take state"])
def test_a_session_that_cannot_be_made_anew_is_not_deleted(fault: str) -> None:
    twins = Twins(durable=False)
    one, _ = twins.pair(keep_bytes=1)  # so the inputs before are not kept
    twins.server.faults = once("Decode", fault)
    with pytest.raises(gdn_client.SessionLostError, match=r"only the inputs from token .* are kept"):
        one.decode(LAYER, twins.x[6])
    assert "DeleteSession" not in twins.server.calls
    assert f"{one.id}" in twins.server.sessions


def test_nor_is_one_whose_named_checkpoints_would_go_with_it() -> None:
    twins = Twins()
    one, _ = twins.pair()
    one.checkpoint("mine")
    twins.server.faults = once("Decode", "drop")
    with pytest.raises(gdn_client.SessionLostError, match="named checkpoints"):
        one.decode(LAYER, twins.x[6])
    assert "mine" in twins.server.sessions[one.id].named


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_a_step_that_was_given_up_is_gone_on_with_by_the_same_call(durable: bool, crash: bool) -> None:
    twins = Twins()
    one, other = twins.pair()
    twins.give_up_a_step(one)
    if durable:
        twins.server.make_durable()
    if crash:
        twins.server.crash()
    same(one.decode(LAYER, twins.x[6]), other.decode(LAYER, twins.x[6]))
    twins.go_on(one, other)


@pytest.mark.parametrize("crash", [False, True])
def test_with_another_call_a_step_that_was_given_up_and_is_durable_never_was(crash: bool) -> None:
    twins = Twins()
    one, other = twins.pair()
    twins.give_up_a_step(one)
    twins.server.make_durable()
    if crash:
        twins.server.crash()
    same(one.decode(LAYER, twins.x[7]), other.decode(LAYER, twins.x[7]))
    twins.go_on(one, other)


def test_or_it_is_told_that_the_same_call_is_to_be_made() -> None:
    twins = Twins()
    one, other = twins.pair()
    one.checkpoint()  # the inputs before it are kept no more
    twins.give_up_a_step(one)
    twins.server.make_durable()
    for _ in range(2):
        with pytest.raises(gdn_client.SessionLostError, match="make that same call again"):
            one.decode(LAYER, twins.x[7])
    same(one.decode(LAYER, twins.x[6]), other.decode(LAYER, twins.x[6]))
    twins.go_on(one, other)


@pytest.mark.parametrize("path", [False, True])
def test_a_batch_accepts_after_a_crash_with_one_acceptance_durable(path: bool) -> None:
    twins = Twins()
    mine, calm = twins.batches(drafts=True)

    def crash_with_one_durable(method: str) -> str:
        if method != "AcceptTokens":
            return ""
        twins.server.faults = lambda _: ""
        for session, accepted in zip(mine, (1, 3), strict=True):
            done = twins.server.sessions[session.id]
            saved = twins.server._copy(done)
            for layer in done.layers.values():
                twins.server._step(layer, layer.draft[:accepted])
                layer.draft = []
            done.newest = twins.server._copy(done) if accepted == 1 else saved
        twins.server.crash()
        return "away"

    for session in mine:
        session.checkpoint()
    twins.server.faults = crash_with_one_durable
    choice = [[0], [0, 1, 2]] if path else [1, 3]
    for batch in (mine, calm):
        batch.accept(choice)
    for one, other in zip(mine, calm, strict=True):
        assert one.token_count(LAYER) == other.token_count(LAYER)
        twins.go_on(one, other)


def test_an_acceptance_is_made_once_if_the_copy_has_it_and_not_its_reply() -> None:
    """The acceptance is durable, its reply is lost, and the session's present state is lost before the retry."""
    twins = Twins()
    one, other = twins.pair()
    for session in (one, other):
        session.decode(LAYER, twins.x[6:9], draft=True)
    faults = ["lose durable", "roll back"]
    twins.server.faults = lambda method: faults.pop(0) if method == "AcceptTokens" and faults else ""
    for session in (one, other):
        session.accept(2)
    assert not faults
    twins.go_on(one, other)


@pytest.mark.parametrize("fault", ["drop", "lose", "crash after", "crash"])
def test_a_draft_whose_reply_is_gone_is_computed_again(fault: str) -> None:
    twins = Twins()
    one, other = twins.pair()
    twins.server.faults = once("Decode", fault)
    same(*(session.decode(LAYER, twins.x[6:9], draft=True) for session in (one, other)))
    for session in (one, other):
        session.accept(2)
    twins.go_on(one, other)


@pytest.mark.parametrize("fault", ["drop", "lose", "crash after", "crash"])
def test_so_is_a_batchs_tree(fault: str) -> None:
    twins = Twins()
    mine, calm = twins.batches(drafts=False)
    mine[0].checkpoint()
    twins.server.faults = once("Decode", fault)
    x = twins.x[:6].reshape(2, 3, -1)
    same(*(batch.decode(LAYER, x, parents=[-1, 0, 0]) for batch in (mine, calm)))
    for batch in (mine, calm):
        batch.accept([[0, 2], [0]])
    for one, other in zip(mine, calm, strict=True):
        twins.go_on(one, other)


def test_a_row_without_tokens_whose_reply_is_dropped_is_taken_again() -> None:
    twins = Twins()
    mine, calm = twins.batches(drafts=False)
    twins.server.faults = once("Decode", "drop")
    x = twins.x[:4].reshape(2, 2, -1)
    same(*(batch.decode(LAYER, x, lengths=[0, 2]) for batch in (mine, calm)))
    for one, other in zip(mine, calm, strict=True):
        twins.go_on(one, other)


def test_a_step_beside_a_draft_is_refused_at_once() -> None:
    twins = Twins()
    one, other = twins.pair()
    for session in (one, other):
        session.decode(LAYER, twins.x[6:9], draft=True)
    with pytest.raises(gdn_client.FailedPreconditionError) as refused:
        one.decode(LAYER, twins.x[9])
    assert refused.value.reason == "DRAFT_PENDING"
    assert "AcceptTokens" not in twins.server.calls
    for session in (one, other):
        session.accept(3)
    twins.go_on(one, other)


def test_a_session_whose_store_was_set_back_goes_on_from_what_is_there() -> None:
    twins = Twins()
    one, other = twins.pair()
    twins.server.make_durable()
    same(*(session.decode(LAYER, twins.x[6]) for session in (one, other)))
    twins.server.lose_states()
    same(*(session.decode(LAYER, twins.x[7]) for session in (one, other)))
    assert "RestoreCheckpoint" in twins.server.calls
    twins.go_on(one, other)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("call", ["decode", "prefill", "draft", "fork", "export_state", "stream"])
def test_a_session_whose_state_is_lost_is_made_anew(durable: bool, call: str) -> None:
    twins = Twins(durable=durable)
    one, other = twins.pair()
    twins.server.lose_states()
    for session in (one, other):
        FIRST_CALLS[call](session, twins.x)
    assert one.stats.recreations == 1
    twins.go_on(one, other)


FIRST_CALLS: dict[str, Callable[[gdn_client.Session, np.ndarray], object]] = {
    "decode": lambda session, x: session.decode(LAYER, x[6]),
    "prefill": lambda session, x: session.prefill(OTHER, x[6:9]),
    "draft": lambda session, x: (session.decode(LAYER, x[6:9], draft=True), session.accept(1)),
    "stream": lambda session, x: list(session.decode_stream(LAYER, x[6:12], window=3)),
    "prefill_stream": lambda session, x: list(session.prefill_stream(LAYER, [x[6:8], x[8:12]])),
    "future": lambda session, x: session.decode_future(LAYER, x[6]).result(),
    "fork": lambda session, x: session.fork()[0].decode(LAYER, x[6]),
    "checkpoint": lambda session, x: session.checkpoint(),
    "named checkpoint and restore": lambda session, x: (
        *(session.checkpoint("a"), session.decode(LAYER, x[6])),
        session.restore("a"),
    ),
    "checkpoint and restore": lambda session, x: (session.checkpoint(), session.decode(LAYER, x[6]), session.restore()),
    "export_state": lambda session, x: session.export_state(),
    "watch_state": lambda session, x: next(session.watch_state(every_tokens=1)),
}


@pytest.mark.parametrize("knows_epochs", [True, False], ids=["epochs are checked", "an older server"])
@pytest.mark.parametrize("durable", [0, 1], ids=["all is lost", "a part is lost"])
@pytest.mark.parametrize("call", FIRST_CALLS)
def test_an_older_state_is_never_used_unnoticed(knows_epochs: bool, durable: int, call: str) -> None:
    """Whatever the first call after a crash is."""
    twins = Twins(knows_epochs=knows_epochs)
    one, other = twins.pair()
    if durable:
        twins.server.make_durable()
    same(*(session.decode(LAYER, twins.x[6]) for session in (one, other)))
    twins.server.crash()
    got, want = (FIRST_CALLS[call](session, twins.x) for session in (one, other))
    if isinstance(got, np.ndarray):
        same(got, want)
    if call == "export_state":
        assert states_in(got) == states_in(want)
    if call == "watch_state":
        assert states_in(got.file) == states_in(want.file)
    assert one.stats.replays > 0
    twins.go_on(one, other)


def states_in(file: bytes) -> bytes:
    return file[file.index(b'"states"') :]


@pytest.mark.parametrize("knows_epochs", [True, False], ids=["epochs are checked", "an older server"])
def test_nor_kept_as_a_prefix(knows_epochs: bool) -> None:
    twins = Twins(knows_epochs=knows_epochs)
    prompt = gdn_client.prompt_prefix(range(20), 4)
    (one,), _ = twins.sessions()
    for layer in LAYERS:
        one.prefill(layer, twins.x[:4])
    one.checkpoint()
    for layer in LAYERS:
        one.prefill(layer, twins.x[4:8])
    twins.server.crash()
    assert one.keep_prefix(prompt, 8)
    with twins.client.session("toy", prefix=prompt) as known:
        assert known.prefix_tokens == 8
        same(known.decode(LAYER, twins.x[9]), one.decode(LAYER, twins.x[9]))


def test_children_of_an_older_state_are_gone_before_there_are_others() -> None:
    twins = Twins(knows_epochs=False)
    one, other = twins.pair()
    twins.server.make_durable()
    same(*(session.decode(LAYER, twins.x[6]) for session in (one, other)))
    twins.server.crash()
    children = [session.fork(2, ids=["a", "b"]) for session in (one, other)]
    for pair in zip(*children, strict=True):
        twins.go_on(*pair)
    assert sorted(twins.server.sessions) == ["a", "b", one.id]


def test_a_fork_that_is_asked_for_again_gives_the_children_as_they_are() -> None:
    twins = Twins()
    one, _ = twins.pair()
    (child,) = one.fork(ids=["child"])
    child.decode(LAYER, twins.x[6])
    (again,) = one.fork(ids=["child"])
    assert again.token_count(LAYER) == child.token_count(LAYER)
    assert "DeleteSession" not in twins.server.calls


@pytest.mark.parametrize("drafts", [False, True])
def test_children_that_are_lost_are_made_anew(drafts: bool) -> None:
    """Though nobody has made them durable: their history is their parent's, and theirs."""
    twins = Twins()
    one, other = twins.pair()
    if drafts:
        same(*(session.decode(LAYER, twins.x[6:9], draft=True) for session in (one, other)))
    children, wanted = one.fork(2), other.fork(2)
    same(*(session.decode(OTHER, twins.x[12]) for session in (children[1], wanted[1])))
    twins.server.crash()
    for pair in zip([one, *children], [other, *wanted], strict=True):
        if drafts:
            for session in pair:
                session.accept(2)
        twins.go_on(*pair)


def test_a_named_checkpoint_is_none_that_a_crash_comes_back_to() -> None:
    twins = Twins()
    one, other = twins.pair()
    for session in (one, other):
        session.checkpoint("named")
    twins.server.crash()
    twins.go_on(one, other)


def test_what_is_behind_a_restored_checkpoint_is_replayed_after_a_crash() -> None:
    twins = Twins()
    one, other = twins.pair_past("a")
    for session in (one, other):
        session.checkpoint("b")
        session.restore("a")
    twins.go_on(one, other)
    twins.server.crash()
    same(*(session.decode(LAYER, twins.x[9]) for session in (one, other)))
    for session in (one, other):
        session.restore("b")  # of the other history
    twins.server.crash()
    twins.go_on(one, other)


def test_a_restore_whose_reply_is_lost_is_made_again() -> None:
    twins = Twins()
    one, other = twins.pair_past("a")
    twins.server.faults = once("RestoreCheckpoint", "lose")
    for session in (one, other):
        session.restore("a")
    twins.go_on(one, other)


def test_a_restore_that_was_given_up_is_over_if_the_session_has_gone() -> None:
    twins = Twins()
    one, other = twins.pair_past("a")
    one._state.retry = Retry(overall=0.0)
    twins.server.faults = once("RestoreCheckpoint", "lose")
    with pytest.raises(gdn_client.UnavailableError):
        one.restore("a")
    one._state.retry = Retry()
    del twins.server.sessions[one.id]
    with pytest.raises(gdn_client.NotFoundError):
        one.restore("a")
    twins.go_on(one, other)  # made anew from its inputs, as if there had been no restore


def test_a_restore_that_was_given_up_is_made_again_before_any_other_call() -> None:
    twins = Twins()
    pair = twins.pair()
    for session in pair:
        session.decode(LAYER, twins.x[6])
        session.checkpoint("a")
        session.decode(LAYER, twins.x[7])
        session.checkpoint("b")
        session.restore("a")
        session.decode(LAYER, twins.x[8])  # as many tokens as "b" has, and another state
    one, other = pair
    one._state.retry = Retry(overall=0.0)
    twins.server.faults = once("RestoreCheckpoint", "lose")
    with pytest.raises(gdn_client.UnavailableError):
        one.restore("b")
    one._state.retry = Retry()
    for call in (lambda: one.decode(LAYER, twins.x[9]), one.fork, one.checkpoint, one.export_state):
        with pytest.raises(gdn_client.FailedPreconditionError, match="restore it again"):
            call()
    for session in pair:
        session.restore("b")
    twins.go_on(one, other)


def test_a_call_whose_time_is_over_before_its_session_is_back_says_so_and_goes_on() -> None:
    twins = Twins()
    one, other = twins.pair()
    twins.server.make_durable()
    same(*(session.decode(LAYER, twins.x[6]) for session in (one, other)))
    twins.server.crash()
    one._state.retry = Retry(overall=0.0)
    with pytest.raises(gdn_client.DeadlineExceededError, match="the same call again goes on with"):
        one.decode(LAYER, twins.x[7])
    one._state.retry = Retry()
    same(*(session.decode(LAYER, twins.x[7]) for session in (one, other)))
    twins.go_on(one, other)


def test_a_checkpoint_that_has_come_back_older_is_told() -> None:
    twins = Twins()
    one, _ = twins.pair()
    twins.server.make_durable()
    older = twins.server._copy(twins.server.sessions[one.id])
    one.decode(LAYER, twins.x[6])
    one.checkpoint("a")
    one.checkpoint()
    toy = twins.server.sessions[one.id]
    toy.newest, toy.named["a"] = older, older  # as a backup does
    for name in ("", "a"):
        with pytest.raises(gdn_client.SessionLostError) as lost:
            one.restore(name)
        assert lost.value.reason == "STATE_ROLLED_BACK"
    assert one.token_count(LAYER) == 6


def test_who_moves_anothers_session_is_told_and_moves_nothing_back() -> None:
    twins = Twins()
    one, _ = twins.pair()
    twins.server.make_durable()
    guest = twins.client.attach(one.id)
    guest.decode(LAYER, twins.x[6])
    with pytest.raises(gdn_client.SessionLostError, match="somebody else has moved it"):
        one.decode(LAYER, twins.x[7])
    assert twins.server.sessions[one.id].layers[LAYER].count == 7
    assert "RestoreCheckpoint" not in twins.server.calls


def test_a_draft_that_was_found_and_is_lost_is_told() -> None:
    twins = Twins()
    one, other = twins.pair()
    for session in (one, other):
        session.decode(LAYER, twins.x[6:9], draft=True)
    guest = twins.client.attach(one.id)
    guest.accept(2)
    other.accept(2)
    assert guest.token_count(LAYER) == 8
    same(*(session.decode(LAYER, twins.x[9]) for session in (guest, other)))
    guest.checkpoint()
    guest.decode(LAYER, twins.x[7:9], draft=True)
    guest = twins.client.attach(one.id)
    twins.server.crash()
    with pytest.raises(gdn_client.SessionLostError, match="draft"):
        guest.accept(2)


@pytest.mark.parametrize("durable", [True, False])
def test_inputs_that_are_too_many_are_let_go_once_they_are_durable(durable: bool) -> None:
    twins = Twins(durable=durable)
    (one,), (other,) = twins.sessions(keep_bytes=400)
    for at in range(20):
        same(*(session.decode(LAYERS[at % 2], twins.x[at]) for session in (one, other)))
        assert one._state.kept_bytes <= 400 + 200  # and the last step's
    twins.server.crash()
    if durable:
        twins.go_on(one, other)
        return
    assert twins.server.calls.count("CheckpointSession") == 1
    with pytest.raises(gdn_client.SessionLostError):
        one.decode(LAYER, twins.x[20])


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("keep_bytes", [1 << 20, 600])
@pytest.mark.parametrize("when", range(6))
def test_beams_outlive_a_crash(durable: bool, keep_bytes: int, when: int) -> None:
    """Forked at every token, and their parents ended, as beams are."""
    twins = Twins(durable=durable)
    beams, wanted = twins.sessions(keep_bytes=keep_bytes)
    beams[0]._state.keeps_durable = True
    for at in range(6):
        if at == when:
            twins.server.crash()
        if at == 3:
            twins.server.make_durable()
        try:
            for one in (beams, wanted):
                children = one[at % len(one)].fork(2, durable=True)
                one[at % len(one)].delete()
                one[at % len(one)] = children[0]
                one.append(children[1])
            for row, pair in enumerate(zip(beams, wanted, strict=True)):
                for layer in LAYERS:
                    same(*(session.decode(layer, twins.x[6 * at + row]) for session in pair))
        except gdn_client.SessionLostError:
            assert not durable
            assert keep_bytes == 600
            return
    for pair in zip(beams, wanted, strict=True):
        twins.go_on(*pair)


def test_a_layer_that_is_none_is_none_afterwards() -> None:
    twins = Twins()
    one, _ = twins.pair()
    with pytest.raises(KeyError):  # the toy's way of saying so
        one.decode(1, twins.x[6])
    assert one.layers == list(LAYERS)


@pytest.mark.parametrize("call", ["fork", "checkpoint", "export"])
@pytest.mark.parametrize("knows_epochs", [True, False], ids=["epochs are checked", "an older server"])
def test_asyncio_uses_no_older_state_either(knows_epochs: bool, call: str) -> None:
    twins = Twins(knows_epochs=knows_epochs)
    (_,), (other,) = twins.sessions()
    x = twins.x

    async def main() -> None:
        async with aio_client_of(twins.server) as client, await client.session("toy") as session:
            same(await session.prefill(LAYER, x[:5]), other.prefill(LAYER, x[:5]))
            await session.checkpoint()
            same(await session.decode(LAYER, x[5]), other.decode(LAYER, x[5]))
            twins.server.crash()
            if call == "fork":
                (child,) = await session.fork()
                same(await child.decode(LAYER, x[6]), other.fork()[0].decode(LAYER, x[6]))
            elif call == "checkpoint":
                await session.checkpoint()
                await session.restore()
            else:
                assert states_in(await session.export_state()) == states_in(other.export_state())
                async for snapshot in session.watch_state(every_tokens=1):
                    assert states_in(snapshot.file) == states_in(other.export_state())
            same(await session.decode(LAYER, x[6]), other.decode(LAYER, x[6]))

    asyncio.run(main())
