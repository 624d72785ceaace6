"""Steps that follow each other in a stream, for inputs that are known before the outputs (scoring, replays).

Up to `window` steps are in flight at once, so no step waits for the round trip of the one before. The server applies
them in order, and each carries the token count that it expects. So no step is applied behind one that was not. If a
step fails, or the stream breaks, the steps in flight are repeated in calls of their own, with the same ids. Each is
therefore applied once, and outputs have the bits of plain calls. Tensors travel in messages. Between two outputs, make
no other call on the sessions.
Thread safety: as that of a session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from gdn_client import waiting
from gdn_client.connection import Connection
from gdn_client.errors import GdnError
from gdn_client.futures import settle
from gdn_client.pipeline import Pipeline
from gdn_client.waiting import MessageStream

T = TypeVar("T")


def outputs(connection: Connection, pipeline: Pipeline[T], inputs: Iterable[Any], timeout: float | None) -> Iterator[T]:
    """Yields the outputs, in order. If the caller stops early, steps in flight are still applied.

    If the caller is cancelled, which happens in asyncio only, they are undone.
    """
    settle(pipeline.states)  # threads only
    stream: MessageStream | None = None

    def from_stream(open_stream: MessageStream) -> T | None:
        """Returns the oldest step's output, or None if the stream has failed."""
        nonlocal stream
        try:
            output = pipeline.take(open_stream.receive())
            if output is not None:
                return output
            for _ in range(len(pipeline.under_way) - 1):  # these fail too, because of their counts; no state changes
                open_stream.receive()
        except GdnError:
            pass  # the stream has ended; the calls report why
        open_stream.close()
        stream = None
        return None

    def oldest() -> T:
        output = from_stream(stream) if stream is not None else None
        return connection.run(pipeline.again(timeout)) if output is None else output

    try:
        for x in inputs:
            message = pipeline.add(x)
            if stream is None and pipeline.is_known():
                stream = connection.open_stream(pipeline.method, pipeline.affinity, timeout)
            if stream is not None:
                with contextlib.suppress(GdnError):  # the next reply reports the error
                    stream.send(message)
            while pipeline.is_full or (stream is None and pipeline.under_way):
                yield oldest()
        while pipeline.under_way:
            yield oldest()
    except waiting.CANCELLED:
        pipeline.give_up()
        raise
    finally:
        try:
            while pipeline.under_way:
                oldest()
        finally:
            if stream is not None:
                stream.close()
