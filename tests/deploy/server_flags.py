"""The shared part of the checks of deploy/: the flags that gdn_server has, and the command of a health check."""

import re

TABLE = "server/options/option_table.cc"


def known(root):
    flags = set(re.findall(r"\bRow\(\"([\w-]+)\",", (root / TABLE).read_text(encoding="utf-8")))
    if len(flags) < 50:
        raise SystemExit(f"{TABLE} is not written the way this script reads it")
    return flags


def check(root, where, arguments):
    flags = known(root)
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if not argument.startswith("--") or name not in flags:
            yield f"{where}: gdn_server has no flag {argument}"


def health_command(root):
    """The command that asks the socket which the images' entrypoint adds, up to its --timeout."""
    text = (root / "deploy/entrypoint.sh").read_text(encoding="utf-8")
    (socket,) = re.findall(r"\$\{GDN_HEALTH_SOCKET-([^}]+)\}", text)
    return ["gdnctl", "health", f"--target=unix:{socket}"]


def check_health(root, where, command, timeout):
    """The command of a health check, which may take `timeout` seconds."""
    expected = health_command(root)
    if command[:-1] != expected or not command[-1].startswith("--timeout="):
        yield f"{where}: the health check is {command}, expected {expected} and a --timeout"
    elif seconds(command[-1].partition("=")[2]) >= timeout:
        yield f"{where}: the health check's {command[-1]} is not below its limit of {timeout} s"


def seconds(text):
    """Returns the seconds of a duration such as 30s, 1m10s or 5m."""
    parts = re.findall(r"(\d+)(h|m|s)", text)
    if "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"'{text}' is no duration such as 1m10s")
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


def drain_seconds(arguments):
    """How long a server with these flags takes to end: both drains, and 10 s for a driver that hangs."""
    values = dict(a.removeprefix("--").partition("=")[::2] for a in arguments)
    return seconds(values.get("drain-timeout", "30s")) + seconds(values.get("drain-checkpoint-timeout", "300s")) + 10
