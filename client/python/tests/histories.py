"""Random histories of calls, on sessions whose server fails and on twins whose server does not.

Every output is compared with the twin's. A call may be given up; then the same call is made again, or another one. What
is lost must be told, and may be told only if the inputs of the session were not all kept.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gdn_client
from gdn_client import StepResult, StepRow, aio
from gdn_client.calls import ASTRAY
from gdn_client.flow import Retry
from gdn_client.session_state import new_id

GIVEN_UP = (gdn_client.UnavailableError, gdn_client.DeadlineExceededError, asyncio.CancelledError)
MOST_TOKENS = 5
WINDOW = 3


class AioSession:
    """A session of asyncio's client with the other's methods. Now and then the task of a call is cancelled."""

    def __init__(self, runner: AioClient, session: aio.Session) -> None:
        self._runner, self._session = runner, session
        self._state = session._state

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._session, name)
        if name == "fork":
            return lambda *given, **named: [
                AioSession(self._runner, child) for child in self._runner.run(method(*given, **named))
            ]
        if name in ("decode_stream", "prefill_stream", "watch_state"):
            return lambda *given, **named: self._runner.iterate(method(*given, **named))
        if not asyncio.iscoroutinefunction(method):
            return method
        return lambda *given, **named: self._runner.run(method(*given, **named))


class AioBatch:
    def __init__(self, runner: AioClient, batch: aio.Batch) -> None:
        self._runner, self._batch = runner, batch

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._batch, name)
        if name in ("decode_stream", "step_stream"):
            return lambda *given, **named: self._runner.iterate(method(*given, **named))
        if name == "fork":
            return lambda *given, **named: [
                [AioSession(self._runner, child) for child in own] for own in self._runner.run(method(*given, **named))
            ]
        return lambda *given, **named: self._runner.run(method(*given, **named))


class AioClient:
    """asyncio's client with the other's methods."""

    def __init__(self, make: Callable[[], aio.Client], random: np.random.Generator) -> None:
        async def made() -> aio.Client:
            return make()

        self.loop, self._random = asyncio.new_event_loop(), random
        self.client = self.loop.run_until_complete(made())
        self.cancels = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def cancelled(after: int) -> Any:
            task = asyncio.ensure_future(work)
            for _ in range(after):
                await asyncio.sleep(0)
            task.cancel()
            return await task

        if self.cancels and self._random.random() < 0.1:
            return self.loop.run_until_complete(cancelled(int(self._random.integers(0, 12))))
        return self.loop.run_until_complete(work)

    def iterate(self, outputs: Any) -> Iterator[Any]:
        while True:
            try:
                yield self.run(outputs.__anext__())
            except StopAsyncIteration:
                return

    def session(self, *given: Any, **named: Any) -> AioSession:
        return AioSession(self, self.loop.run_until_complete(self.client.session(*given, **named)))

    def import_state(self, *given: Any, **named: Any) -> AioSession:
        return AioSession(self, self.loop.run_until_complete(self.client.import_state(*given, **named)))

    def batch(self, sessions: Sequence[AioSession]) -> AioBatch:
        return AioBatch(self, self.client.batch([one._session for one in sessions]))

    def close(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


def _is_astray(error: gdn_client.GdnError) -> bool:
    return error.reason in ASTRAY and not isinstance(error, gdn_client.SessionLostError)


@dataclass(eq=False)
class Pair:
    """A session and its twin."""

    mine: Any
    twin: Any
    drafts: dict[int, int] = field(default_factory=dict)  # by layer, tokens that wait
    tree: bool = False
    named: list[str] = field(default_factory=list)
    may_have_named: bool = False  # on the server
    is_durable: bool = False  # by a call of its own


class History:
    """Calls, one after the other.

    Args:
        mine: client of the server that fails.
        calm: client of the one that does not.
        seed: of everything that is random here.
        disturb: called before each call with whether faults may come in it.
        newest: whether the newest durable copy is always that of the last `checkpoint`.
        size: of a token.
        layers: to step.
        whole_steps: whether the server knows Step, so that a step is given up as a whole.

    """

    def __init__(
        self,
        mine: Any,
        calm: gdn_client.Client,
        seed: int,
        disturb: Callable[[bool], None],
        *,
        newest: bool,
        size: int,
        layers: Sequence[int],
        model: str,
        given_up_after: float = 0.0,
        whole_steps: bool = True,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.clients, self.model = (mine, calm), model
        self.disturb, self.newest, self.size, self.layers = disturb, newest, size, list(layers)
        self.given_up_after, self.whole_steps = given_up_after, whole_steps
        self.pairs: list[Pair] = []
        self.told: collections.Counter[str] = collections.Counter()
        self.outputs = self.resets = 0
        self.trace: list[str] = []

    # --- The frame.

    def run(self, calls: int, sessions: int = 4) -> None:
        kinds = [name.removeprefix("do_") for name in dir(self) if name.startswith("do_")]
        for _ in range(calls):
            while len(self.pairs) < sessions:
                self.pairs.append(self.new_pair())
            kind = str(self.random.choice(kinds))
            self.told[kind] += getattr(self, f"do_{kind}")() is not False
        self.disturb(False)
        for pair in list(self.pairs):
            self.accept_drafts([pair])
            if pair not in self.pairs:
                continue
            with self.losses_of([pair]):
                for layer in self.layers:
                    x = self.tokens(1)[0]
                    self.same(pair.mine.decode(layer, x), pair.twin.decode(layer, x))

    def new_pair(self) -> Pair:
        self.disturb(False)
        keep = {} if self.random.random() < 0.8 else {"keep_bytes": int(self.random.integers(1, 40 * self.size))}
        named = {"session_id": new_id(), **keep}
        self.trace.append(f"new {named}")
        return Pair(*(client.session(self.model, **named) for client in self.clients))

    def tokens(self, *lead: int) -> np.ndarray:
        return self.random.standard_normal((*lead, self.size)).astype(np.float32)

    def layer(self) -> int:
        return int(self.random.choice(self.layers))

    def some(self, most: int) -> int:
        return int(self.random.integers(1, most + 1))

    def pick(self, layer: int | None = None) -> Pair | None:
        """One without a draft in the layer; None: without any."""
        free = [pair for pair in self.pairs if not (pair.drafts if layer is None else layer in pair.drafts)]
        return free[int(self.random.integers(len(free)))] if free else None

    def same(self, got: np.ndarray, want: np.ndarray) -> None:
        np.testing.assert_array_equal(got, want, err_msg="\n".join(self.trace[-12:]))
        self.outputs += 1

    @contextlib.contextmanager
    def losses_of(self, pairs: Sequence[Pair]) -> Iterator[None]:
        """A session that is lost goes; its inputs were not all kept, or named checkpoints would go with it."""
        try:
            yield
        except gdn_client.SessionLostError as error:
            if not error.metadata:
                raise
            name = error.metadata["session"]
            (lost,) = [pair for pair in pairs if pair.mine.name == name]
            state = lost.mine._state
            assert not state.kept_from_start or lost.may_have_named, [str(error), *self.trace[-12:]]
            self.told["lost"] += 1
            self.trace.append(f"lost {name}: {error}")
            for pair in pairs:  # the others of its call may have moved or not
                self.retire(pair)

    def retire(self, pair: Pair) -> None:
        self.pairs.remove(pair)
        self.disturb(False)
        for session in (pair.mine, pair.twin):
            with contextlib.suppress(gdn_client.AbortedError):
                session.delete()

    def attempt(self, what: str, pairs: Sequence[Pair], mine: Callable[[], Any]) -> tuple[bool, Any]:
        """The result of a call, given up and asked for again or not; False: it never was."""
        patient = Retry() if self.given_up_after == 0.0 else Retry(overall=60.0)
        self.trace.append(
            f"{what} of {[pair.mine.id for pair in pairs]} at "
            f"{[[pair.mine.token_count(layer) for layer in self.layers] for pair in pairs]}"
        )
        gives_up = self.random.random() < 0.25
        for pair in pairs:
            pair.mine._state.retry = Retry(overall=self.given_up_after) if gives_up else patient
        self.disturb(True)
        if isinstance(self.clients[0], AioClient):
            self.clients[0].cancels = gives_up
        try:
            return True, mine()
        except (gdn_client.GdnError, asyncio.CancelledError) as error:
            if not isinstance(error, GIVEN_UP) and not (
                gives_up and isinstance(error, gdn_client.GdnError) and _is_astray(error)
            ):
                raise
            self.trace.append(f"given up: {error!r}")
            self.told["given up"] += 1
        finally:
            self.disturb(False)
            for pair in pairs:
                pair.mine._state.retry = patient
            if isinstance(self.clients[0], AioClient):
                self.clients[0].cancels = False
        if self.random.random() < 0.5:
            self.trace.append("the same again")
            return True, mine()
        return False, None

    # --- Calls. False: there was no session for it.

    def step(self, what: str, pairs: Sequence[Pair], mine: Callable[[], Any], twin: Callable[[], Any]) -> bool:
        with self.losses_of(pairs):
            done, got = self.attempt(what, pairs, mine)
            if done:
                self.same(got, twin())
            return done
        return False

    def do_prefill(self) -> bool:
        layer, x = self.layer(), self.tokens(self.some(MOST_TOKENS))
        pair = self.pick(layer)
        return pair is not None and self.step(
            f"prefill {len(x)}", [pair], lambda: pair.mine.prefill(layer, x), lambda: pair.twin.prefill(layer, x)
        )

    def do_decode(self) -> bool:
        layer, x = self.layer(), self.tokens(self.some(MOST_TOKENS))
        pair = self.pick(layer)
        return pair is not None and self.step(
            f"decode {len(x)}", [pair], lambda: pair.mine.decode(layer, x), lambda: pair.twin.decode(layer, x)
        )

    def some_pairs(self, layer: int) -> list[Pair]:
        free = [pair for pair in self.pairs if layer not in pair.drafts]
        chosen = self.random.permutation(len(free))[: self.some(3)]
        return [free[int(i)] for i in chosen]

    def batches(self, pairs: Sequence[Pair]) -> tuple[Any, Any]:
        mine, calm = self.clients
        return mine.batch([pair.mine for pair in pairs]), calm.batch([pair.twin for pair in pairs])

    def do_batch(self) -> bool:
        layer = self.layer()
        pairs = self.some_pairs(layer)
        if not pairs:
            return False
        x = self.tokens(len(pairs), self.some(MOST_TOKENS))
        lengths = (
            None
            if self.random.random() < 0.5
            else [int(n) for n in self.random.integers(0, x.shape[1] + 1, len(pairs))]
        )
        mine, twin = self.batches(pairs)
        return self.step(
            f"batch {x.shape} {lengths}",
            pairs,
            lambda: mine.decode(layer, x, lengths=lengths),
            lambda: twin.decode(layer, x, lengths=lengths),
        )

    def do_draft(self) -> bool:
        layer = self.layer()
        pairs = [pair for pair in self.some_pairs(layer) if not pair.drafts]
        if not pairs:
            return False
        length = self.some(MOST_TOKENS)
        x = self.tokens(len(pairs), length)
        tree = self.random.random() < 0.5
        parents = [int(self.random.integers(-1, token)) for token in range(length)] if tree else None
        mine, twin = self.batches(pairs)
        done = self.step(
            f"draft {length} {parents}",
            pairs,
            lambda: mine.decode(layer, x, draft=True, parents=parents),
            lambda: twin.decode(layer, x, draft=True, parents=parents),
        )
        for pair in pairs if done else ():
            pair.drafts, pair.tree = {layer: length}, tree
            pair.parents = parents or list(range(-1, length - 1))
        return done

    def choice(self, pair: Pair) -> int | list[int]:
        length = min(pair.drafts.values(), default=0)
        if not pair.tree and self.random.random() < 0.5:
            return int(self.random.integers(0, length + 1))
        path: list[int] = []
        for token in range(length):
            follows = path[-1] if path else -1
            if pair.parents[token] == follows and self.random.random() < 0.7:
                path.append(token)
        return path

    def do_step(self) -> bool:
        """Rows of every kind; a layer with a draft accepts some of it, while other layers keep theirs."""
        layer = self.layer()
        free = [pair for pair in self.pairs if not pair.drafts or layer in pair.drafts]
        pairs = [free[int(i)] for i in self.random.permutation(len(free))[: self.some(4)]]
        if not pairs:
            return False
        rows = []
        for pair in pairs:
            kind = str(self.random.choice(["decode", "draft", "prefill"]))
            x = self.tokens(int(self.random.integers(0, MOST_TOKENS + 1)))
            tree = kind == "draft" and self.random.random() < 0.5
            parents = [int(self.random.integers(-1, token)) for token in range(len(x))] if tree else None
            rows.append(StepRow(x, kind, parents, self.choice(pair) if pair.drafts else None))
        partial_ok, got = bool(self.random.random() < 0.3), dict[int, StepResult]()

        def step() -> None:
            """Steps the rows that have no result yet."""
            left = [at for at in range(len(rows)) if at not in got]
            mine = self.batches([pairs[at] for at in left])[0]
            results = mine.step(layer, [rows[at] for at in left], partial_ok=partial_ok)
            failed = None
            for at, result in zip(left, results, strict=True):
                if result.error is None or isinstance(result.error, gdn_client.SessionLostError):
                    got[at] = result
                else:
                    failed = result.error
            if failed is not None:
                raise failed

        with self.losses_of(pairs):
            try:
                what = [(row.kind, len(row.x), row.parents, row.accept) for row in rows]
                done, _ = self.attempt(f"step of {layer}, {partial_ok}: {what}", pairs, step)
                if not done and not self.whole_steps:
                    step()
            finally:
                for at, result in got.items():
                    if result.error is None:
                        self.same(result.output, self.twin_row(pairs[at], layer, rows[at]))
            for at, result in got.items():
                if result.error is not None:
                    with self.losses_of([pairs[at]]):
                        raise result.error
            return len(got) == len(rows)
        return False

    @staticmethod
    def twin_row(pair: Pair, layer: int, row: StepRow) -> np.ndarray:
        """The row by the twin's other methods."""
        if row.accept is not None:
            pair.twin.accept(row.accept)
        pair.drafts, pair.tree = {}, row.parents is not None
        if row.kind == "draft" and len(row.x) > 0:
            pair.drafts, pair.parents = {layer: len(row.x)}, list(row.parents or range(-1, len(row.x) - 1))
        if row.kind == "prefill":
            return pair.twin.prefill(layer, row.x)
        if len(row.x) == 0:
            return row.x
        return pair.twin.decode(layer, row.x, draft=row.kind == "draft", parents=row.parents)

    def do_accept(self) -> bool:
        drafts = [pair for pair in self.pairs if pair.drafts]
        pairs = [drafts[int(i)] for i in self.random.permutation(len(drafts))[: self.some(3)]]
        return bool(pairs) and self.accept_drafts(pairs)

    def accept_drafts(self, pairs: Sequence[Pair]) -> bool:
        done = False
        with self.losses_of(pairs):
            for _ in range(4):
                choices = [self.choice(pair) for pair in pairs]
                mine, twin = self.batches(pairs)
                done, _ = self.attempt(f"accept {choices}", pairs, lambda: mine.accept(choices))  # noqa: B023
                if done:
                    break
            else:
                mine.accept(choices)
            twin.accept(choices)
            for pair in pairs:
                pair.drafts = {}
                assert [pair.mine.token_count(one) for one in self.layers] == [
                    pair.twin.token_count(one) for one in self.layers
                ], self.trace[-12:]
        return done

    def stream(
        self,
        what: str,
        pairs: Sequence[Pair],
        steps: int,
        mine: Callable[[], Iterator[Any]],
        twin: Callable[[int], Any],
    ) -> bool:
        """Outputs that have come stand, whatever becomes of those behind."""
        got: list[np.ndarray] = []

        def outputs() -> None:
            if not got:  # else those that have come are not to come again
                for output in mine():
                    got.append(output)

        with self.losses_of(pairs):
            try:
                self.attempt(what, pairs, outputs)
            finally:
                for at, output in enumerate(got):
                    self.same(output, twin(at))
            return len(got) == steps
        return False

    def do_decode_stream(self) -> bool:
        layer = self.layer()
        pairs = self.some_pairs(layer)
        if not pairs:
            return False
        x = self.tokens(self.some(8), len(pairs), self.some(2))
        mine, twin = self.batches(pairs)
        return self.stream(
            f"stream of decodes {x.shape}",
            pairs,
            len(x),
            lambda: mine.decode_stream(layer, x, window=WINDOW),
            lambda at: twin.decode(layer, x[at]),
        )

    def do_step_stream(self) -> bool:
        layer = self.layer()
        pairs = self.some_pairs(layer)
        if not pairs or not self.whole_steps:
            return False
        steps = []
        for _ in range(self.some(6)):
            lengths = [int(self.random.integers(0, MOST_TOKENS + 1)) for _ in pairs]
            kinds = [str(kind) for kind in self.random.choice(["decode", "prefill"], len(pairs))]
            steps.append([StepRow(self.tokens(n), kind) for n, kind in zip(lengths, kinds, strict=True)])
        mine, _ = self.batches(pairs)
        return self.stream(
            f"stream of steps {[[(row.kind, len(row.x)) for row in rows] for rows in steps]}",
            pairs,
            len(steps),
            lambda: (
                np.concatenate([result.output for result in results])
                for results in mine.step_stream(layer, steps, window=WINDOW)
            ),
            lambda at: np.concatenate(
                [self.plain_row(pair, layer, row) for pair, row in zip(pairs, steps[at], strict=True)]
            ),
        )

    @staticmethod
    def plain_row(pair: Pair, layer: int, row: StepRow) -> np.ndarray:
        """A row without a draft, by the twin's other methods."""
        if row.kind == "prefill":
            return pair.twin.prefill(layer, row.x)
        return pair.twin.decode(layer, row.x) if len(row.x) > 0 else row.x

    def do_prefill_stream(self) -> bool:
        layer = self.layer()
        pair = self.pick(layer)
        if pair is None:
            return False
        parts = [self.tokens(self.some(MOST_TOKENS)) for _ in range(self.some(4))]
        return self.stream(
            f"stream of prefills {[len(part) for part in parts]}",
            [pair],
            len(parts),
            lambda: pair.mine.prefill_stream(layer, parts),
            lambda at: pair.twin.prefill(layer, parts[at]),
        )

    def do_futures(self) -> bool:
        layer, x = self.layer(), self.tokens(self.some(4))
        pair = self.pick(layer)
        if pair is None or not hasattr(type(pair.mine), "decode_future"):
            return False
        got: list[np.ndarray] = []

        def outputs() -> None:
            failed = None
            asked = [pair.mine.decode_future(layer, row) for row in x[len(got) :]]
            concurrent.futures.wait(asked)  # one that is looked at clears the way for those behind it
            for future in asked:
                if (error := future.exception()) is None:
                    got.append(future.result())
                failed = failed or error
            if failed is not None:
                raise failed

        with self.losses_of([pair]):
            try:
                self.attempt(f"futures {len(x)}", [pair], outputs)
            finally:
                for at, output in enumerate(got):
                    self.same(output, pair.twin.decode(layer, x[at]))
            return len(got) == len(x)
        return False

    def do_fork_many(self) -> bool:
        pairs = [self.pairs[int(i)] for i in self.random.permutation(len(self.pairs))[: self.some(3)]]
        with self.losses_of(pairs):
            mine, _ = self.batches(pairs)
            done, children = self.attempt("fork of many", pairs, mine.fork)
            if not done:
                return False
            for pair, own, twins in zip(pairs, children, [pair.twin.fork() for pair in pairs], strict=True):
                child = Pair(own[0], twins[0], dict(pair.drafts), pair.tree)
                child.parents = getattr(pair, "parents", [])
                self.pairs.append(child)
            while len(self.pairs) > 6:
                self.retire(self.pairs[int(self.random.integers(len(self.pairs)))])
            return True
        return False

    def do_reset(self) -> bool:
        if self.random.random() < 0.5:  # it ends what the other calls have built up
            return False
        pairs = [self.pairs[int(i)] for i in self.random.permutation(len(self.pairs))[: self.some(2)]]
        self.resets += 1
        with self.losses_of(pairs):
            mine, twin = self.batches(pairs)
            done, _ = self.attempt("reset", pairs, mine.reset)
            if not done and any(pair.mine._state.restoring for pair in pairs):  # no other call is taken
                mine.reset()
                done = True
            if done:
                twin.reset()
            for pair in pairs if done else ():
                pair.drafts, pair.tree, pair.is_durable = {}, False, False
                if pair.mine.stats.recreations > 0:  # the checkpoints have gone with the session of before
                    pair.named.clear()
            return done
        return False

    def do_fork(self) -> bool:
        pair = self.pairs[int(self.random.integers(len(self.pairs)))]
        ids = [new_id() for _ in range(self.some(2))]
        with self.losses_of([pair]):
            done, children = self.attempt(f"fork {ids}", [pair], lambda: pair.mine.fork(ids=ids))
            if not done:
                return False
            for mine, twin in zip(children, pair.twin.fork(ids=ids), strict=True):
                child = Pair(mine, twin, dict(pair.drafts), pair.tree)
                child.parents = getattr(pair, "parents", [])
                self.pairs.append(child)
            while len(self.pairs) > 6:
                self.retire(self.pairs[int(self.random.integers(len(self.pairs)))])
            return True
        return False

    def do_checkpoint(self) -> bool:
        pair = self.pick()
        if pair is None:
            return False
        name = "" if self.random.random() < 0.5 or len(pair.named) > 2 else f"c{len(pair.named)}"
        pair.may_have_named |= name != ""
        with self.losses_of([pair]):
            done, _ = self.attempt(f"checkpoint {name!r}", [pair], lambda: pair.mine.checkpoint(name))
            if done:
                pair.twin.checkpoint(name)
                pair.is_durable |= not name
                if name:
                    pair.named.append(name)
            else:
                pair.is_durable = False  # it may be, as it was then
            return done
        return False

    def do_restore(self) -> bool:
        pair = self.pick()
        if pair is None:
            return False
        # With little room for inputs the client makes checkpoints by itself.
        newest = self.newest and pair.is_durable and pair.mine._state.keep_bytes > 1 << 20
        names = [*pair.named, *([""] if newest else [])]
        if not names:
            return False
        name = str(self.random.choice(names))
        with self.losses_of([pair]):
            try:
                done, _ = self.attempt(f"restore {name!r}", [pair], lambda: pair.mine.restore(name))
                if not done and pair.mine._state.restoring:  # it may have been applied, and no other call is taken
                    pair.mine.restore(name)
                    done = True
            except gdn_client.NotFoundError:
                # It has gone with a session that had no other durable copy. If an earlier try of the restore was not
                # answered, no other call is taken.
                pair.named.clear()
                if pair.mine._state.restoring:
                    self.retire(pair)
                return False
            if done:
                pair.twin.restore(name)
            pair.is_durable = done
            return done
        return False

    def do_export(self) -> bool:
        pair = self.pick()
        if pair is None or len(self.pairs) > 5:
            return False
        with self.losses_of([pair]):
            done, file = self.attempt("export", [pair], pair.mine.export_state)
            if done:
                files = (file, pair.twin.export_state())
                name = {"session_id": new_id(), "model": self.model}
                self.pairs.append(Pair(*(c.import_state(f, **name) for c, f in zip(self.clients, files, strict=True))))
            return done
        return False

    def do_watch(self) -> bool:
        pair = self.pick()
        if pair is None:
            return False
        watches: list[Any] = []

        def first() -> Any:
            watches.append(pair.mine.watch_state(every_tokens=1))
            return next(watches[-1])

        with self.losses_of([pair]):
            done, snapshot = self.attempt("watch", [pair], first)
            if done:
                self.check_snapshot(snapshot.file, pair)
            return done
        return False

    def check_snapshot(self, file: bytes, pair: Pair) -> None:
        """It is taken up as the twin is."""
        mine = self.clients[0].import_state(file, model=self.model, session_id=new_id())
        (twin,) = pair.twin.fork()
        layer, x = self.layer(), self.tokens(2)
        self.same(mine.decode(layer, x), twin.decode(layer, x))
        mine.delete()
        twin.delete()
