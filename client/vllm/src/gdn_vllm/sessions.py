"""Decides which sessions an engine's requests have on the server. Calls nothing, and imports neither vLLM nor torch.

    sessions = Sessions(block_size=128)
    plan = sessions.begin(step)                       # once an engine step; carry it out before the first layer
    rows = [sessions.row(slot, first, tokens) for ...]  # which session a row of the batch steps, and how

A request is in one of these states:

    state     | meaning                                         | next
    ----------|-------------------------------------------------|------------------------------------------------
    (unknown) | never scheduled, or ended                       | begin: live if scheduled, from zero or a snapshot
    live      | has a session with `count` accepted tokens      | begin: ended if finished or preempted; live anew if
              | and a draft of `draft` more                     |   resumed; row: steps; lost: lost
    lost      | its state is gone, its rows are not computed    | begin: ended if finished or preempted; live if resumed

Prefix caching: with a block size, vLLM may let a request start behind any block boundary that another one has crossed.
A session that has reached a boundary in the step before leaves a snapshot there, under the block's id. A draft may
cross a boundary too: its snapshot then holds the draft, and a request that starts from it accepts the tokens up to the
boundary. A snapshot is forgotten when its block is handed out again.
Slots: a layer sees a row's block id and not its request. Blocks behind a request's computed tokens are its own.
Thread safety: for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Blocks: TypeAlias = Sequence[Sequence[int]]  # ids of a request's blocks, for each KV cache group
NULL_BLOCK = 0  # vLLM's id of the block that holds nothing


@dataclass(frozen=True)
class Scheduled:
    """A request that an engine step has scheduled.

    Attributes:
        request: its id.
        computed: tokens that it has behind it. The scheduler may count drafts as accepted that will not be.
        tokens: tokens of this step, with drafts.
        drafts: how many of them are drafts.
        blocks: ids of its blocks by group: all of them if it is new or resumed, else those that are added.
        fresh: it is new or resumed, so that its states are those of a cached prefix, or zero.

    """

    request: str
    computed: int
    tokens: int
    drafts: int = 0
    blocks: Blocks = ()
    fresh: bool = False


@dataclass(frozen=True)
class EngineStep:
    """One output of vLLM's scheduler, as far as it matters here.

    Attributes:
        scheduled: the requests of the step.
        ended: ids of requests that have finished, were aborted, or were preempted since the step before.

    """

    scheduled: Sequence[Scheduled] = ()
    ended: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the step as values that JSON can hold."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> EngineStep:
        """Returns the step that `to_json` was called on."""
        return EngineStep([Scheduled(**one) for one in values["scheduled"]], list(values["ended"]))


@dataclass(frozen=True)
class NewSession:
    """A session to create: of zero tokens, or from a snapshot.

    Attributes:
        request: the request that it is for.
        session: number of the session. Numbers are never used again.
        snapshot: number of the snapshot that it starts from. None: it starts from zero.

    """

    request: str
    session: int
    snapshot: int | None = None


@dataclass(frozen=True)
class NewSnapshot:
    """A snapshot to take of a session, under a number of its own."""

    session: int
    snapshot: int


@dataclass
class Plan:
    """What must be done on the server before the layers of an engine step, in this order.

    Attributes:
        snapshots: snapshots to take.
        creates: sessions to create.
        deletes: numbers of sessions that have ended. They may be deleted later.
        drops: numbers of snapshots that nobody can start from any more. They may be deleted later, or be evicted.
        lost: requests whose cached prefix has no snapshot, each with the reason. Their rows are not computed.

    """

    snapshots: list[NewSnapshot] = field(default_factory=list)
    creates: list[NewSession] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """How one row of the batch steps its session.

    Attributes:
        request: the request.
        session: number of its session. None: it is lost, and the row is not computed.
        kind: how its tokens are computed, as in `gdn_client.StepRow`.
        accept: tokens of the pending draft that are accepted first. None: there is no draft.

    """

    request: str
    session: int | None
    kind: Literal["decode", "draft", "prefill"]
    accept: int | None = None


@dataclass
class _Snapshot:
    """A snapshot that stays for a block."""

    number: int
    boundary: int  # tokens at the end of the block
    count: int  # accepted tokens of its session
    draft: int  # tokens of its draft
    blocks: list[int]  # the ids of the block, for each group


@dataclass
class _Request:
    """A request that has a session, or has lost it."""

    session: int | None
    count: int  # accepted tokens of the session before the present step
    draft: int  # tokens of its draft before the present step
    blocks: list[list[int]]
    computed: int = 0  # tokens behind it in the present step
    tokens: int = 0  # tokens of the present step
    drafts: int = 0
    moved: bool = False  # it was scheduled in the present step

    def fold(self) -> None:
        """Notes that the present step is over."""
        if not self.moved:
            return
        self.draft = self.tokens if self.drafts > 0 else 0
        self.count = self.computed if self.drafts > 0 else self.computed + self.tokens


class Sessions:
    """The sessions of one engine's requests.

    Args:
        block_size: tokens of a block that others may start behind. None: there is no prefix caching.
        groups: indices of the KV cache groups that have Gated DeltaNet layers. None: all groups.

    """

    def __init__(self, block_size: int | None = None, groups: Sequence[int] | None = None) -> None:
        self._block_size = block_size
        self._groups = None if groups is None else list(groups)
        self._requests: dict[str, _Request] = {}
        self._slots: dict[int, str] = {}
        self._snapshots: dict[int, _Snapshot] = {}  # by the id of their block in the first group
        self._by_block: dict[int, int] = {}  # that id, by the id of the block in any group
        self._orphans: list[int] = []  # sessions of requests that have lost them
        self._sessions = self._numbers = 0

    def __len__(self) -> int:
        """Returns the number of requests that have a session, or have lost it."""
        return len(self._requests)

    @property
    def snapshot_count(self) -> int:
        """Number of snapshots that a request could start from."""
        return len(self._snapshots)

    def begin(self, step: EngineStep) -> Plan:
        """Ends the step before, begins this one, and returns what must be done on the server for it.

        Raises:
            ValueError: the step does not follow from the steps before.

        """
        plan = Plan(deletes=self._orphans)
        self._orphans = []
        for request in self._requests.values():
            request.fold()
        now = {one.request: one for one in step.scheduled}
        if self._block_size is not None:
            for name, request in self._requests.items():
                if request.moved and request.session is not None:
                    following = now.get(name)
                    known = following.computed if following is not None and not following.fresh else None
                    self._leave_snapshot(request, known, plan)
        for request in self._requests.values():
            request.moved = False
        for name in step.ended:
            self._end(name, plan)
        for one in step.scheduled:
            if one.fresh:
                self._end(one.request, plan)
            elif one.request not in self._requests:
                raise ValueError(f"request {one.request} was never new, and is scheduled as one that goes on")
        self._forget_blocks(step.scheduled, plan)
        self._slots.clear()
        for one in step.scheduled:
            self._schedule(one, plan)
        return plan

    def row(self, slot: int, first: int, tokens: int) -> Row:
        """Returns how the row of a batch steps its session.

        Args:
            slot: id of the block that holds the row's state.
            first: tokens that the request has really behind it, without drafts that were not accepted.
            tokens: tokens of the row.

        Raises:
            ValueError: no scheduled request has the slot, or its session cannot be at `first`.

        """
        name = self._slots.get(slot)
        if name is None:
            raise ValueError(f"slot {slot} belongs to no scheduled request, expected one of {sorted(self._slots)}")
        request = self._requests[name]
        if tokens != request.tokens:
            raise ValueError(f"the row of {name} has {tokens} tokens, the scheduler gave it {request.tokens}")
        kind: Literal["decode", "draft", "prefill"] = "decode" if tokens == 1 else "prefill"
        if request.drafts > 0:
            kind = "draft"
        if request.session is None:
            return Row(name, None, kind)
        accept = first - request.count
        if accept != 0 and not 0 < accept <= request.draft:
            raise ValueError(
                f"the session of {name} has {request.count} tokens and a draft of {request.draft}, its row begins "
                f"at {first}"
            )
        request.computed = first
        return Row(name, request.session, kind, accept if request.draft > 0 else None)

    def lose(self, name: str) -> None:
        """Notes that the state of a request is gone. Its session is not stepped any more."""
        request = self._requests[name]
        if request.session is not None:
            self._orphans.append(request.session)
            request.session = None

    def lose_snapshot(self, number: int) -> list[int]:
        """Forgets a snapshot that the server has lost. Returns the ids of its blocks, of which vLLM must know."""
        for block, snapshot in list(self._snapshots.items()):
            if snapshot.number == number:
                self._forget(block)
                return snapshot.blocks
        return []

    def _leave_snapshot(self, request: _Request, computed: int | None, plan: Plan) -> None:
        """Takes a snapshot of a session that has crossed the end of a block in the step before.

        `computed` is the tokens that are behind the request now. None: it is not known how much of a draft was
        accepted.
        """
        size = self._block_size
        assert size is not None and request.session is not None
        reach = request.count + request.draft if computed is None else min(computed, request.count + request.draft)
        boundary = reach // size * size
        inside = request.count < boundary <= request.count + request.draft
        if not inside and (request.draft > 0 or request.tokens == 0 or boundary != request.count or boundary == 0):
            return  # a chunk of a prompt that crosses a boundary leaves no state there, and vLLM caches none
        column = boundary // size - 1
        lists = self._of_groups(request.blocks)
        if not lists or any(len(blocks) <= column or blocks[column] == NULL_BLOCK for blocks in lists):
            return
        self._numbers += 1
        blocks = [blocks[column] for blocks in lists]
        plan.snapshots.append(NewSnapshot(request.session, self._numbers))
        if blocks[0] in self._snapshots:
            plan.drops.append(self._snapshots[blocks[0]].number)
            self._forget(blocks[0])
        self._snapshots[blocks[0]] = _Snapshot(self._numbers, boundary, request.count, request.draft, blocks)
        self._by_block.update(dict.fromkeys(blocks, blocks[0]))

    def _of_groups(self, blocks: Blocks) -> list[Sequence[int]]:
        return list(blocks) if self._groups is None else [blocks[group] for group in self._groups]

    def _end(self, name: str, plan: Plan) -> None:
        request = self._requests.pop(name, None)
        if request is not None and request.session is not None:
            plan.deletes.append(request.session)

    def _forget(self, block: int) -> _Snapshot:
        snapshot = self._snapshots.pop(block)
        for one in snapshot.blocks:
            self._by_block.pop(one, None)
        return snapshot

    def _forget_blocks(self, scheduled: Iterable[Scheduled], plan: Plan) -> None:
        """Forgets the snapshots of blocks that are handed out again."""
        for one in scheduled:
            # A new or resumed request has the blocks of its cached prefix too, in front.
            hits = one.computed // self._block_size if one.fresh and self._block_size is not None else 0
            for blocks in one.blocks:
                for block in blocks[hits:]:
                    if block in self._by_block:
                        plan.drops.append(self._forget(self._by_block[block]).number)

    def _schedule(self, one: Scheduled, plan: Plan) -> None:
        if one.fresh:
            self._requests[one.request] = self._start(one, plan)
        request = self._requests[one.request]
        if not one.fresh:
            for own, added in zip(request.blocks, one.blocks, strict=False):
                own.extend(added)
        request.computed, request.tokens, request.drafts, request.moved = one.computed, one.tokens, one.drafts, True
        # With drafts that were not accepted the request may be behind `computed`.
        sure = one.computed - request.draft
        first = 0 if self._block_size is None else max(sure, 0) // self._block_size
        for blocks in self._of_groups(request.blocks):
            self._slots.update({block: one.request for block in blocks[first:] if block != NULL_BLOCK})

    def _start(self, one: Scheduled, plan: Plan) -> _Request:
        """Returns a request that begins, or begins again, at zero or behind a cached prefix."""
        blocks = [list(group) for group in one.blocks]
        snapshot = None
        if one.computed > 0:
            snapshot = self._snapshot_for(one)
            if snapshot is None:
                plan.lost[one.request] = f"no snapshot is known of the {one.computed} tokens that vLLM has cached"
                return _Request(None, one.computed, 0, blocks)
        self._sessions += 1
        number = None if snapshot is None else snapshot.number
        plan.creates.append(NewSession(one.request, self._sessions, number))
        if snapshot is None:
            return _Request(self._sessions, 0, 0, blocks)
        return _Request(self._sessions, snapshot.count, snapshot.draft, blocks)

    def _snapshot_for(self, one: Scheduled) -> _Snapshot | None:
        """Returns the snapshot of the prefix that a request starts behind."""
        size = self._block_size
        if size is None or one.computed % size != 0:
            return None
        column = one.computed // size - 1
        blocks = self._of_groups(one.blocks)[0]
        snapshot = self._snapshots.get(blocks[column]) if len(blocks) > column else None
        return snapshot if snapshot is not None and snapshot.boundary == one.computed else None
