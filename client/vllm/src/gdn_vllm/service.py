"""Runs an engine's layers on gdn_server, by gdn_client. Imports neither vLLM nor torch.

    runtime = Runtime(options, layers=[0, 1, 2], block_size=None)
    runtime.begin(step)                                     # once an engine step, with `sessions.EngineStep`
    rows = runtime.rows([(slot, begin, end, computed), ...])
    runtime.run(layer, rows, x, out)                        # one call of the server; x and out are [T, D]
    report = runtime.report()

Failures: no call raises because of a server. A row whose session is lost is not computed (its output is zero), and the
report names its request with the reason.
Thread safety: for one thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdn_client import Batch, Client, GdnError, Lease, Retry, Session, StepRow
from gdn_client.session_state import new_id
from gdn_client.sliced import heads_of
from gdn_vllm.options import Options
from gdn_vllm.sessions import EngineStep, Plan, Row, Sessions

_LOGGER = logging.getLogger("gdn_vllm")
_CALLS = 2  # most housekeeping calls of an engine step
_MANY = 64  # sessions that have ended, or snapshots, above which they are deleted in a further call
_AWAY = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL"}


@dataclass(frozen=True)
class BoundRow:
    """A row of a batch: its session's step, and its tokens [begin, end) of the batch."""

    row: Row
    begin: int
    end: int


@dataclass
class Report:
    """What went wrong in an engine step.

    Attributes:
        lost: requests whose states are gone, each with the reason. They can be computed again.
        failed: requests of which no server could be asked, each with the reason.
        evict: ids of blocks whose snapshots are lost, so that nobody may start behind them.

    """

    lost: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    evict: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.failed or self.evict)


@dataclass
class Counts:
    """Calls so far.

    Attributes:
        steps: engine steps that had rows.
        step_calls: steps of layers, each of which is one call.
        housekeeping: calls that create and delete sessions and snapshots.
        most: most of them in one engine step.

    """

    steps: int = 0
    step_calls: int = 0
    housekeeping: int = 0
    most: int = 0


class _Server:
    """One server, with the sessions that its layers have there."""

    def __init__(self, target: str, options: Options) -> None:
        self._retry = Retry(overall=options.retry_seconds, connect=0.0)
        memory: Any = "auto" if options.shared_memory else None
        self.client = Client(target, retry=self._retry, keep_bytes=options.replay_bytes, shared_memory=memory)
        try:
            name = options.model or None
            models = self.client.models()
            if name is None and len(models) != 1:
                raise ValueError(f"{target} serves {len(models)} models; name one by GDN_MODEL")
            self.model = models[0] if name is None else self.client.model(name)
            self.limits = self.client.limits
            self._lease: Lease = self.client.lease(grace=options.grace_seconds)
        except BaseException:
            self.client.close()
            raise
        self._options, self._key, self._affinity = options, new_id(), new_id()
        self._sessions: dict[int, Session] = {}
        self._ended: list[Session] = []
        self._drops: list[int] = []
        self._mark = 0
        self._batches: dict[tuple[int, ...], Batch] = {}

    @property
    def layers(self) -> list[int]:
        """The layers that the server has."""
        return list(self.model.gdn_layers)

    def apply(self, plan: Plan, snapshots: Iterable[int], counts: Counts) -> tuple[dict[str, GdnError], list[int]]:
        """Carries out a plan. Returns the error of each request without a session, and the snapshots that are lost."""
        errors: dict[str, GdnError] = {}
        lost: list[int] = []
        calls = 0
        if plan.snapshots:
            calls += 1
            lost += self._take(plan)
        if plan.creates:
            calls += 1
            errors = self._create(plan)
        self._drops += plan.drops
        for number in plan.deletes:
            if (session := self._sessions.pop(number, None)) is not None:
                self._ended.append(session)
        if plan.deletes:
            self._batches.clear()
        if self._ended and (calls < _CALLS or len(self._ended) > _MANY):
            calls += 1
            self._delete()
        if self.client.snapshot_loss_mark != self._mark and calls < _CALLS:
            calls += 1
            lost += self._lost(snapshots)
        if len(self._drops) > _MANY and calls < _CALLS:
            calls += 1
            with contextlib.suppress(GdnError):
                self.client.delete_snapshots([self._name(number) for number in self._drops])
            self._drops.clear()
        counts.housekeeping += calls
        counts.most = max(counts.most, calls)
        return errors, lost

    def _name(self, snapshot: int) -> str:
        return f"{self._key}-{snapshot}"

    def _take(self, plan: Plan) -> list[int]:
        """Takes snapshots. Returns the numbers of those that could not be taken."""
        wanted = [one for one in plan.snapshots if one.session in self._sessions]
        lost = [one.snapshot for one in plan.snapshots if one.session not in self._sessions]
        if not wanted:
            return lost
        batch = self.client.batch([self._sessions[one.session] for one in wanted])
        try:
            taken: Sequence[Any] = batch.snapshot([self._name(one.snapshot) for one in wanted])
        except GdnError as error:
            taken = [error] * len(wanted)
        return lost + [one.snapshot for one, result in zip(wanted, taken, strict=True) if isinstance(result, GdnError)]

    def _create(self, plan: Plan) -> dict[str, GdnError]:
        """Creates sessions. Returns the errors of requests whose session could not be created."""
        keys = [None if one.snapshot is None else self._name(one.snapshot) for one in plan.creates]
        made = self._start(keys)
        if any(isinstance(one, GdnError) and one.reason == "LEASE_NOT_FOUND" for one in made):
            self._renew()  # the server has restarted, or has not heard of this engine for long
            made = self._start(keys)
        errors: dict[str, GdnError] = {}
        for one, session in zip(plan.creates, made, strict=True):
            if isinstance(session, GdnError):
                errors[one.request] = session
            else:
                self._sessions[one.session] = session
        return errors

    def _start(self, keys: Sequence[str | None]) -> Sequence[Session | GdnError]:
        try:
            return self.client.start_sessions(keys, self.model.name, affinity=self._affinity, lease=self._lease)
        except GdnError as error:
            return [error] * len(keys)

    def _renew(self) -> None:
        """Opens another lease."""
        with contextlib.suppress(GdnError):
            lease = self.client.lease(grace=self._options.grace_seconds)
            self._lease.stop()
            self._lease = lease

    def _delete(self) -> None:
        ended, self._ended = self._ended, []
        try:
            self.client.batch(ended).delete()
        except GdnError as error:
            _LOGGER.warning("sessions were not deleted, their lease ends them: %s", error.message)

    def _lost(self, snapshots: Iterable[int]) -> list[int]:
        """Returns those of the snapshots that the server does not have any more."""
        try:
            told = self.client.snapshots()
        except GdnError:
            return []
        self._mark = told.snapshot_loss_mark
        there = {one.key for one in told.snapshots}
        return [number for number in snapshots if self._name(number) not in there]

    def step(self, layer: int, rows: Sequence[BoundRow], x: Any, out: Any, dtype: str | None) -> dict[str, GdnError]:
        """Steps a layer in one call, and returns the error of each request whose row was not applied."""
        key = tuple(one.row.session or 0 for one in rows)
        batch = self._batches.get(key)
        if batch is None:
            self._batches.clear()
            batch = self._batches[key] = self.client.batch([self._sessions[number] for number in key])
        first, last = rows[0].begin, rows[-1].end
        try:
            if last - first == sum(one.end - one.begin for one in rows):  # nothing lies between them
                given = [StepRow(one.end - one.begin, one.row.kind, accept=one.row.accept) for one in rows]
                results = batch.step(layer, given, x=x[first:last], partial_ok=True, dtype=dtype)
            else:
                given = [StepRow(x[one.begin : one.end], one.row.kind, accept=one.row.accept) for one in rows]
                results = batch.step(layer, given, partial_ok=True, dtype=dtype)
        except GdnError as error:
            return {one.row.request: error for one in rows}
        if results.output is not None and last - first == len(results.output):
            out[first:last] = results.output
            return {}
        errors: dict[str, GdnError] = {}
        for one, result in zip(rows, results, strict=True):
            if result.error is not None:
                errors[one.row.request] = result.error
            else:
                out[one.begin : one.end] = result.output
        return errors

    def close(self) -> None:
        """Ends the lease with all its sessions, and deletes the snapshots."""
        with contextlib.suppress(GdnError):
            self._lease.end()
        self.client.close()


class Runtime:
    """The sessions of one engine's rank, and the servers that have them.

    Args:
        options: the plugin's options.
        rank: index of the rank, of `ranks` that share each layer's heads.
        ranks: number of ranks.

    Raises:
        ValueError: the servers do not have what is needed; in one line.
        GdnError: a server has not answered.

    """

    def __init__(self, options: Options, *, rank: int = 0, ranks: int = 1) -> None:
        self.options = options
        self._servers: list[_Server] = []
        self.counts = Counts()
        self.whole = True  # each layer's output is the whole one, and not a part of a sum
        self._sessions = Sessions()
        self._report = Report()
        self._numbers: set[int] = set()
        self.on_rows: Callable[[Sequence[tuple[int, int, int, int]]], None] | None = None  # for recordings
        try:
            for target in self._targets(rank, ranks):
                self._servers.append(_Server(target, options))
            self._of_layer = self._places()
        except BaseException:
            self.close()
            raise

    def _targets(self, rank: int, ranks: int) -> list[str]:
        """Returns the addresses of the servers that this rank calls. None for a rank whose output is zero."""
        targets = self.options.servers
        if ranks == 1:
            return targets
        if len(targets) == ranks:
            return [targets[rank]]
        if len(targets) != 1:
            raise ValueError(f"there are {len(targets)} servers, expected 1, or {ranks} with a slice of the heads each")
        return targets if rank == 0 else []

    def _places(self) -> dict[int, _Server]:
        places: dict[int, _Server] = {}
        for server in self._servers:
            if server.model.whole_fingerprint != self._servers[0].model.whole_fingerprint:
                raise ValueError(f"{server.client.target} and {self._servers[0].client.target} serve different models")
            first, end, total = heads_of(server.model)
            self.whole = self.whole and end - first == total
            for layer in server.layers:
                if layer in places:
                    raise ValueError(f"layer {layer} is on two servers, expected on one")
                places[layer] = server
        return places

    @property
    def active(self) -> bool:
        """Whether this rank computes anything. The output of a rank that does not is zero."""
        return bool(self._servers)

    def model(self, layer: int) -> Any:
        """Returns the served model (gdn.v1.Model) that has the layer.

        Raises:
            ValueError: no server has the layer.

        """
        if layer not in self._of_layer:
            raise ValueError(f"no server has layer {layer}, they have {sorted(self._of_layer)}")
        return self._of_layer[layer].model

    @property
    def max_draft(self) -> int:
        """Most tokens of a row that drafts."""
        return min((int(server.limits.max_draft) for server in self._servers), default=1 << 30)

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of a message."""
        return min((int(server.limits.max_message_bytes) for server in self._servers), default=1 << 62)

    def use(self, block_size: int | None, groups: Sequence[int] | None) -> None:
        """Sets the block size of prefix caching (None: there is none) and the layers' KV cache groups."""
        self._sessions = Sessions(block_size, groups)

    def begin(self, step: EngineStep) -> None:
        """Begins an engine step."""
        plan = self._sessions.begin(step)
        self._report = Report(lost=dict(plan.lost))
        self._numbers |= {one.snapshot for one in plan.snapshots}
        self._numbers -= set(plan.drops)
        if step.scheduled:
            self.counts.steps += 1
        for server in self._servers:
            errors, lost = server.apply(plan, self._numbers, self.counts)
            for request, error in errors.items():
                self._lose(request, error)
            for number in lost:
                self._numbers.discard(number)
                self._report.evict += self._sessions.lose_snapshot(number)

    def rows(self, batch: Sequence[tuple[int, int, int, int]]) -> list[BoundRow]:
        """Returns the rows of a batch, each given by its slot, its tokens [begin, end) and the tokens behind it."""
        if self.on_rows is not None:
            self.on_rows(batch)
        return [
            BoundRow(self._sessions.row(slot, computed, end - begin), begin, end)
            for slot, begin, end, computed in batch
            if end > begin
        ]

    def run(self, layer: int, rows: Sequence[BoundRow], x: Any, out: Any, dtype: str | None = None) -> None:
        """Computes a layer.

        Args:
            layer: index of the layer.
            rows: rows of the batch.
            x: hidden states `[T, D]`.
            out: output `[T, D]`. Rows without a session become zero.
            dtype: dtype of the output, as in `gdn_client.Batch.step`.

        """
        gone = self._report.lost.keys() | self._report.failed.keys()
        alive = [one for one in rows if one.row.session is not None and one.row.request not in gone]
        if len(alive) < len(rows) or not rows or rows[-1].end < len(out):
            out[:] = 0
        if not alive or not self.active:
            return
        self.counts.step_calls += 1
        for request, error in self._of_layer[layer].step(layer, alive, x, out, dtype).items():
            self._lose(request, error)

    def _lose(self, request: str, error: GdnError) -> None:
        reason = f"{error.reason or error.code.name}: {error.message}"
        away = not error.reason and error.code.name in _AWAY
        (self._report.failed if away else self._report.lost)[request] = reason
        self._sessions.lose(request)

    def report(self) -> Report:
        """Returns what went wrong in the present engine step."""
        return self._report

    def close(self) -> None:
        """Ends everything on the servers. Calling it again has no effect."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
