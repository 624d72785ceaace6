"""Errors as exceptions: one class for each gRPC code, with the server's reason and its details.

    try:
        session.decode(layer, x)
    except gdn_client.NotFoundError: ...
    except gdn_client.GdnError as error:
        print(error.reason, error.metadata, error.retry_after)

docs/reference/errors.md of the server's repository lists the reasons, and what to do about each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc

from gdn_client.proto.google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class GdnError(Exception):
    """A call has failed, because the server answered with an error or the connection broke.

    Attributes:
        code: the gRPC code.
        message: text for people, which says what was wrong, what was expected and what to do.
        reason: one of the server's reasons, such as "TOKEN_COUNT_MISMATCH". "" if the connection failed.
        metadata: details of the reason, such as names, counts and limits.
        retry_after: seconds after which the call may succeed. None if the server does not say.

    """

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.code.name}{f' ({self.reason})' if self.reason else ''}: {self.message}"

    def __repr__(self) -> str:
        extra = "".join(f", {key}={value!r}" for key, value in sorted(self.metadata.items()))
        return f"{type(self).__name__}({self.reason or self.code.name}: {self.message!r}{extra})"


class InvalidArgumentError(GdnError):
    """The request is wrong. The same request will fail again."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(GdnError):
    """There is no such session, model, checkpoint or region, or it belongs to another caller."""

    default_code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(GdnError):
    """Another request has already created a session with this id."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class FailedPreconditionError(GdnError):
    """The session or the server is not in the state that the call needs."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class AbortedError(GdnError):
    """The session is at another token count or epoch, or is busy."""

    default_code = grpc.StatusCode.ABORTED


class OutOfRangeError(GdnError):
    """A count has reached its maximum."""

    default_code = grpc.StatusCode.OUT_OF_RANGE


class ResourceExhaustedError(GdnError):
    """The server has no room, or the caller has reached a quota."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnauthenticatedError(GdnError):
    """The server does not know the caller's token or certificate."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(GdnError):
    """The caller lacks the role that the call needs."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class UnavailableError(GdnError):
    """No server answers, the server is shutting down, or a device or tier of the server has failed."""

    default_code = grpc.StatusCode.UNAVAILABLE


class NoServerError(UnavailableError):
    """No server has answered at the target since the client was made.

    The first call raises this error. The client retries it only for `Retry.connect` seconds. After a server has
    answered once, a failed connection is an UnavailableError, and the client retries it for `Retry.overall` seconds.
    """


class DeadlineExceededError(GdnError, TimeoutError):
    """The time for the call has passed."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class DataLossError(GdnError):
    """A state is damaged, or older than the server had promised."""

    default_code = grpc.StatusCode.DATA_LOSS


class UnimplementedError(GdnError):
    """The server does not offer this."""

    default_code = grpc.StatusCode.UNIMPLEMENTED


class CancelledError(GdnError):
    """The call was cancelled."""

    default_code = grpc.StatusCode.CANCELLED


class InternalError(GdnError):
    """A fault in the server, or in the network between client and server."""

    default_code = grpc.StatusCode.INTERNAL


class SessionLostError(GdnError):
    """The server has lost tokens of a session, and the client has not kept the inputs to replay them."""

    default_code = grpc.StatusCode.DATA_LOSS


_BY_CODE: dict[grpc.StatusCode, type[GdnError]] = {
    kind.default_code: kind for kind in GdnError.__subclasses__() if kind is not SessionLostError
}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def from_status(status: status_pb2.Status) -> GdnError:
    """Converts the status of a row or of a stream message to an error. `status.code` must not be 0."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason, metadata, retry_after = "", {}, None
    for detail in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos * 1e-9
    kind = _BY_CODE.get(code, GdnError)
    return kind(status.message, code=code, reason=reason, metadata=metadata, retry_after=retry_after)


def from_rpc(error: grpc.RpcError) -> GdnError:
    """Converts an error of gRPC, with the details that the server sent, to a GdnError."""
    code, message = error.code(), error.details() or ""
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == _DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            if status.code == code.value[0]:
                return from_status(status)
    return _BY_CODE.get(code, GdnError)(message, code=code)
