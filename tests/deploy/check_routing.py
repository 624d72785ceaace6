#!/usr/bin/env python3
"""Fails where deploy/haproxy/haproxy.cfg does not route calls as it says.

  check_routing.py ROOT BUILD_DIR              exits 77 where haproxy or curl is not installed
  check_routing.py --self-test ROOT BUILD_DIR  plant faults in copies of the configuration, and see each reported

Three servers, and a fourth that joins, listen on addresses of the loopback range. Calls are real ones (GetServerInfo), sent by curl;
who answered them is asked of HAProxy's runtime API.
"""

import contextlib
import csv
import io
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 60  # seconds; a deadline, not a measurement
AFFINITIES = [f"chat-{i}" for i in range(61)]
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]
PROXY = "127.0.0.1"
TOLERANCE = "1e-5"  # of the golden recordings


class Wrong(Exception):
    """The configuration does something that it should not."""


def expect(condition, what):
    if not condition:
        raise Wrong(what)


def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        expect(time.monotonic() < deadline, f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)


def free_port(hosts):
    """A port that is free at all hosts; not among those that the system gives to whoever asks for any."""
    while True:
        port = random.randrange(12000, 32000)
        with contextlib.ExitStack() as stack:
            try:
                for host in hosts:
                    stack.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
            return port


def say(admin_path, command):
    """A command of HAProxy's runtime API."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(admin_path)
        connection.sendall(command.encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def stat_of(admin_path):
    """HAProxy's row of figures of each slot of the backend, by the slot's number."""
    rows = csv.DictReader(io.StringIO(say(admin_path, "show stat gdn 4 -1").removeprefix("# ")))
    return {int(row["svname"].removeprefix("gdn-")): row for row in rows}


class Fleet:
    """HAProxy before servers, in a folder."""

    def __init__(self, root, build, config, folder):
        self.root, self.bin, self.folder = root, pathlib.Path(build) / "bin", folder
        self.port, self.http_port = free_port([PROXY, *HOSTS]), free_port([PROXY, *HOSTS])
        self.admin_path = os.path.join(folder, "admin.sock")
        self.config = os.path.join(folder, "haproxy.cfg")
        pathlib.Path(self.config).write_text(config, encoding="utf-8")
        self.servers, self.logs, self.proxy = {}, [], None

    def spawn(self, name, command, **options):
        self.logs.append(os.path.join(self.folder, f"{name}.{len(self.logs)}.log"))
        with open(self.logs[-1], "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **options)  # pylint: disable=consider-using-with

    def start_server(self, number):
        host = HOSTS[number - 1]
        model = self.root / "tests/golden/qwen3_next_1"
        self.servers[number] = self.spawn(f"gdn-{number}", [
            self.bin / "gdn_server", "--backend=cpu", f"--model=next={model}", f"--listen={host}:{self.port}",
            f"--http-listen={host}:{self.http_port}", "--shared-memory-dir=", "--threads=1", "--drain-timeout=10s"])

    def start(self):
        for number in (1, 2, 3):
            self.start_server(number)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
        environment |= {f"GDN_NODE_{n}": f"{HOSTS[n - 1]}:{self.port}" for n in (1, 2, 3)}
        environment |= {"GDN_NODE_HTTP_PORT": str(self.http_port), "GDN_PROXY_ADMIN": self.admin_path, "GDN_PROXY_SLOWSTART": "1s",
                        "GDN_PROXY_LISTEN": f"{PROXY}:{self.port}", "GDN_PROXY_HTTP_LISTEN": f"{PROXY}:{self.http_port}"}
        check = subprocess.run(["haproxy", "-c", "-f", self.config], env=environment, capture_output=True, text=True, check=False)
        told = (check.stdout + check.stderr).splitlines()  # a machine without nameservers is none of the configuration's faults
        wrong = [line for line in told if "ALERT" in line or "WARNING" in line and "nameservers" not in line]
        expect(check.returncode == 0 and not wrong, f"haproxy -c: {told}")
        self.proxy = self.spawn("haproxy", ["haproxy", "-W", "-db", "-f", self.config], env=environment)
        until(lambda: self.ready({1, 2, 3}), "three servers are up")

    def stop(self):
        for process in [*self.servers.values(), self.proxy]:
            if process and process.poll() is None:
                process.kill()
                process.wait()

    def say(self, command):
        return say(self.admin_path, command)

    def stat(self):
        return stat_of(self.admin_path)

    def ready(self, numbers):
        """True if exactly these servers take calls, each with its whole weight ("UP 1/3": it is about to be down)."""
        expect(self.proxy.poll() is None, "haproxy ended")
        if not os.path.exists(self.admin_path):
            return False
        rows = self.stat()
        up = {n: (row["status"], row["weight"]) for n, row in rows.items() if row["status"].startswith("UP")}
        return up == {n: ("UP", "100") for n in numbers}

    def http(self, path):
        try:
            with urllib.request.urlopen(f"http://{PROXY}:{self.http_port}{path}", timeout=PATIENCE) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def call(self, affinity):
        """GetServerInfo; returns curl's account of the reply, its trailers included."""
        command = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--max-time", str(PATIENCE), "--include",
                   "--output", "-", "--header", "content-type: application/grpc", "--header", "te: trailers", "--data-binary", "@-"]
        if affinity:
            command += ["--header", f"x-gdn-affinity: {affinity}"]
        command.append(f"http://{PROXY}:{self.port}/gdn.v1.GdnService/GetServerInfo")
        reply = subprocess.run(command, input=bytes(5), capture_output=True, check=False)  # an empty message, not compressed
        return (reply.stdout + reply.stderr).decode(errors="replace")

    def answered_by(self, affinity):
        before = self.stat()
        reply = self.call(affinity)
        expect("grpc-status: 0" in reply, f"a call with the affinity '{affinity}' failed: {reply[:400]!r}")
        after = self.stat()
        changed = [n for n in after if after[n]["hrsp_2xx"] != before[n]["hrsp_2xx"]]
        expect(len(changed) == 1, f"a call was answered by the servers {changed}")
        return changed[0]

    def owners(self):
        return {affinity: self.answered_by(affinity) for affinity in AFFINITIES}


def check_hashing(fleet):
    owners = fleet.owners()
    shares = {n: list(owners.values()).count(n) for n in (1, 2, 3)}
    expect(all(shares.values()), f"a server got no session: {shares}")
    expect(fleet.owners() == owners, "a second call of the same affinity went to another server")
    expect(len({fleet.answered_by("") for _ in range(6)}) == 1, "calls of one host without an affinity went to several servers")
    print(f"{len(owners)} affinities: {shares} by server; the same again")
    return owners


def check_recording(fleet):
    recording = fleet.root / "tests/golden/qwen3_next_1/io.safetensors"
    replay = subprocess.run([fleet.bin / "gdnctl", "replay", f"--target={PROXY}:{fleet.port}", "--model=next", f"--io={recording}",
                             f"--tolerance={TOLERANCE}"], capture_output=True, text=True, check=False)
    expect(replay.returncode == 0, f"the recording: {replay.stdout}{replay.stderr}")
    print(replay.stdout.splitlines()[-1])


def check_a_lost_server(fleet, owners):
    """SIGKILL: HAProxy still believes in the server, so the first calls meet a port that refuses them."""
    fleet.servers[2].kill()
    fleet.servers[2].wait()
    lost = [affinity for affinity, n in owners.items() if n == 2]
    moved = {affinity: fleet.answered_by(affinity) for affinity in lost[:3]}
    expect(2 not in moved.values(), "a killed server answered")
    until(lambda: fleet.ready({1, 3}), "the killed server is down")
    now = fleet.owners()
    expect(all(now[a] == n for a, n in owners.items() if n != 2), "sessions of the servers that are left moved too")
    fleet.start_server(2)
    until(lambda: fleet.ready({1, 2, 3}), "the server is back")
    expect(fleet.owners() == owners, "its sessions did not come back to it")
    print(f"killed: no call failed, {len(lost)} affinities moved and came back, {len(owners) - len(lost)} stayed")


def check_a_drain(fleet, owners):
    fleet.servers[3].send_signal(signal.SIGTERM)
    affinity = next(a for a, n in owners.items() if n == 3)
    # Between the drain's begin and the next check a call is answered by the server itself, with its own refusal or not.
    until(lambda: fleet.ready({1, 2}), "the drained server is down")
    expect(fleet.answered_by(affinity) in (1, 2), "a drained server was called")
    expect(fleet.servers[3].wait(timeout=PATIENCE) == 0, "the drain failed")
    fleet.start_server(3)
    until(lambda: fleet.ready({1, 2, 3}), "the drained server is back")
    print("drained: its sessions went to the others")


def check_a_joined_server(fleet, owners):
    fleet.start_server(4)
    fleet.say(f"set server gdn/gdn-4 addr {HOSTS[3]} port {fleet.port}; set server gdn/gdn-4 state ready")
    until(lambda: fleet.ready({1, 2, 3, 4}), "the fourth server is up")
    now = fleet.owners()
    moved = [a for a in owners if now[a] != owners[a]]
    expect(moved, "the fourth server got no session")
    expect(all(now[a] == 4 for a in moved), "sessions moved between the servers that were there")
    print(f"joined: {len(moved)} of {len(owners)} affinities moved, all to the new server")


def check_operators_page(fleet):
    for path, status in (("/metrics", 200), ("/healthz", 200), ("/readyz", 200), ("/", 404)):
        expect(fleet.http(path)[0] == status, f"{path} answers {fleet.http(path)[0]}")
    metrics = fleet.http("/metrics")[1]
    for name in HAPROXY_METRICS:
        expect(f"{name}{{" in metrics, f"/metrics of HAProxy has no {name}")
    for number in list(fleet.servers):
        fleet.servers[number].kill()
        fleet.servers[number].wait()
    until(lambda: fleet.ready(set()), "all servers are down")
    expect(fleet.http("/readyz")[0] == 503 and fleet.http("/healthz")[0] == 200, "/readyz without a server")
    refused = subprocess.run([fleet.bin / "gdnctl", "info", f"--target={PROXY}:{fleet.port}"], capture_output=True, text=True, check=False)
    expect("UNAVAILABLE: no server takes calls" in refused.stderr, f"without a server a call gets: {refused.stderr}")
    print("HAProxy's own port: /metrics, /healthz, and /readyz that says where no server is left")


# HAProxy's metrics that deploy/prometheus and deploy/grafana ask for.
HAPROXY_METRICS = ("haproxy_backend_active_servers", "haproxy_server_status", "haproxy_server_http_responses_total",
                   "haproxy_server_retry_warnings_total", "haproxy_server_current_sessions")


def check(root, build, config):
    """Returns what is wrong with a configuration, or None."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(root, build, config, folder)
        try:
            fleet.start()
            owners = check_hashing(fleet)
            check_recording(fleet)
            check_a_lost_server(fleet, owners)
            check_a_drain(fleet, owners)
            check_a_joined_server(fleet, owners)
            check_operators_page(fleet)
        except Wrong as wrong:
            for log in fleet.logs:
                lines = pathlib.Path(log).read_text(errors="replace").splitlines()
                print(f"--- {os.path.basename(log)}, last lines", *lines[-12:], sep="\n")
            return str(wrong)
        finally:
            fleet.stop()
    return None


# (what is in the configuration, what is planted in its place, what the report has to say)
PLANTED = [
    ("  balance hdr(x-gdn-affinity)\n", "  balance roundrobin\n", "went to another server"),
    ("  hash-type consistent\n", "  hash-type map-based\n", "failed"),
    ("  retries 3\n", "  retries 0\n", "failed"),
    ("  http-error status 503", "  http-error status 500", "without a server"),
    ("  http-request set-header x-gdn-affinity", "  http-request set-header x-other", "without an affinity went to several"),
]


def self_test(root, build, config):
    missed = 0
    for old, new, report in PLANTED:
        expect(old in config, f"the configuration no longer has {old!r}: plant another fault")
        with contextlib.redirect_stdout(io.StringIO()):
            found = check(root, build, config.replace(old, new))
        print(f"{new.strip()}: {found}")
        missed += found is None or report not in found
    print(f"self-test: {len(PLANTED) - missed} of {len(PLANTED)} planted faults reported")
    return 1 if missed else 0


def main(arguments):
    planted = arguments[:1] == ["--self-test"]
    if len(arguments) != 2 + planted:
        print(__doc__.strip())
        return 2
    for program in ("haproxy", "curl"):
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin"):
            print(f"{program} is not installed")
            return 77
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin"
    root, build = (pathlib.Path(a).resolve() for a in arguments[planted:])
    config = (root / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
    if planted:
        return self_test(root, build, config)
    wrong = check(root, build, config)
    print(f"FAILED: {wrong}" if wrong else "routing: as haproxy.cfg says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
