"""Leases: a client's sessions end soon after the client has gone, even if its process is killed.

    with client.lease(grace=30) as lease:
        session = client.session(model="qwen", lease=lease)

Thread safety: any thread may use a Lease.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gdn_client import management, waiting
from gdn_client.errors import GdnError, NotFoundError
from gdn_client.proto.gdn.v1 import lease_pb2

if TYPE_CHECKING:
    from gdn_client.client import Client

_RENEWALS_PER_GRACE = 3
_TRIES_PER_GRACE = 10  # after a failure


class Lease:
    """A lease that this client renews by itself, three times in each grace period. Made by `Client.lease`.

    When the process ends or is killed, the server deletes the sessions of the lease a grace period later. The end of a
    `with` block ends the lease and its sessions at once.

    Attributes:
        name: the lease's name in the API, "leases/ID".
        grace: seconds that the sessions live without a renewal.
        error: why the last renewal failed; None if it succeeded. With a NotFoundError the lease and its sessions have
            ended, and nothing is renewed any more.

    """

    def __init__(self, client: Client, lease: lease_pb2.Lease) -> None:
        self._client = client
        self.name = lease.name
        self.grace = lease.grace.seconds + lease.grace.nanos / 1e9
        self.error: GdnError | None = None
        self._renewals = waiting.Repeated(self._renew, self.grace / _RENEWALS_PER_GRACE)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(NotFoundError):
            self.end()

    def __repr__(self) -> str:
        return f"<Lease {self.name}, grace {self.grace} s>"

    def _renew(self) -> float | None:
        """Returns the seconds until the next renewal; None if there is none."""
        try:
            # A renewal that hangs is given up, so that the next one comes in time.
            self._client.connection.run(management.renew_lease(self.name, self.grace / _RENEWALS_PER_GRACE))
        except NotFoundError as error:
            self.error = error
            return None
        except GdnError as error:
            self.error = error
            return self.grace / _TRIES_PER_GRACE
        self.error = None
        return self.grace / _RENEWALS_PER_GRACE

    def stop(self) -> None:
        """Stops the renewals. The lease and its sessions end a grace period later."""
        self._renewals.stop()

    def end(self) -> int:
        """Ends the lease and deletes its sessions now. Returns how many sessions were deleted.

        Raises:
            NotFoundError: LEASE_NOT_FOUND, the lease has ended.

        """
        self.stop()
        return self._client.end_lease(self.name)
