"""The client for asyncio.

It has the classes `Client`, `Lease`, `Session` and `Batch` of `gdn_client`, with methods to be awaited.

    from gdn_client import aio

    async with aio.Client("127.0.0.1:50061") as client, await client.session(model="qwen") as session:
        y = await session.prefill(layer, x)
        y = await session.decode(layer, x_next)

If the task of a step is cancelled, the server may have applied the step or not. Repeat the same step to get its output.
Any other call undoes the step first: the session returns to its newest durable copy or to its start, and the client
replays the inputs that it has kept. If that is not possible, the call raises SessionLostError.
Thread safety: use the objects on one event loop, and each session in one task at a time.
"""

from gdn_client.aio_client import Client
from gdn_client.aio_lease import Lease
from gdn_client.aio_session import Batch, Session

__all__ = ["Batch", "Client", "Lease", "Session"]
