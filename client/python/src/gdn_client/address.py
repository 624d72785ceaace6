"""Checks the target of a client. gRPC itself would take a port above 65535 modulo 65536.

Thread safety: a free function.
"""

from __future__ import annotations

_EXAMPLE = "127.0.0.1:50061"
LONGEST_PATH = 107  # bytes of a Unix socket's path, a limit of Linux
_LONGEST_NAME = 253  # letters of a host name, by RFC 1035
_LONGEST_LIST = 4096  # letters of a list of addresses of one server, as "ipv4:A:P,B:P"
_LARGEST_PORT = 65535
_SHOWN = 60  # letters of a target that an error shows


def _shown(target: str) -> str:
    return f"'{target}'" if len(target) <= _SHOWN else f"'{target[:_SHOWN]}..'"


def _without_scheme(target: str, scheme: str) -> str | None:
    """Returns the part after one of gRPC's schemes, without an authority."""
    if not target.startswith(scheme):
        return None
    rest = target.removeprefix(scheme)
    return rest[2:].partition("/")[2] if rest.startswith("//") else rest


def _check_host_port(target: str) -> None:
    shown = _shown(target)
    if not target:
        raise ValueError(f"target is empty, expected HOST:PORT such as {_EXAMPLE}")
    if target.isdecimal():
        raise ValueError(f"target {shown} is a port without a host, expected HOST:PORT such as {_EXAMPLE}")
    if target.startswith("["):
        host, bracket, rest = target.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"target {shown} is not [ADDRESS]:PORT")
        has_port, port = bool(rest), rest[1:]
    elif target.count(":") > 1:
        host, _, port = target.rpartition(":")
        raise ValueError(f"target {shown} is an IPv6 address without brackets, expected [{host[:_SHOWN]}]:{port[:5]}")
    else:
        host, colon, port = target.partition(":")
        has_port = bool(colon)
    if not host or len(host) > _LONGEST_NAME or any(letter.isspace() or letter == "/" for letter in host):
        raise ValueError(
            f"target {shown} has no host, or one of more than {_LONGEST_NAME} letters or with a space or a '/'; "
            f"expected HOST:PORT such as {_EXAMPLE}"
        )
    if has_port and not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= _LARGEST_PORT and len(port) < 6):
        raise ValueError(f"target {shown} has port '{port[:_SHOWN]}', expected a number in 1 .. {_LARGEST_PORT}")


def check_target(target: object) -> None:
    """Raises an error if nothing can be connected to under this target.

    Raises:
        TypeError: it is not a string.
        ValueError: it has none of the accepted forms, is too long, or has unprintable letters. Accepted are HOST:PORT,
            with brackets around an IPv6 address, a host without a port, unix:/PATH, and names with other schemes of
            gRPC.

    """
    if not isinstance(target, str):
        raise TypeError(f"target is {target!r}, expected HOST:PORT such as {_EXAMPLE}")
    if not target.isprintable():
        raise ValueError(
            f"target {_shown(target)!r} has a letter that cannot be printed, expected HOST:PORT such as {_EXAMPLE}"
        )
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        if not path or len(path.encode(errors="replace")) > LONGEST_PATH:
            raise ValueError(f"target {_shown(target)} is not unix:/PATH with a path of at most {LONGEST_PATH} bytes")
        return
    if target.startswith(("unix-abstract:", "vsock:", "xds:")):
        return
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        names = _without_scheme(target, scheme)
        if names is not None:
            if len(names) > _LONGEST_LIST:
                raise ValueError(f"target {_shown(target)} has {len(names)} letters, expected at most {_LONGEST_LIST}")
            for name in [names] if scheme == "dns:" else names.split(","):
                _check_host_port(name)
            return
    if "://" in target:
        raise ValueError(f"target {_shown(target)} is a URL, expected HOST:PORT such as {_EXAMPLE}, or unix:/PATH")
    _check_host_port(target)
