"""Steps that run while the caller does something else: futures for threads.

    first = front.decode_future(layer, x)      # two batches of different sessions: both are in flight at once
    second = back.decode_future(layer, y)
    attention(first.result())

Order: calls on one session, futures and plain calls alike, run in the order in which they were made. Different sessions
do not wait for each other. If a step fails, the steps behind it are not applied, so that no token is left out. They
raise AbortedError (PREVIOUS_SEGMENT_FAILED) until `result` or `exception` of every failed future was called. A plain
call is refused only once, and clears the failure. A future can be cancelled until its step begins.
Exactness: as in plain calls, every step is applied once, and outputs have the same bits. Inputs are read when a step
begins. Do not change them until its future is done.
Thread safety: make all calls on one session from one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

from gdn_client.errors import AbortedError
from gdn_client.session_state import SessionState

S = TypeVar("S")
T = TypeVar("T")
THREADS = 32


def map_at_once(threads: ThreadPoolExecutor, call: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Runs `call` for each item, all at the same time, and returns the results in order.

    Raises:
        BaseException: the error of the first item that failed, after all calls have ended.

    """
    futures = [threads.submit(call, item) for item in items]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


class StepFuture(Future[T]):
    """The future of a step. It knows whether its result was looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.over = threading.Event()  # set when it and all steps before it have ended; a cancelled one is done earlier
        self.next: list[Callable[[], None]] = []

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(timeout)
        finally:
            self.seen = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self.seen = self.done()

    def stands(self) -> bool:
        """Whether later steps may be applied, now that this one has ended."""
        if self.cancelled():
            return self.seen
        return self.seen or super().exception() is None


def _refusal(states: Iterable[SessionState]) -> AbortedError:
    names = ", ".join(state.name for state in states)
    return AbortedError(
        f"an earlier step of {names} has failed, and this one was not taken; look at the futures of all that were "
        "asked for after it, and ask again",
        reason="PREVIOUS_SEGMENT_FAILED",
    )


def settle(states: Iterable[SessionState]) -> None:
    """Waits for all earlier futures of the sessions.

    Raises:
        AbortedError: one of them has failed, and nobody has looked at its result.

    """
    for state in states:
        last = state.last
        if last is None:
            continue
        state.last = None
        last.over.wait()
        if not last.stands():
            raise _refusal([state])


class Futures:
    """The threads of one client that run its futures' steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._open: set[StepFuture[Any]] = set()

    def start(self, states: Sequence[SessionState], work: Callable[[], T]) -> StepFuture[T]:
        """Runs `work` after everything that was asked of the sessions before."""
        future: StepFuture[T] = StepFuture()
        before = list({id(state.last): state.last for state in states if state.last is not None}.values())
        for state in states:
            state.last = future
        with self._lock:
            self._open.add(future)
        waits = len(before) + 1

        def one_is_over() -> None:
            nonlocal waits
            with self._lock:
                waits -= 1
                if waits > 0:
                    return
            self._pool().submit(self._carry_out, future, work, states, before)

        for earlier in before:
            with self._lock:
                if not earlier.over.is_set():
                    earlier.next.append(one_is_over)
                    continue
            one_is_over()
        one_is_over()
        return future

    def close(self) -> None:
        """Waits for everything that was asked for."""
        while True:
            with self._lock:
                still_open = list(self._open)
                if not still_open:
                    break
            for future in still_open:
                future.over.wait()
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)  # only callbacks are left; this may be called from one

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gdn-client")
            return self._threads

    def _carry_out(
        self,
        future: StepFuture[T],
        work: Callable[[], T],
        states: Sequence[SessionState],
        before: Sequence[StepFuture[Any]],
    ) -> None:
        result, failure = None, None
        begins = future.set_running_or_notify_cancel()
        try:
            if begins and not all(earlier.stands() for earlier in before):
                raise _refusal(states)
            result = work() if begins else None
        except BaseException as error:
            failure = error
        # Frees the way first, because the future's callbacks may make new calls on the session.
        with self._lock:
            self._open.discard(future)
            future.over.set()
        for start_next in future.next:
            start_next()
        if begins and failure is not None:
            future.set_exception(failure)
        elif begins:
            future.set_result(cast(T, result))
