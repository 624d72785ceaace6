"""A client for gdn_server, which runs the Gated DeltaNet layers of a language model on another machine.

    import gdn_client

    with gdn_client.Client("127.0.0.1:50061") as client, client.session(model="qwen") as session:
        y = session.prefill(layer, x)        # numpy or torch, [T, D]
        y = session.decode(layer, x_next)    # [D]

Only one thread at a time may use a session. Other threads may use other sessions of the same client.
"""

from gdn_client.client import Client
from gdn_client.digests import LayerComparison, RawTensor, compare_layers
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
from gdn_client.layered import LayeredBatch, LayeredClient, LayeredSession
from gdn_client.lease import Lease
from gdn_client.prefixes import first_segments, prompt_prefix
from gdn_client.proto.gdn.v1.session_pb2 import OperatorSpec, PromptPrefix
from gdn_client.proto.gdn.v1.tensor_pb2 import DecayKind
from gdn_client.requests import StateSnapshot
from gdn_client.session import Batch, Session
from gdn_client.sliced import SlicedBatch, SlicedClient, SlicedSession
from gdn_client.step_call import StepResult, StepResults, StepRow
from gdn_client.version import __version__ as __version__

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
    "LayerComparison",
    "LayeredBatch",
    "LayeredClient",
    "LayeredSession",
    "Lease",
    "NoServerError",
    "NotFoundError",
    "OperatorSpec",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Projected",
    "PromptPrefix",
    "RawTensor",
    "ResourceExhaustedError",
    "Retry",
    "Session",
    "SessionLostError",
    "SlicedBatch",
    "SlicedClient",
    "SlicedSession",
    "StateSnapshot",
    "StepResult",
    "StepResults",
    "StepRow",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "compare_layers",
    "first_segments",
    "prompt_prefix",
]
