"""How a server is reached: a channel with TLS and tokens, and the errors of a connection.

Thread safety: any thread may use everything in here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf import message_factory

from gdn_client.address import check_target
from gdn_client.errors import GdnError, NoServerError, from_rpc
from gdn_client.files import read_file
from gdn_client.proto.gdn.v1 import service_pb2
from gdn_client.shared_memory import LOCAL
from gdn_client.trouble import connection_trouble

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GdnService"]


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of a connection to one server. They are arguments of `client.Client`, which describes them."""

    timeout: float = 60.0
    token: str | None = None
    token_file: str | os.PathLike[str] | None = None
    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    allow_insecure: bool = False
    connect_timeout: float = 10.0

    def check(self, target: str) -> None:
        """Raises ValueError if options contradict each other or the target is invalid.

        Raises TypeError if it is not a string.
        """
        check_target(target)
        for name, seconds in (("timeout", self.timeout), ("connect_timeout", self.connect_timeout)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} is {seconds}, expected a number of seconds above 0")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both given, expected one of them")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("tls_cert wants tls_ca: who has signed the server's certificate")
        has_token = self.token is not None or self.token_file is not None
        if has_token and self.tls_ca is None and not self.allow_insecure and not target.startswith(LOCAL):
            raise ValueError(
                f"a token would go to {target} in the clear; give tls_ca, or allow_insecure=True on a trusted way"
            )

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> ConnectionOptions:
        """Returns the options, with GDN_TOKEN_FILE as the token file if no token is given. gdnctl uses it too."""
        file = environment.get("GDN_TOKEN_FILE")
        return self if self.token or self.token_file or not file else replace(self, token_file=file)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the channel's credentials. None: no TLS."""
        if self.tls_ca is None:
            return None
        read = [None if path is None else read_file(path) for path in (self.tls_ca, self.tls_key, self.tls_cert)]
        return grpc.ssl_channel_credentials(*read)

    def metadata(self, affinity: str) -> list[tuple[str, str]]:
        """Returns the metadata of one call."""
        entries = [("x-gdn-affinity", affinity)] if affinity else []
        token = self.token if self.token_file is None else read_file(self.token_file).decode("ascii").strip()
        if token:
            entries.append(("authorization", token if token.startswith("Bearer ") else f"Bearer {token}"))
        return entries


def open_channel(module: Any, target: str, options: ConnectionOptions) -> Any:
    """Opens a channel. `module` is `grpc`, or `grpc.aio` for asyncio."""
    arguments = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # gRPC's name for the time that one attempt to connect may take. Its default is 20 s.
        ("grpc.min_reconnect_backoff_ms", max(1, round(1e3 * options.connect_timeout))),
    ]
    credentials = options.credentials()
    if credentials is None:
        return module.insecure_channel(target, options=arguments)
    return module.secure_channel(target, credentials, options=arguments)


class Reach:
    """Remembers whether a server has ever answered at a target. Thread safety: any thread."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._answered = False
        self.snapshot_loss_mark = 0  # of the newest reply that had one

    def answered(self, reply: Any) -> None:
        """Notes that a reply has arrived."""
        self._answered = True
        self.snapshot_loss_mark = getattr(reply, "snapshot_loss_mark", self.snapshot_loss_mark)

    def error(self, error: Any) -> GdnError:
        """Converts the error of a call.

        It becomes a NoServerError if no server has answered this call or an earlier one.
        """
        told = from_rpc(error)
        # An error that gRPC made in this process has no metadata.
        from_afar = bool(error.initial_metadata() or error.trailing_metadata())
        if told.code is grpc.StatusCode.UNAVAILABLE and not self._answered and not from_afar:
            return NoServerError(f"no gdn_server answers at {self._target}: {connection_trouble(told.message)}")
        self._answered = self._answered or from_afar
        return told


def method_types(name: str) -> tuple[str, Any]:
    """Returns the path of a method, and the class of its replies."""
    method = _SERVICE.methods_by_name[name]
    return f"/{_SERVICE.full_name}/{name}", message_factory.GetMessageClass(method.output_type)
