#!/usr/bin/env python3
"""Fails if a program does not end with 0 for --help, with 2 for a wrong command line, or does not say what was expected.

  check_command_lines.py GDN_SERVER GDNCTL GDN_BENCH GDN_PARITY

systemd's RestartPreventExitStatus=2 relies on the 2: a server whose flags are wrong is not started again and again.
"""

import subprocess
import sys

PATIENCE = 60  # seconds; a deadline, not a measurement

# Addresses that no program may take, and words that the error has.
WRONG_ADDRESSES = {
    "127.0.0.1:99999": "has port '99999', expected a number in",
    "127.0.0.1:-1": "has port '-1', expected a number in",
    "127.0.0.1:http": "has port 'http', expected a number in",
    "127.0.0.1:": "has port '', expected a number in",
    "127.0.0.1:5 0061": "has port '5 0061', expected a number in",
    "50061": "is a port without a host, expected HOST:PORT such as 127.0.0.1:50061",
    "::1:51779": "is an IPv6 address without brackets, expected [::1]:51779",
    "[::1:51779": "has a '[' without a ']'",
    "[::1]51779": "has something other than ':' after its ']'",
    ":50061": "has no host, expected HOST:PORT such as 127.0.0.1:50061",
    "http://127.0.0.1:50061": "",
    "h" * 5000 + ":50061": "has a host of 5000 letters, expected at most 253",
    "": "is empty, expected HOST:PORT",
}
A_TIME = "expected a time with its unit, such as 500ms, 30s or 5m, or 0"


def cases(server, gdnctl, bench, parity):
    """(command line, exit code, words of what it prints)."""
    plain = [server, "--backend=null", "--shared-memory-dir="]
    for command in ([server], [gdnctl], [gdnctl, "info"], [gdnctl, "state", "export"], [bench], [bench, "serve"], [parity]):
        for form in ("--help", "-h", "-help"):
            yield [*command, form], 0, "--"
    yield [server, "--version"], 0, "gdn_server "
    for command in ([server], [gdnctl, "info"], [bench, "kernel"], [parity]):
        yield [*command, "--bogus"], 2, "unknown flag --bogus"
        yield [*command, "--bogus=1"], 2, "unknown flag --bogus"
        yield [*command, "--" + "b" * 5000], 2, "unknown flag --bbb"
    yield [server, "--drain-timout=5s"], 2, "did you mean --drain-timeout?"
    yield [server, "--backend"], 2, "--backend needs a value"
    yield [server, "--drain-timeout=5"], 2, A_TIME
    yield [server, "--threads=many"], 2, "--threads is 'many', expected a whole number"
    yield [server, "--threads=99999999999"], 2, "expected a whole number"
    yield [server, "--reflection=maybe"], 2, "expected true or false"
    yield [server, "--host-state-bytes=much"], 2, "expected"
    yield [server, "word"], 2, "unexpected argument 'word'"
    yield [gdnctl], 2, "Usage"
    yield [gdnctl, "bogus"], 2, "unknown command 'bogus'"
    yield [gdnctl, "info", "--timeout=5"], 2, A_TIME
    yield [gdnctl, "info", "--timeout", "5"], 2, A_TIME
    yield [gdnctl, "info", "--timeout=0"], 2, "--timeout is 0 or negative"
    yield [gdnctl, "info", "--timeout=" + "9" * 5000], 2, A_TIME
    yield [bench], 2, "expected one command"
    yield [bench, "bogus"], 2, "unknown command 'bogus'"
    yield [bench, "kernel", "--repeat=x"], 2, "--repeat is 'x', expected a whole number"
    yield [bench, "kernel", "--min-time=x"], 2, "--min-time is 'x', expected a number"
    yield [parity, "--seed=x"], 2, "--seed is 'x', expected a whole number"
    yield [parity, "--seed=-1"], 2, "expected a whole number"
    yield [parity, "word"], 2, "unexpected argument 'word'"
    yield [parity, "--suite=bogus"], 2, "bogus"
    yield [gdnctl, "info", "--target=unix:/" + "p" * 300], 2, "has a path of 301 bytes, expected at most 107"
    yield [gdnctl, "info", "--target=dns:///127.0.0.1:99999"], 2, "has port '99999', expected a number in 1 .. 65535"
    yield [gdnctl, "info", "--target=ipv4:127.0.0.1:1,127.0.0.1:99999"], 2, "has port '99999'"
    yield [gdnctl, "info", "--target=127.0.0.1:0"], 2, "has port '0', expected a number in 1 .. 65535"
    for address, words in WRONG_ADDRESSES.items():
        yield [*plain, f"--listen={address}"], 2, words
        yield [gdnctl, "info", f"--target={address}"], 2, words
        yield [bench, "echo_server", "--port-file=/nowhere/port", f"--listen={address}"], 2, words
        if address:  # "" turns it off
            yield [*plain, "--listen=127.0.0.1:0", f"--http-listen={address}"], 2, "--http-listen"
            yield [*plain, "--listen=127.0.0.1:0", f"--redis={address}", "--redis-wait-timeout=0s"], 2, "--redis-wait-timeout"
    for endpoint in ("redis://127.0.0.1:99999", "redis+sentinel://127.0.0.1:99999/m", "127.0.0.1:99999"):
        yield [*plain, "--listen=127.0.0.1:0", f"--redis={endpoint}"], 2, "--redis"


def fault(command, code, words):
    """What is wrong with how the program ends; None: nothing."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"has not ended after {PATIENCE} s, expected {code}"
    printed = done.stdout if code == 0 else done.stderr
    if done.returncode != code:
        return f"ended with {done.returncode}, expected {code}: {(done.stdout + done.stderr)[-300:]}"
    if words not in printed:
        return f"does not say {words!r}: {printed[:400]}"
    if code == 2 and len(printed) > 1500 and command[1:]:
        return f"says too much, {len(printed)} letters: {printed[:400]}"
    return None


def main(*programs):
    failed = passed = 0
    for command, code, words in cases(*programs):
        what = fault(command, code, words)
        if what is None:
            passed += 1
            continue
        failed += 1
        line = " ".join([command[0].rsplit("/", 1)[-1], *(word[:60] for word in command[1:])])
        print(f"{line}: {what}", flush=True)
    print(f"{passed} ok, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
