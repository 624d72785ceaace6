#!/usr/bin/env python3
"""Fails where deploy/redis/start.sh does not make Redis, a replica and three Sentinels that survive the loss of the primary.

  check_redis_start.py ROOT    exits 77 where redis-server is not installed

Each has an address of the loopback range. The primary is killed, a Sentinel starts anew, the first primary comes back.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import check_routing  # noqa: E402  (beside this file)

PATIENCE = 90  # seconds; a deadline, not a measurement
PASSWORD = "a.password-of_this~test"


class Node:
    """A Redis or a Sentinel."""

    def __init__(self, fleet, role, host, port):
        self.fleet, self.role, self.host, self.port, self.process = fleet, role, host, port, None
        self.folder = fleet.folder / f"{role}-{host}"
        self.folder.mkdir()
        self.log = self.folder / "log"

    def environment(self):
        own = {"GDN_REDIS_HOST": self.host, "GDN_REDIS_BIND": self.host, "GDN_REDIS_PORT": self.port, "GDN_REDIS_DIR": self.folder,
               "GDN_REDIS_PRIMARY": self.fleet.first_primary, "GDN_SENTINELS": self.fleet.sentinel_addresses,
               "GDN_REDIS_PASSWORD_FILE": self.fleet.password_file, "GDN_REDIS_CONFIGURATION": self.folder / "redis.conf"}
        return os.environ | {name: str(value) for name, value in own.items()}

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                ["/bin/sh", self.fleet.script, self.role], env=self.environment(), stdout=log, stderr=subprocess.STDOUT)
        until(self.healthy, f"{self.role} {self.host} answers")

    def healthy(self):
        return subprocess.run(["/bin/sh", self.fleet.script, "health"], env=self.environment(), capture_output=True,
                              check=False).returncode == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, *words):
        """The lines of a reply."""
        commands = "" if self.role == "sentinel" else f"AUTH {PASSWORD}\n"
        done = subprocess.run(["redis-cli", "--raw", "-h", self.host, "-p", str(self.port)], input=commands + " ".join(words) + "\n",
                              capture_output=True, text=True, check=False)
        return done.stdout.splitlines()[bool(commands):]

    def told_of(self):
        """What others see of the process: its arguments and its environment."""
        process = pathlib.Path("/proc") / str(self.process.pid)
        return (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.1)


class Fleet:
    def __init__(self, root, folder):
        self.folder, self.script = folder, root / "deploy/redis/start.sh"
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n", encoding="utf-8")
        redis_hosts, sentinel_hosts = ["127.0.1.1", "127.0.1.2"], ["127.0.1.3", "127.0.1.4", "127.0.1.5"]
        redis_port, sentinel_port = check_routing.free_port(redis_hosts), check_routing.free_port(sentinel_hosts)
        self.first_primary = f"{redis_hosts[0]}:{redis_port}"
        self.sentinel_addresses = " ".join(f"{host}:{sentinel_port}" for host in sentinel_hosts)
        self.redis = [Node(self, "redis", host, redis_port) for host in redis_hosts]
        self.sentinels = [Node(self, "sentinel", host, sentinel_port) for host in sentinel_hosts]
        self.nodes = self.redis + self.sentinels

    def until_followed(self):
        """Waits until the replica has what the primary has, as servers that wait for replicas need it."""
        primary, replica = self.redis
        until(lambda: "connected_slaves:1" in primary.ask("info", "replication"), "the replica follows")
        # The first copy of everything begins some seconds after a replica has connected.
        until(lambda: primary.ask("set", "followed", "1") == ["OK"] and replica.ask("get", "followed") == ["1"], "the replica has it")

    def primaries(self):
        return {tuple(sentinel.ask("sentinel", "get-master-addr-by-name", "gdn")) for sentinel in self.sentinels}


def check(fleet):
    first, second = fleet.redis
    for node in fleet.nodes:
        node.start()
        assert PASSWORD.encode() not in node.told_of(), f"the password of {node.role} {node.host} can be seen"
    fleet.until_followed()
    until(lambda: all("num-slaves" in (lines := s.ask("sentinel", "master", "gdn")) and lines[lines.index("num-slaves") + 1] == "1"
                      and lines[lines.index("num-other-sentinels") + 1] == "2" for s in fleet.sentinels), "the Sentinels know each other")
    assert first.ask("set", "state", "1") == ["OK"]
    until(lambda: second.ask("get", "state") == ["1"], "the replica has the state")
    for setting, value in (("appendonly", "yes"), ("appendfsync", "always"), ("maxmemory-policy", "noeviction")):
        assert first.ask("config", "get", setting) == [setting, value], first.ask("config", "get", setting)

    first.kill()
    until(lambda: fleet.primaries() == {(second.host, str(second.port))}, "the Sentinels make the replica primary")
    until(lambda: "role:master" in second.ask("info", "replication"), "the replica is primary")
    assert second.ask("get", "state") == ["1"]
    assert second.ask("set", "state", "2") == ["OK"]
    print("the primary was killed: the replica took its place, with what had been stored")

    fleet.sentinels[0].kill()
    fleet.sentinels[0].start()
    assert fleet.sentinels[0].ask("sentinel", "get-master-addr-by-name", "gdn") == [second.host, str(second.port)]
    first.start()
    assert f"begins as replica of {second.host}:{second.port}" in first.log.read_text(), first.log.read_text()
    until(lambda: first.ask("get", "state") == ["2"], "the first primary follows")
    assert "role:slave" in first.ask("info", "replication")
    print("a Sentinel that starts anew knows the new primary; the first one came back as its replica, and was never a second primary")

    fleet.password_file.write_text("with spaces", encoding="utf-8")
    refused = subprocess.run(["/bin/sh", fleet.script, "redis"], env=first.environment(), capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "has to be of letters" in refused.stderr and "with spaces" not in refused.stderr
    assert not first.healthy(), "health answers to a wrong password"


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip())
        return 2
    if not shutil.which("redis-server") or not shutil.which("redis-cli"):
        print("redis-server is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(pathlib.Path(arguments[0]).resolve(), pathlib.Path(folder))
        try:
            check(fleet)
        except AssertionError:
            for node in fleet.nodes:
                if node.log.exists():
                    print(f"--- {node.role} {node.host}", *node.log.read_text(errors="replace").splitlines()[-15:], sep="\n")
            raise
        finally:
            for node in fleet.nodes:
                if node.process and node.process.poll() is None:
                    node.kill()
    print("start.sh: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
