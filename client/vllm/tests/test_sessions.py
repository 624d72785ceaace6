"""The sessions that scheduler outputs of vLLM lead to. Without vLLM, and without a server."""

from __future__ import annotations

import pytest
import recorded

from gdn_vllm.sessions import EngineStep, NewSession, NewSnapshot, Plan, Row, Scheduled, Sessions


class ModelServer:
    """What the server would have: the accepted tokens and the draft of each session and snapshot."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, int]] = {}
        self.snapshots: dict[int, tuple[int, int]] = {}
        self.from_snapshots = self.accepted = self.rejected = 0
        self.numbers: set[int] = set()

    def apply(self, plan: Plan) -> None:
        for snapshot in plan.snapshots:
            assert snapshot.snapshot not in self.snapshots
            self.snapshots[snapshot.snapshot] = self.sessions[snapshot.session]
        for session in plan.creates:
            assert session.session not in self.numbers, "numbers are never used again"
            self.numbers.add(session.session)
            start = (0, 0) if session.snapshot is None else self.snapshots[session.snapshot]
            self.from_snapshots += session.snapshot is not None
            self.sessions[session.session] = start
        for number in plan.deletes:
            del self.sessions[number]
        for number in plan.drops:
            del self.snapshots[number]

    def step(self, row: Row, first: int, tokens: int) -> None:
        assert row.session is not None
        count, draft = self.sessions[row.session]
        if draft > 0:
            assert row.accept is not None and 0 < row.accept <= draft
            count += row.accept
            self.accepted += row.accept - 1
            self.rejected += draft - row.accept
        else:
            assert row.accept is None
        assert count == first
        self.sessions[row.session] = (count, tokens) if row.kind == "draft" else (count + tokens, 0)


@pytest.mark.parametrize("name", recorded.names())
def test_each_row_of_a_recording_steps_its_session_where_it_is(name: str) -> None:
    sessions, server, rows = Sessions(**recorded.settings(name)), ModelServer(), 0
    quiet = True
    for step, batch in recorded.steps(name):
        plan = sessions.begin(step)
        assert not plan.lost
        server.apply(plan)
        fresh = any(one.fresh for one in step.scheduled)
        quiet &= bool(fresh or step.ended or plan.snapshots) or plan == Plan()
        bound = [sessions.row(slot, first, end - begin) for slot, begin, end, first in batch]
        assert sorted(row.request for row in bound) == sorted(one.request for one in step.scheduled)
        for row, (_, begin, end, first) in zip(bound, batch, strict=True):
            server.step(row, first, end - begin)
        rows += len(batch)
        assert len(server.sessions) == len(sessions)
        assert len(server.snapshots) == sessions.snapshot_count
    assert rows > 100
    assert quiet, "a step of decodes needs nothing else of the server"
    if "prefix" in name:
        assert server.from_snapshots > 0
    if "speculation" in name:
        assert server.accepted > 0 and server.rejected > 0
    resumed = sum(one.fresh for step, _ in recorded.steps(name) for one in step.scheduled)
    names = {one.request for step, _ in recorded.steps(name) for one in step.scheduled}
    assert (resumed > len(names)) == ("preemption" in name or name == "async_prefix")


def test_there_is_a_recording_of_each_case() -> None:
    assert recorded.names() == [
        "abort", "async", "async_prefix", "chunked", "preemption", "prefix", "prefix_preemption", "speculation"
    ]  # fmt: skip


def new(name: str, tokens: int, *blocks: int, computed: int = 0) -> Scheduled:
    return Scheduled(name, computed, tokens, 0, [list(blocks)], fresh=True)


def more(name: str, computed: int, tokens: int = 1, *blocks: int, drafts: int = 0) -> Scheduled:
    return Scheduled(name, computed, tokens, drafts, [list(blocks)])


def test_a_session_begins_is_stepped_and_ends() -> None:
    sessions = Sessions()
    assert sessions.begin(EngineStep([new("a", 5, 7)])) == Plan(creates=[NewSession("a", 1)])
    assert sessions.row(7, 0, 5) == Row("a", 1, "prefill")
    assert sessions.begin(EngineStep([more("a", 5)])) == Plan()
    assert sessions.row(7, 5, 1) == Row("a", 1, "decode")
    assert sessions.begin(EngineStep([], ["a"])) == Plan(deletes=[1])
    assert len(sessions) == 0


def test_a_finished_request_that_is_unknown_is_no_error() -> None:
    assert Sessions().begin(EngineStep([], ["a"])) == Plan()


def test_a_preempted_request_begins_anew() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    sessions.row(7, 0, 5)
    assert sessions.begin(EngineStep([], ["a"])).deletes == [1]
    assert sessions.begin(EngineStep([new("a", 6, 9)])).creates == [NewSession("a", 2)]
    assert sessions.row(9, 0, 6).session == 2


def test_a_request_that_is_resumed_without_notice_of_its_preemption_begins_anew() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    plan = sessions.begin(EngineStep([new("a", 6, 9)]))
    assert (plan.deletes, plan.creates) == ([1], [NewSession("a", 2)])


def test_drafts_are_accepted_with_the_next_row() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    sessions.row(7, 0, 5)
    sessions.begin(EngineStep([more("a", 5, 4, drafts=3)]))
    assert sessions.row(7, 5, 4) == Row("a", 1, "draft", None)
    sessions.begin(EngineStep([more("a", 8, 4, drafts=3)]))
    assert sessions.row(7, 8, 4) == Row("a", 1, "draft", 3)
    sessions.begin(EngineStep([more("a", 9)]))
    assert sessions.row(7, 9, 1) == Row("a", 1, "decode", 1)
    sessions.begin(EngineStep([more("a", 10)]))
    assert sessions.row(7, 10, 1) == Row("a", 1, "decode", None)


def test_the_batch_knows_better_than_the_scheduler_how_many_drafts_were_accepted() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    sessions.row(7, 0, 5)
    sessions.begin(EngineStep([more("a", 5, 4, drafts=3)]))
    sessions.row(7, 5, 4)
    sessions.begin(EngineStep([more("a", 9, 4, drafts=3)]))  # as if all were accepted
    assert sessions.row(7, 7, 4).accept == 2
    sessions.begin(EngineStep([more("a", 11, 1)]))
    assert sessions.row(7, 8, 1).accept == 1


def test_a_row_where_the_session_cannot_be_is_an_error() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    with pytest.raises(ValueError, match="has 0 tokens and a draft of 0, its row begins at 3"):
        sessions.row(7, 3, 5)
    with pytest.raises(ValueError, match="has 4 tokens, the scheduler gave it 5"):
        sessions.row(7, 0, 4)
    with pytest.raises(ValueError, match="slot 8 belongs to no scheduled request"):
        sessions.row(8, 0, 5)


def test_a_request_that_was_never_new_is_an_error() -> None:
    with pytest.raises(ValueError, match="was never new"):
        Sessions().begin(EngineStep([more("a", 5)]))


def test_a_snapshot_is_taken_before_its_owner_goes_on_and_others_start_from_it() -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([new("a", 8, 0, 7)]))  # two blocks at once leave a state for the second only
    sessions.row(7, 0, 8)
    plan = sessions.begin(EngineStep([more("a", 8, 1, 9), new("b", 2, 0, 7, 11, computed=8)]))
    assert plan.snapshots == [NewSnapshot(1, 1)]
    assert plan.creates == [NewSession("b", 2, 1)]
    assert (sessions.row(9, 8, 1).request, sessions.row(11, 8, 2).request) == ("a", "b")
    plan = sessions.begin(EngineStep([more("a", 9), more("b", 10)]))
    assert plan == Plan(), "one snapshot a block"


def test_a_request_that_ends_on_a_boundary_leaves_a_snapshot() -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([new("a", 4, 7)]))
    sessions.row(7, 0, 4)
    plan = sessions.begin(EngineStep([], ["a"]))
    assert (plan.snapshots, plan.deletes) == ([NewSnapshot(1, 1)], [1])
    assert sessions.begin(EngineStep([new("b", 1, 7, 8, computed=4)])).creates == [NewSession("b", 2, 1)]


def test_a_chunk_that_crosses_a_boundary_leaves_no_snapshot() -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([new("a", 6, 7, 8)]))
    sessions.row(8, 0, 6)
    assert sessions.begin(EngineStep([more("a", 6)])).snapshots == []


@pytest.mark.parametrize("known", [True, False], ids=["goes on", "has ended"])
def test_a_snapshot_inside_a_draft_is_accepted_up_to_the_boundary(known: bool) -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([new("a", 3, 7)]))
    sessions.row(7, 0, 3)
    sessions.begin(EngineStep([more("a", 3, 4, 8, drafts=3)]))
    sessions.row(8, 3, 4)
    step = EngineStep([more("a", 5)]) if known else EngineStep([], ["a"])
    assert sessions.begin(step).snapshots == [NewSnapshot(1, 1)]
    assert sessions.begin(EngineStep([new("b", 2, 7, 9, computed=4)])).creates == [NewSession("b", 2, 1)]
    assert sessions.row(9, 4, 2) == Row("b", 2, "prefill", 1)


def test_a_boundary_that_no_accepted_token_has_reached_leaves_no_snapshot() -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([new("a", 2, 7)]))
    sessions.row(7, 0, 2)
    sessions.begin(EngineStep([more("a", 2, 4, 8, drafts=3)]))
    sessions.row(8, 2, 4)
    assert sessions.begin(EngineStep([more("a", 3)])).snapshots == []


def test_a_snapshot_is_dropped_when_its_block_is_handed_out_again() -> None:
    sessions = Sessions(block_size=4, groups=[0])
    sessions.begin(EngineStep([new("a", 4, 7)]))
    sessions.row(7, 0, 4)
    sessions.begin(EngineStep([], ["a"]))
    # To another group of another request.
    plan = sessions.begin(EngineStep([Scheduled("b", 0, 4, 0, [[8], [7]], fresh=True)]))
    assert plan.drops == [1]
    assert sessions.snapshot_count == 0


def test_a_cached_prefix_without_a_snapshot_is_lost_until_the_request_is_resumed() -> None:
    sessions = Sessions(block_size=4)
    plan = sessions.begin(EngineStep([new("a", 1, 7, 8, computed=4)]))
    assert list(plan.lost) == ["a"] and plan.creates == []
    assert sessions.row(8, 4, 1) == Row("a", None, "decode")
    assert sessions.begin(EngineStep([new("a", 5, 9, 10)], ["a"])).creates == [NewSession("a", 1)]


def test_a_session_that_was_lost_is_deleted_and_not_stepped() -> None:
    sessions = Sessions()
    sessions.begin(EngineStep([new("a", 5, 7)]))
    sessions.row(7, 0, 5)
    sessions.lose("a")
    plan = sessions.begin(EngineStep([more("a", 5)]))
    assert plan.deletes == [1]
    assert sessions.row(7, 5, 1).session is None


def test_a_lost_snapshot_names_its_blocks_once() -> None:
    sessions = Sessions(block_size=4)
    sessions.begin(EngineStep([Scheduled("a", 0, 4, 0, [[7], [8]], fresh=True)]))
    sessions.row(7, 0, 4)
    sessions.begin(EngineStep([], ["a"]))
    assert sessions.lose_snapshot(1) == [7, 8]
    assert sessions.lose_snapshot(1) == []


def test_steps_become_json_and_come_back() -> None:
    step = EngineStep([more("a", 5, 4, 8, drafts=3)], ["b"])
    assert EngineStep.from_json(step.to_json()) == step
