#!/usr/bin/env python3
"""Fails where the images' entrypoint does not start the server as it says, or the health check does not find the server.

  check_entrypoint.py ROOT             run deploy/entrypoint.sh with programs that only print, and read deploy/Dockerfile
  check_entrypoint.py ROOT BUILD_DIR   start a server of BUILD_DIR by it, without TLS and with mutual TLS, and ask its health; 77 if
                                       openssl is not installed
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import server_flags  # noqa: E402

PATIENCE = 60  # seconds; a deadline, not a measurement
ANY, OPEN, CPU = "--listen=0.0.0.0:50061", "--allow-insecure", "--backend=cpu"
# (environment, arguments, what is run): SOCKET stands for the flag of the health check's socket.
CASES = [
    ({}, [], ["gdn_server", ANY, OPEN, "SOCKET", CPU]),
    ({}, ["--tls-cert=c", "--tls-key=k"], ["gdn_server", "--tls-cert=c", "--tls-key=k", ANY, "SOCKET", CPU]),
    ({}, ["--listen=127.0.0.1:1"], ["gdn_server", "--listen=127.0.0.1:1", "SOCKET", CPU]),
    ({}, ["--listen", "127.0.0.1:1", "--backend", "null"], ["gdn_server", "--listen", "127.0.0.1:1", "--backend", "null", "SOCKET"]),
    ({"GDN_HEALTH_SOCKET": ""}, [], ["gdn_server", ANY, OPEN, CPU]),
    ({"GDN_HEALTH_SOCKET": "/not/there/socket"}, [], ["gdn_server", ANY, OPEN, CPU]),
    ({"GDN_BACKEND": "gpu"}, [], ["gdnctl doctor --need=0", "gdn_server", ANY, OPEN, "SOCKET", "--backend=gpu"]),
    ({"GDN_BACKEND": "gpu", "GDN_SKIP_DOCTOR": "1"}, [], ["gdn_server", ANY, OPEN, "SOCKET", "--backend=gpu"]),
    ({}, ["--version"], ["gdn_server", "--version"]),
    ({}, ["gdnctl", "info"], ["gdnctl info"]),
]


def check_arguments(root, folder):
    programs = folder / "programs"
    programs.mkdir()
    for name, form in (("gdn_server", '"$0" "$@"'), ("gdnctl", '"$0 $*"')):
        script = f'#!/bin/sh\nfor word in {form}; do echo "${{word##*/programs/}}"; done\n'
        (programs / name).write_text(script, encoding="utf-8")
        (programs / name).chmod(0o755)
    for environment, arguments, expected in CASES:
        given = {"PATH": f"{programs}:/usr/bin:/bin", "GDN_BACKEND": "cpu", "GDN_HEALTH_SOCKET": str(folder / "socket"), **environment}
        done = subprocess.run(["/bin/sh", root / "deploy/entrypoint.sh", *arguments], env=given, capture_output=True, text=True, check=False)
        wanted = [f"--listen=unix:{folder}/socket" if word == "SOCKET" else word for word in expected]
        # Doctor's list goes to stderr.
        if (done.stderr + done.stdout).splitlines() != wanted:
            yield f"{environment} {arguments}: runs {(done.stderr + done.stdout).splitlines()}, expected {wanted}"


def check_dockerfile(root):
    text = (root / "deploy/Dockerfile").read_text(encoding="utf-8")
    checks = re.findall(r"^HEALTHCHECK .*--timeout=(\d+)s .*CMD \[(.*)\]$", text, re.MULTILINE)
    if len(checks) != 2:
        yield "deploy/Dockerfile: not each of the two images has a health check in the form that this script reads"
    for timeout, command in checks:
        yield from server_flags.check_health(root, "deploy/Dockerfile", re.findall(r'"([^"]*)"', command), int(timeout))


def make_certificates(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=ca", "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True)
    return [f"--tls-cert={folder}/crt", f"--tls-key={folder}/key", f"--tls-client-ca={folder}/crt"]


def ask_health(folder, binaries, server):
    """The last answer of the health check, which is asked until the server says SERVING or ends."""
    begin = time.monotonic()
    while True:
        asked = subprocess.run([binaries / "gdnctl", "health", f"--target=unix:{folder}/socket", "--timeout=4s"], capture_output=True,
                               text=True, check=False)
        if asked.returncode == 0 or server.poll() is not None or time.monotonic() - begin > PATIENCE:
            return asked
        time.sleep(0.1)


def check_server(root, folder, binaries, flags):
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "GDN_BACKEND": "cpu", "GDN_HEALTH_SOCKET": f"{folder}/socket"}
    with open(folder / "log", "w", encoding="utf-8") as log:
        server = subprocess.Popen([root / "deploy/entrypoint.sh", "--listen=127.0.0.1:0", *flags], env=environment, stdout=log, stderr=log)
    try:
        asked = ask_health(folder, binaries, server)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(PATIENCE)
    if asked.stdout.strip() != "SERVING" or code != 0:
        yield f"with {flags}: health is {asked.stdout.strip()} {asked.stderr.strip()}, the server ends with {code}"
        yield (folder / "log").read_text(encoding="utf-8")


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__.strip())
        return 2
    root = pathlib.Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if len(arguments) == 1:
            errors = [*check_arguments(root, folder), *check_dockerfile(root)]
        elif not shutil.which("openssl"):
            print("openssl is not installed")
            return 77
        else:
            binaries, tls = pathlib.Path(arguments[1]).resolve() / "bin", make_certificates(folder)
            errors = [error for flags in ([], tls) for error in check_server(root, folder, binaries, flags)]
    for error in errors:
        print(error)
    print(f"entrypoint: {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
