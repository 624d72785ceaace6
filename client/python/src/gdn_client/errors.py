"""What can go wrong, as exceptions: one class a gRPC code, the server's reason and what belongs to it.

    try:
        session.decode(layer, x)
    except gdn_client.NotFoundError: ...
    except gdn_client.GdnError as error:
        print(error.reason, error.metadata, error.retry_after)

The reasons, with what to do about each, are in docs/reference/errors.md of the server's repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import grpc

from gdn_client.proto.google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class GdnError(Exception):
    """An answer of the server, or of the connection to it, that is not OK.

    Attributes:
        code: the gRPC code.
        message: the server's words: what was wrong, what was expected, what to do.
        reason: of the server's list of reasons, such as "TOKEN_COUNT_MISMATCH"; "" where the connection failed.
        metadata: what belongs to the reason: names, counts, limits.
        retry_after: seconds after which the call may find what it needs; None where the server does not say.

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
    """The request is wrong, and would be again."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(GdnError):
    """There is no such session, model, checkpoint or region; or it is another subject's."""

    default_code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(GdnError):
    """A session of that id is there, made by another request."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class FailedPreconditionError(GdnError):
    """The session or the server is not as the call wants it."""

    default_code = grpc.StatusCode.FAILED_PRECONDITION


class AbortedError(GdnError):
    """The session is at another token or epoch, or busy."""

    default_code = grpc.StatusCode.ABORTED


class OutOfRangeError(GdnError):
    """A count is at its end."""

    default_code = grpc.StatusCode.OUT_OF_RANGE


class ResourceExhaustedError(GdnError):
    """There is no room for it, or the caller may have no more."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnauthenticatedError(GdnError):
    """The server does not know the caller's token or certificate."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(GdnError):
    """The caller has no role that allows the call."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class UnavailableError(GdnError):
    """No server answers, or it is ending, or its device or a tier has failed."""

    default_code = grpc.StatusCode.UNAVAILABLE


class NoServerError(UnavailableError):
    """The client has not reached a server at its target since it was made.

    It is raised by the first call, and is tried again for `Retry.connect` seconds alone. Once a server has answered, a
    connection that fails is an UnavailableError, and is tried again for `Retry.overall` seconds.
    """


class DeadlineExceededError(GdnError, TimeoutError):
    """The time for the call is over."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class DataLossError(GdnError):
    """A state is damaged, or older than what was promised."""

    default_code = grpc.StatusCode.DATA_LOSS


class UnimplementedError(GdnError):
    """The server does not offer it."""

    default_code = grpc.StatusCode.UNIMPLEMENTED


class CancelledError(GdnError):
    """The call was given up."""

    default_code = grpc.StatusCode.CANCELLED


class InternalError(GdnError):
    """A fault of the server, or of what is in between."""

    default_code = grpc.StatusCode.INTERNAL


class SessionLostError(GdnError):
    """The server has lost tokens of a session, and the inputs to bring them back are not kept."""

    default_code = grpc.StatusCode.DATA_LOSS


_BY_CODE: dict[grpc.StatusCode, type[GdnError]] = {
    kind.default_code: kind for kind in GdnError.__subclasses__() if kind is not SessionLostError
}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def from_status(status: status_pb2.Status) -> GdnError:
    """The error that a row or a stream's message carries; `status.code` is not 0."""
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
    """What gRPC has raised, with the details that the server has sent along."""
    code, message = error.code(), error.details() or ""
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == _DETAILS_KEY:
            status = status_pb2.Status.FromString(value)
            if status.code == code.value[0]:
                return from_status(status)
    return _BY_CODE.get(code, GdnError)(message, code=code)
