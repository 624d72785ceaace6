"""Gated DeltaNet layers on another machine: a client of gdn_server.

    import gdn_client

    with gdn_client.Client("127.0.0.1:50061") as client, client.session(model="qwen") as session:
        y = session.prefill(layer, x)        # numpy or torch, [T, D]
        y = session.decode(layer, x_next)    # [D]

A session is for one thread at a time; other threads may use other sessions of the client.
"""

from gdn_client.client import Client
from gdn_client.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    GdnError,
    InternalError,
    InvalidArgumentError,
    NoServerError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SessionLostError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from gdn_client.flow import Retry
from gdn_client.inputs import DeltaRule, Projected
from gdn_client.prefixes import first_segments, prompt_prefix
from gdn_client.proto.gdn.v1.session_pb2 import OperatorSpec, PromptPrefix
from gdn_client.proto.gdn.v1.tensor_pb2 import DecayKind
from gdn_client.requests import StateSnapshot
from gdn_client.session import Batch, Session
from gdn_client.sliced import SlicedBatch, SlicedClient, SlicedSession

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Batch",
    "CancelledError",
    "Client",
    "DataLossError",
    "DeadlineExceededError",
    "DecayKind",
    "DeltaRule",
    "FailedPreconditionError",
    "GdnError",
    "InternalError",
    "InvalidArgumentError",
    "NoServerError",
    "NotFoundError",
    "OperatorSpec",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Projected",
    "PromptPrefix",
    "ResourceExhaustedError",
    "Retry",
    "Session",
    "SessionLostError",
    "SlicedBatch",
    "SlicedClient",
    "SlicedSession",
    "StateSnapshot",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "first_segments",
    "prompt_prefix",
]
