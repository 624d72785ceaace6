"""Files that a user names. They are read and written without hanging, and only regular files are ever replaced.

Thread safety: free functions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WAIT_FOR_OTHER_END = 10.0  # seconds; a shell starts both ends of a pipe within this time
STALLED = 60.0  # seconds in which a pipe's reader takes nothing, after which it counts as stopped
_PART = 1 << 16  # bytes, the capacity of a Linux pipe


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the whole contents of a file, or of a pipe such as a shell's <(command).

    Raises:
        OSError: the file does not exist, or is a folder or a device, or nothing comes through the pipe for 10 s.

    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # opening a pipe must not wait for its writer

    with open(path, "rb", buffering=0, opener=opener) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISREG(mode):
            return file.readall()
        if not stat.S_ISFIFO(mode):
            raise OSError(errno.EINVAL, "is not a file to read", os.fspath(path))
        parts: list[bytes] = []
        deadline = time.monotonic() + WAIT_FOR_OTHER_END
        while time.monotonic() < deadline:
            part = file.read(_PART)
            if part:
                parts.append(part)
                deadline = time.monotonic() + WAIT_FOR_OTHER_END
            elif part is None:
                select.select([file], [], [], 0.1)
            elif parts:
                return b"".join(parts)
            else:  # a pipe without a writer so far reads as ended
                time.sleep(0.02)
    raise TimeoutError(
        errno.ETIMEDOUT, f"nothing has come through this pipe for {WAIT_FOR_OTHER_END:.0f} s", os.fspath(path)
    )


def _open_through(path: Path) -> int:
    """Opens a pipe or a device for writing. Never creates or truncates anything."""
    deadline = time.monotonic() + WAIT_FOR_OTHER_END
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"nobody has opened this pipe for reading in {WAIT_FOR_OTHER_END:.0f} s; start its reader first",
                    str(path),
                ) from None
            time.sleep(0.02)


def _write_through(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(handle, left[:_PART]) :]
        except BlockingIOError:
            if not select.select([], [handle], [], STALLED)[1]:
                raise TimeoutError(errno.ETIMEDOUT, f"its reader has taken nothing for {STALLED:.0f} s") from None


@contextlib.contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that writes. Enter the block before the work that produces the data.

    A regular file appears, or is replaced, when the block ends without an error. If the path is a symbolic link to a
    regular file, the link stays. A device or a pipe is written directly.

    Raises:
        OSError: the path cannot be written. It is a folder, a symbolic link to nothing, not permitted, or a pipe that
            nobody opens for reading within 10 s.

    """
    target = Path(path)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        if target.is_symlink():
            raise FileNotFoundError(
                errno.ENOENT, f"it is a symbolic link to '{target.readlink()}', which is not there", str(target)
            ) from None
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it", str(target))
    if mode is not None and not stat.S_ISREG(mode):
        handle = _open_through(target)
        try:
            yield lambda data: _write_through(handle, data)
        finally:
            os.close(handle)
        return
    target = target.resolve()
    if mode is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    partial = target.with_name(f".gdn-{secrets.token_hex(8)}.partial")  # short, so it fits if the own name fits
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, stat.S_IMODE(mode))

            def write(data: bytes) -> None:
                file.write(data)

            yield write
            file.flush()
            os.fsync(handle)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
