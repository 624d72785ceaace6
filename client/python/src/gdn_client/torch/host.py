"""The server of some layers: its client, and everything that the caches of one model share.

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

from gdn_client.client import Client
from gdn_client.errors import GdnError
from gdn_client.futures import map_at_once
from gdn_client.proto.gdn.v1 import info_pb2
from gdn_client.requests import model_name, only_model
from gdn_client.session import Batch, Session
from gdn_client.sliced import SlicedBatch, SlicedClient, SlicedSession

T = TypeVar("T")
R = TypeVar("R")

AnySession: TypeAlias = Session | SlicedSession

MAX_CALLS_AT_ONCE = 32  # each prompt is a call, and the server batches calls that arrive together
EXIT_SECONDS = 10.0
ROW_BYTES = 256  # more than a row of a step takes in a message beside its tokens


class Reaper:
    """Deletes sessions on a thread of its own.

    The garbage collector may drop a cache anywhere, also at places where no call can be made.
    """

    def __init__(self) -> None:
        self._sessions: queue.SimpleQueue[AnySession | threading.Event | None] = queue.SimpleQueue()
        self._open: dict[str, AnySession] = {}  # created and not yet deleted, by name
        arguments = (self._sessions, self._open)
        self._thread = threading.Thread(target=self._run, args=arguments, name="gdn-reaper", daemon=True)
        self._thread.start()

    def made(self, session: AnySession) -> None:
        """Registers a session. `end` deletes it, or `stop` at the latest."""
        self._open[session.name] = session

    def end(self, *lists: Iterable[AnySession]) -> None:
        """Deletes the sessions soon, without waiting. A finalizer may call this."""
        for sessions in lists:
            for session in sessions:
                self._sessions.put(session)

    def wait(self) -> None:
        """Waits until the sessions passed to `end` so far are deleted, at most `EXIT_SECONDS`."""
        reached = threading.Event()
        self._sessions.put(reached)
        reached.wait(EXIT_SECONDS)

    def stop(self) -> None:
        """Deletes every registered session, and waits for that, at most `EXIT_SECONDS`."""
        self.end(list(self._open.values()))
        self._sessions.put(None)
        self._thread.join(EXIT_SECONDS)

    @staticmethod
    def _run(
        sessions: queue.SimpleQueue[AnySession | threading.Event | None], still_open: dict[str, AnySession]
    ) -> None:
        while True:
            taken = [sessions.get()]
            with contextlib.suppress(queue.Empty):
                while isinstance(taken[-1], Session | SlicedSession):
                    taken.append(sessions.get_nowait())
            ended = [one for one in taken if isinstance(one, Session | SlicedSession)]
            # Without those that were passed twice.
            _delete([one for one in ended if still_open.pop(one.name, None) is not None])
            if taken[-1] is None:
                return
            if isinstance(taken[-1], threading.Event):
                taken[-1].set()


def _delete(sessions: Sequence[AnySession]) -> None:
    """Deletes sessions of one host, in one call if one server has them. The server's idle TTL ends the rest."""
    whole = [one for one in sessions if isinstance(one, Session)]
    with contextlib.suppress(GdnError, ValueError):
        if whole:
            whole[0]._client.batch(whole).delete()
    for session in sessions:
        if isinstance(session, SlicedSession):
            with contextlib.suppress(GdnError, ValueError):
                session.delete()


class LayerHost:
    """A served model whose layers replace those of a local model.

    Args:
        client: client of the server, or of the servers that hold the model's heads together. It is not closed.
        model: name of the served model. None: the only one.
        layers: indices of the layers to use. None: all Gated DeltaNet layers of the model.
        idle_ttl: seconds without a step after which the server deletes a session. None: the server's default.

    Raises:
        ValueError: the server does not have this model, or not these layers.

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
        """Deletes all sessions of this host and stops its threads. Calling it twice is harmless.

        It also deletes sessions that existing caches use. A layer or cache of a closed host raises RuntimeError when it
        is stepped.
        """
        self._finish()

    def _check_is_open(self) -> None:
        if not self._finish.alive:
            raise RuntimeError(
                f"the attachment to {self} is closed, and its sessions have ended; load the model again and attach it, "
                "or attach with keep_local=True and call detach() to go on with the local layers"
            )

    def new_sessions(self, count: int, affinity: str) -> list[AnySession]:
        """Creates sessions with zero states. They share one affinity, and so one device.

        If one cannot be created, none is left.
        """
        self._check_is_open()
        if isinstance(self.client, SlicedClient):
            return self._all_or_none(lambda _: [self._new_session(affinity)], range(count))
        made = self.client.create_sessions(count, self.model.name, affinity=affinity, idle_ttl=self._idle_ttl)
        for session in made:
            self._keep_whole(session)
        return self._registered(made)

    def _all_or_none(self, make: Callable[[T], list[AnySession]], items: Sequence[T]) -> list[AnySession]:
        """Returns the sessions that `make` creates for each item.

        If one call fails, the sessions of the others are deleted.
        """
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
        for part in session.parts if isinstance(session, SlicedSession) else [session]:
            self._keep_whole(part)
        return session

    @staticmethod
    def _keep_whole(session: Session) -> None:
        # Beam search forks at every token. The session therefore keeps its inputs while there is room, so that a fork
        # needs no copy on the server's disk.
        session._state.keeps_durable = True

    def _registered(self, sessions: Sequence[Session]) -> list[AnySession]:
        for session in sessions:
            self.reaper.made(session)
        return list(sessions)

    def fork_each(self, sessions: Sequence[AnySession], counts: int | Sequence[int] = 1) -> list[AnySession]:
        """Creates sessions that continue from each session, `counts[i]` from session i. They survive a crash.

        If one cannot be forked, no fork is left.
        """
        self._check_is_open()
        if isinstance(self.client, Client) and sessions:
            parents = self.client.batch(cast(Sequence[Session], sessions))
            children = parents.fork(counts, idle_ttl=self._idle_ttl, durable=True)
            return self._registered([child for own in children for child in own])
        each = [counts] * len(sessions) if isinstance(counts, int) else counts
        return self._all_or_none(
            lambda one: list(one[0].fork(one[1], idle_ttl=self._idle_ttl, durable=True)),
            list(zip(sessions, each, strict=True)),
        )

    def batch(self, sessions: Sequence[AnySession]) -> Batch | SlicedBatch:
        """Groups sessions, so that one call of a server decodes all of them."""
        self._check_is_open()
        return cast(Any, self.client).batch(sessions)  # type: ignore[no-any-return]

    @property
    def call_tokens(self) -> int:
        """Most tokens of hidden states in float32 that a step of several prompts may have. 0: it would save no call."""
        if not self.client.abilities.step:
            return 0
        room = self.client.limits.max_message_bytes - (64 << 10) - ROW_BYTES * self.max_batch
        return max(0, room // (4 * self.model.dims.hidden_size))

    def map(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Runs `call` for each item, all at the same time, and returns the results in order.

        Raises:
            BaseException: the error of the first item that failed, after all calls have ended.

        """
        self._check_is_open()
        if len(items) < 2:
            return [call(item) for item in items]
        return map_at_once(self._pool, call, items)


def _finish(reaper: Reaper, pool: ThreadPoolExecutor) -> None:
    reaper.stop()
    pool.shutdown(wait=False)
