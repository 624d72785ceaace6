"""Hosts of a test, each a network namespace on one bridge in a namespace of its own.

    cluster = Cluster(folder, ["node1", "redis1"])
    cluster["node1"].popen(["gdn_server", ...], log="gdn")
    cluster["node1"].cut_off(True)
    cluster.close()          # ends every process that was started, and the namespaces with them

As root. Thread safety: processes may be started from any thread; the rest is for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess

_CLONE_NEWNET = 0x40000000
_SUBNET = "10.61.7"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Host:
    def __init__(self, cluster: Cluster, name: str, number: int) -> None:
        self.name, self.address = name, f"{_SUBNET}.{number}"
        self._cluster = cluster
        self.namespace = f"{cluster.prefix}{name}"
        self._port = f"{cluster.prefix}p{number}"  # its end of the cable at the switch

    def plug_in(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip("-n", self._cluster.switch, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        _ip("-n", self._cluster.switch, "link", "set", self._port, "master", "br0", "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.namespace, "link", "set", device, "up")

    def cut_off(self, cut: bool) -> None:
        """From every other host, as a cable that is pulled; its own loopback stays."""
        _ip("-n", self._cluster.switch, "link", "set", self._port, "down" if cut else "up")

    def folder(self, what: str) -> pathlib.Path:
        path = self._cluster.folder / self.name / what
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _inside(self, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]

    def popen(self, command: list[str], log: str | None = None, environment: dict[str, str] | None = None, **options) -> subprocess.Popen:
        if log is not None:
            options["stdout"] = options["stderr"] = (self._cluster.folder / f"{self.name}.{log}.log").open("a")
        # `ip netns exec` becomes the command: signals reach it.
        process = subprocess.Popen(self._inside(command), env=os.environ | (environment or {}), start_new_session=True, **options)
        self._cluster.processes.append(process)
        return process

    def run(self, command: list[str], check: bool = True) -> str:
        done = subprocess.run(self._inside(command), check=False, capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def http(self, port: str, path: str) -> int:
        """The status of a GET at this host; 0 where nobody answers."""
        status = self.run(["curl", "-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", f"http://{self.address}:{port}{path}"], check=False)
        return int(status or 0)

    @staticmethod
    def runtime_api(path: pathlib.Path, command: str) -> str:
        """HAProxy's answer to a command."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer.decode().strip()


class Cluster:
    def __init__(self, folder: pathlib.Path, names: list[str]) -> None:
        self.folder = folder
        self.prefix = f"gdn{os.getpid() % 10000}"
        self.switch = f"{self.prefix}switch"
        self.processes: list[subprocess.Popen] = []
        self._hosts = {name: Host(self, name, number) for number, name in enumerate(names, start=1)}
        try:
            _ip("netns", "add", self.switch)
            _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "br0", "up")
            for host in self._hosts.values():
                host.plug_in()
        except subprocess.CalledProcessError as error:
            self.close()
            raise SystemExit(f"network namespaces cannot be made here: {error.stderr.strip()}") from error

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        for namespace in [*(host.namespace for host in self._hosts.values()), self.switch]:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def enter(host: Host) -> None:
    """What this process does from now on, in threads that begin later too, it does at the host."""
    with open(f"/run/netns/{host.namespace}", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {host.namespace}")
