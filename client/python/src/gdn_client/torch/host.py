"""The server of some layers: its client, and what many caches of one model share.

Thread safety: any thread may use a LayerHost.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar, cast

from gdn_client.client import Client, model_name, only_model
from gdn_client.errors import GdnError
from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.session import Batch, Session
from gdn_client.session_flow import new_id
from gdn_client.sliced import SlicedBatch, SlicedClient, SlicedSession

T = TypeVar("T")
R = TypeVar("R")

AnySession: TypeAlias = Session | SlicedSession

MAX_CALLS_AT_ONCE = 32  # prompts are sent a call each, and the server puts together what comes together
EXIT_SECONDS = 10.0


class Reaper:
    """Ends sessions, in a thread of its own: a cache may be collected anywhere, also where no call can be made."""

    def __init__(self) -> None:
        self._sessions: queue.SimpleQueue[AnySession | threading.Event | None] = queue.SimpleQueue()
        self._open: dict[str, AnySession] = {}  # made and not ended yet, by name
        arguments = (self._sessions, self._open)
        self._thread = threading.Thread(target=self._run, args=arguments, name="gdn-reaper", daemon=True)
        self._thread.start()

    def made(self, session: AnySession) -> None:
        """The session is ended by `end`, or by `stop` at the latest."""
        self._open[session.name] = session

    def end(self, *lists: Iterable[AnySession]) -> None:
        """Soon, without waiting. A finalizer may call it."""
        for sessions in lists:
            for session in sessions:
                self._sessions.put(session)

    def wait(self) -> None:
        """Until the sessions that were given so far have ended, `EXIT_SECONDS` at most."""
        reached = threading.Event()
        self._sessions.put(reached)
        reached.wait(EXIT_SECONDS)

    def stop(self) -> None:
        """Ends every session that was made, and waits for that, `EXIT_SECONDS` at most."""
        self.end(list(self._open.values()))
        self._sessions.put(None)
        self._thread.join(EXIT_SECONDS)

    @staticmethod
    def _run(
        sessions: queue.SimpleQueue[AnySession | threading.Event | None], still_open: dict[str, AnySession]
    ) -> None:
        while (session := sessions.get()) is not None:
            if isinstance(session, threading.Event):
                session.set()
                continue
            if still_open.pop(session.name, None) is None:
                continue  # it was given twice
            with contextlib.suppress(GdnError, ValueError):  # what is left ends by its idle TTL
                session.delete()


class LayerHost:
    """A served model whose layers run for a local one.

    Args:
        client: of the server, or of the servers that have some of the model's heads each; it is not closed.
        model: the served model's name; None: the only one.
        layers: indices that are used here; None: all of its Gated DeltaNet layers.
        idle_ttl: seconds after which the server ends a session that nobody steps; None: the server's.

    Raises:
        ValueError: the server does not have such a model, or not such layers.

    """

    def __init__(
        self,
        client: Client | SlicedClient,
        model: str | None = None,
        layers: Iterable[int] | None = None,
        *,
        idle_ttl: float | None = None,
    ) -> None:
        self.client = client
        self.model: info_pb2.Model = client.model(only_model(client.models()) if model is None else model_name(model))
        served = list(self.model.gdn_layers)
        self.layers: list[int] = served if layers is None else sorted(layers)
        if missing := sorted(set(self.layers) - set(served)):
            raise ValueError(
                f"{self.model.name} at {client.target} has no Gated DeltaNet layers {missing}, it has {served}"
            )
        self.max_draft: int = client.limits.max_draft
        self.max_batch: int = client.limits.max_batch
        self._idle_ttl = idle_ttl
        self._pool = ThreadPoolExecutor(MAX_CALLS_AT_ONCE, thread_name_prefix="gdn")
        self.reaper = Reaper()
        self._finish = weakref.finalize(self, _finish, self.reaper, self._pool)

    def __repr__(self) -> str:
        return f"<{self.model.name} at {self.client.target}, layers {self.layers}>"

    def close(self) -> None:
        """Ends all sessions of this host, those of caches that are still there too, and the threads. Once is enough.

        A layer or a cache of a host that is closed raises RuntimeError when it is stepped.
        """
        self._finish()

    def _check_is_open(self) -> None:
        if not self._finish.alive:
            raise RuntimeError(
                f"the attachment to {self} is closed, and its sessions have ended; load the model again and attach it, "
                "or attach with keep_local=True and call detach() to go on with the local layers"
            )

    def new_sessions(self, count: int, affinity: str) -> list[AnySession]:
        """At zero; on one device, as those of one affinity are. If one cannot be made, none is left."""
        self._check_is_open()
        return self._all_or_none(lambda _: [self._new_session(affinity)], range(count))

    def _all_or_none(self, make: Callable[[T], list[AnySession]], items: Sequence[T]) -> list[AnySession]:
        """The sessions that `make` gives for each item; those of the others end if one fails."""
        made: list[AnySession] = []

        def one(item: T) -> list[AnySession]:
            sessions = make(item)
            for session in sessions:
                self.reaper.made(session)
            made.extend(sessions)
            return sessions

        try:
            return [session for sessions in self.map(one, items) for session in sessions]
        except BaseException:
            self.reaper.end(made)
            raise

    def _new_session(self, affinity: str) -> AnySession:
        session = self.client.session(self.model.name, affinity=affinity, idle_ttl=self._idle_ttl)
        # Beams are forked at every token: their inputs are kept as long as there is room, so that no fork needs a copy
        # on the server's disk.
        for part in session.parts if isinstance(session, SlicedSession) else [session]:
            part._state.keeps_durable = True
        return session

    def fork(self, session: AnySession, count: int = 1) -> list[AnySession]:
        """Sessions that go on from there, also after a crash of the server."""
        self._check_is_open()
        return self._all_or_none(lambda one: list(one.fork(count, idle_ttl=self._idle_ttl, durable=True)), [session])

    def fork_each(self, sessions: Sequence[AnySession]) -> list[AnySession]:
        """A session that goes on from each of them. If one cannot be forked, no fork is left."""
        self._check_is_open()
        return self._all_or_none(lambda one: list(one.fork(1, idle_ttl=self._idle_ttl, durable=True)), sessions)

    def batch(self, sessions: Sequence[AnySession]) -> Batch | SlicedBatch:
        """Sessions to decode in one call of a server."""
        self._check_is_open()
        return cast(Any, self.client).batch(sessions)  # type: ignore[no-any-return]

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`call` of each, at the same time.

        Raises:
            BaseException: that of the first item whose call raised, after all have ended.

        """
        self._check_is_open()
        if len(items) < 2:
            return [call(item) for item in items]
        futures = [self._pool.submit(call, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def new_affinity() -> str:
    """For sequences that are stepped together."""
    return new_id()


def _finish(reaper: Reaper, pool: ThreadPoolExecutor) -> None:
    reaper.stop()
    pool.shutdown(wait=False)
