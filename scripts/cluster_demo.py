"""The cluster of scripts/cluster_demo.sh: its hosts, what happens to them, and what the clients saw.

Every host is a network namespace on one bridge. Nothing outside them is touched, and all that was started ends with the script.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from cluster_hosts import Cluster, Host, enter
from cluster_picture import picture

REPO = pathlib.Path(__file__).resolve().parent.parent
MODEL = REPO / "tests/golden/qwen3_next_1"
HIDDEN = 64
PROMPT = 24
LEASE_S = 5
MASTER = "gdn-demo"

NODES = ["node1", "node2", "node3", "node4"]
REDIS = ["redis1", "redis2", "redis3"]


def inputs(seed: int, session: str, layer: int, first: int, count: int) -> np.ndarray:
    """[count, D] float32, a function of its arguments alone."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{session}/{layer}/{first}".encode()).digest()[:8], "little")
    return np.random.default_rng(key).standard_normal((count, HIDDEN), dtype=np.float32)


class Story:
    """What happened, by seconds since the beginning."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.events: list[tuple[float, str]] = []
        self.spans: list[tuple[str, float, float, str]] = []  # host, from, to, what
        self.tokens: list[float] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, what: str) -> None:
        with self._lock:
            self.events.append((self.now(), what))
        print(f"{self.now():7.1f} s  {what}", flush=True)

    def token(self, count: int) -> None:
        with self._lock:
            self.tokens.extend([self.now()] * count)

    def span(self, host: str, begin: float, end: float, what: str) -> None:
        with self._lock:
            self.spans.append((host, begin, end, what))


class Worker(threading.Thread):
    """Decodes some sessions, in one call or one, until it is told to stop; keeps a digest of each session's outputs."""

    def __init__(self, client, names: list[str], seed: int, story: Story | None, pause: float, steps: int | None = None) -> None:
        super().__init__(name=f"worker-{names[0]}", daemon=True)
        self.client, self.names, self.seed, self.story, self.pause = client, names, seed, story, pause
        self.steps = steps  # nothing: until stop
        self.stop = threading.Event()
        self.done = 0
        self.digests = {name: hashlib.sha256() for name in names}
        self.latencies: list[tuple[float, float]] = []  # when, how long
        self.error: BaseException | None = None
        self.replays = 0
        self.counts: dict[str, list[int]] = {}

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - told by whoever joins it
            self.error = error

    def _run(self) -> None:
        sessions = [
            self.client.session(model="demo", session_id=name, affinity=self.names[0] if len(self.names) > 1 else "")
            for name in self.names
        ]
        batch = self.client.batch(sessions) if len(sessions) > 1 else None
        layers = list(sessions[0].layers)
        for session, name in zip(sessions, self.names, strict=True):
            for layer in layers:
                self.digests[name].update(session.prefill(layer, inputs(self.seed, name, layer, 0, PROMPT)).tobytes())
        while not self.stop.is_set() and (self.steps is None or self.done < self.steps):
            at = PROMPT + self.done
            for layer in layers:
                x = np.concatenate([inputs(self.seed, name, layer, at, 1) for name in self.names])
                begun = time.monotonic()
                y = batch.decode(layer, x) if batch is not None else sessions[0].decode(layer, x[0])[None]
                if self.story is not None:
                    self.latencies.append((begun - self.story.begun, time.monotonic() - begun))
                for row, name in enumerate(self.names):
                    self.digests[name].update(np.ascontiguousarray(y[row]).tobytes())
            self.done += 1
            if self.story is not None:
                self.story.token(len(self.names))
            time.sleep(self.pause)
        self.replays = sum(session.stats.replays for session in sessions)
        for session in sessions:
            shown = self.client.attach(session.name) if self.story is not None else session
            self.counts[session.name] = [shown.token_count(layer) for layer in layers]
            session.detach()


class Probe(threading.Thread):
    """Steps a session at one node, from that node's own machine: the one that no partition of it keeps away."""

    def __init__(self, host: Host, session: str, story: Story, seed: int) -> None:
        super().__init__(name="probe", daemon=True)
        self.host, self.session, self.story, self.seed = host, session, story, seed
        self.process: subprocess.Popen | None = None
        self.answers: list[tuple[float, str]] = []  # monotonic seconds, "OK" or a reason

    def run(self) -> None:
        self.process = self.host.popen(
            [sys.executable, "-B", __file__, "--probe", self.session, "--seed", str(self.seed)], stdout=subprocess.PIPE, text=True
        )
        for line in self.process.stdout:
            at, answer = line.split()
            self.answers.append((float(at), answer))


def probe(session: str, seed: int) -> None:
    """A token of the session each 200 ms at 127.0.0.1, as whoever holds an old reply would send it."""
    import gdn_client

    client = gdn_client.Client("127.0.0.1:50061", retry=gdn_client.Retry(overall=0.0), keep_bytes=0, timeout=1.0)
    attached = None
    while True:
        try:
            attached = attached or client.attach(session)
            attached.decode(attached.layers[0], inputs(seed, "probe", 0, int(time.monotonic() * 1000), 1)[0])
            answer = "OK"
        except gdn_client.GdnError as error:
            attached = None
            answer = error.reason or error.code.name
        print(f"{time.monotonic():.4f} {answer}", flush=True)
        time.sleep(0.2)


def client_of(target: str, overall: float = 120.0):
    import gdn_client

    return gdn_client.Client(target, retry=gdn_client.Retry(overall=overall, first=0.02, longest=0.5), timeout=6.0)


def undisturbed(bin_dir: pathlib.Path, folder: pathlib.Path, seed: int, groups: list[list[str]], steps: dict[str, int]) -> dict[str, str]:
    """Digests of the same sessions' outputs by one server that nothing happens to."""
    port_file = folder / "steady.port"
    command = [bin_dir / "gdn_server", "--listen=127.0.0.1:0", f"--port-file={port_file}", f"--model=demo={MODEL}", "--backend=cpu"]
    with (folder / "steady.log").open("w") as log, subprocess.Popen([str(c) for c in command], stdout=log, stderr=log) as server:
        while not port_file.exists() or not port_file.read_text():
            time.sleep(0.05)
        client = client_of(f"127.0.0.1:{port_file.read_text().strip()}")
        digests = {}
        workers = [Worker(client, names, seed, None, 0, steps[names[0]]) for names in groups]
        for worker in workers:
            worker.start()
            worker.join()
            if worker.error is not None:
                raise worker.error
            digests |= {name: digest.hexdigest() for name, digest in worker.digests.items()}
        client.close()
        server.terminate()
    return digests


class Demo:
    def __init__(self, bin_dir: pathlib.Path, folder: pathlib.Path, seed: int) -> None:
        self.bin, self.folder, self.seed = bin_dir, folder, seed
        self.cluster = Cluster(folder, [*NODES, *REDIS, "proxy", "clients"])
        self.story = Story()
        self.up_since: dict[str, float] = {}
        self.servers: dict[str, subprocess.Popen] = {}
        self.redis: dict[str, subprocess.Popen] = {}

    # --- What runs.
    def start_redis(self, name: str, master: str | None) -> None:
        host = self.cluster[name]
        arguments = ["redis-server", "--port", "6379", "--bind", host.address, "127.0.0.1", "--protected-mode", "no", "--save", "",
                     "--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0",
                     "--dir", str(host.folder("redis"))]
        if master is not None:
            arguments += ["--replicaof", self.cluster[master].address, "6379"]
        self.redis[name] = host.popen(arguments, log="redis")
        self.up_since[name] = self.story.now()

    def start_sentinels(self) -> None:
        for name in REDIS:
            host = self.cluster[name]
            config = host.folder("sentinel") / "sentinel.conf"
            config.write_text(
                f"port 26379\nbind {host.address}\nprotected-mode no\ndir {config.parent}\n"
                f"sentinel monitor {MASTER} {self.cluster['redis1'].address} 6379 2\n"
                f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 6000\n"
            )
            host.popen(["redis-server", str(config), "--sentinel"], log="sentinel")

    def start_node(self, name: str) -> None:
        host = self.cluster[name]
        sentinels = ",".join(f"{self.cluster[redis].address}:26379" for redis in REDIS)
        self.servers[name] = host.popen(
            [str(self.bin / "gdn_server"), f"--model=demo={MODEL}", "--backend=cpu", "--threads=1", "--allow-insecure",
             f"--listen={host.address}:50061", "--listen=127.0.0.1:50061", f"--http-listen={host.address}:9464",
             f"--redis=sentinel://{sentinels}/{MASTER}", "--redis-wait-replicas=1", "--share-sessions", f"--node-name={name}",
             f"--node-lease={LEASE_S}s", "--checkpoint-every-tokens=64", "--device-state-bytes=256MiB", "--log-format=text"],
            log="gdn",
        )
        self.wait_for(lambda: host.http("9464", "/readyz") == 200, f"{name} to be ready")
        self.up_since[name] = self.story.now()

    def start_proxy(self) -> None:
        host = self.cluster["proxy"]
        self.admin = host.folder("haproxy") / "admin.sock"
        environment = {f"GDN_NODE_{i + 1}": f"{self.cluster[name].address}:50061" for i, name in enumerate(NODES[:3])}
        environment |= {"GDN_PROXY_LISTEN": f"{host.address}:50061", "GDN_PROXY_HTTP_LISTEN": "127.0.0.1:8404",
                        "GDN_PROXY_ADMIN": str(self.admin), "GDN_PROXY_SLOWSTART": "3s"}
        host.popen(["haproxy", "-f", str(REPO / "deploy/haproxy/haproxy.cfg")], log="haproxy", environment=environment)
        self.target = f"{host.address}:50061"

    def wait_for(self, condition, what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"cluster demo FAILED: waited {seconds:.0f} s in vain for {what}; logs are in {self.folder}")
            time.sleep(0.1)

    def down(self, host: str, why: str) -> None:
        self.story.span(host, self.up_since.pop(host), self.story.now(), "up")
        self.story.tell(why)

    def master(self) -> str:
        for name in REDIS:
            answer = self.cluster[name].run(["redis-cli", "-h", self.cluster[name].address, "-p", "26379", "SENTINEL",
                                             "get-master-addr-by-name", MASTER], check=False)
            for other in REDIS:
                if answer.startswith(self.cluster[other].address):
                    return other
        return ""

    # --- What happens.
    def kill_a_node(self) -> None:
        self.servers["node1"].send_signal(signal.SIGKILL)
        self.servers["node1"].wait()
        self.down("node1", "node1 is killed (SIGKILL): its sessions are taken over at their last checkpoints")
        time.sleep(LEASE_S + 8)

    def drain_a_node(self) -> None:
        begun = self.story.now()
        self.story.tell("node2 drains: its sessions go to the others while they are used")
        self.cluster["node2"].run([str(self.bin / "gdnctl"), "drain", "--target=127.0.0.1:50061"], check=False)
        self.servers["node2"].send_signal(signal.SIGTERM)
        rc = self.servers["node2"].wait(60)
        self.story.span("node2", begun, self.story.now(), "draining")
        self.down("node2", f"node2 has ended, with code {rc}")
        if rc != 0:
            raise SystemExit(f"cluster demo FAILED: the drained node ended with code {rc}; logs are in {self.folder}")
        time.sleep(4)

    def join(self) -> None:
        self.start_node("node4")
        address = self.cluster["node4"].address
        self.cluster["proxy"].runtime_api(self.admin, f"set server gdn/gdn-4 addr {address} port 50061; set server gdn/gdn-4 state ready")
        self.story.tell("node4 joins: HAProxy sends it its share, and the others hand those sessions over")
        self.start_node("node1")
        self.story.tell("node1 is started again")
        time.sleep(10)

    def fail_redis_over(self) -> None:
        before = self.master()
        self.redis[before].send_signal(signal.SIGKILL)
        self.redis[before].wait()
        self.down(before, f"{before}, the Redis master, is killed")
        self.wait_for(lambda: self.master() not in ("", before), "a new Redis master")
        self.story.tell(f"{self.master()} is the master now")
        time.sleep(6)
        self.start_redis(before, self.master())
        self.story.tell(f"{before} is back, as a replica")
        time.sleep(3)

    def cut_a_node_off(self, session: str, seconds: float = 30.0) -> Probe:
        probe_thread = Probe(self.cluster["node3"], session, self.story, self.seed)
        begun = self.story.now()
        self.cluster["node3"].cut_off(True)
        self.story.tell(f"node3 is cut off from everybody for {seconds:.0f} s; somebody on its own machine keeps calling it")
        probe_thread.start()
        time.sleep(seconds)
        probe_thread.process.terminate()
        probe_thread.join()
        self.cluster["node3"].cut_off(False)
        self.story.span("node3", begun, self.story.now(), "cut off")
        self.story.tell("node3 is back")
        time.sleep(8)
        return probe_thread

    def run(self) -> tuple[list[Worker], Probe, Worker]:
        self.start_redis("redis1", None)
        for name in REDIS[1:]:
            self.start_redis(name, "redis1")
        redis1 = self.cluster["redis1"]
        self.wait_for(lambda: redis1.run(["redis-cli", "-h", redis1.address, "WAIT", "2", "100"], check=False).strip() == "2", "two replicas")
        self.start_sentinels()
        self.wait_for(lambda: self.master() == "redis1", "the Sentinels")
        for name in NODES[:3]:
            self.start_node(name)
        self.start_proxy()
        enter(self.cluster["clients"])
        client = client_of(self.target)
        self.groups = [[f"batch{i}-{j}" for j in range(4)] for i in range(3)] + [[f"single{i}"] for i in range(9)]
        workers = [Worker(client, names, self.seed, self.story, 0.02) for names in self.groups]
        for worker in workers:
            worker.start()
        self.story.tell(f"{sum(map(len, self.groups))} sessions decode at 3 nodes")
        time.sleep(5)
        self.kill_a_node()
        self.drain_a_node()
        self.join()
        self.fail_redis_over()
        # One whose calls HAProxy sends to node3, from which its client is cut off with everybody else.
        owner = Worker(client_of(self.target), [self.name_at("node3")], self.seed, self.story, 0.02)
        owner.start()
        self.wait_for(lambda: owner.done > 20 or owner.error is not None, "the probed session")
        seen = self.cut_a_node_off(owner.names[0])
        owner.stop.set()
        owner.join(180)
        for worker in workers:
            worker.stop.set()
        for worker in [*workers, owner]:
            worker.join(180)
            if worker.error is not None or worker.is_alive():
                raise SystemExit(f"cluster demo FAILED: {worker.name}: {worker.error or 'did not end'}; logs are in {self.folder}")
        for host, since in list(self.up_since.items()):
            self.story.span(host, since, self.story.now(), "up")
        self.story.tell("the clients stop")
        return workers, seen, owner

    def name_at(self, node: str) -> str:
        """The name of a session that is not there yet, whose calls go to the node."""
        client = client_of(self.target)
        for number in range(100):
            name = f"probe{number}"
            with client.session(model="demo", session_id=name):
                listed = self.cluster[node].run([str(self.bin / "gdnctl"), "sessions", "list", "--target=127.0.0.1:50061"])
                if f"sessions/{name}" in listed.split() or name in listed.split():
                    return name
        raise SystemExit(f"cluster demo FAILED: HAProxy sends nothing to {node}")

    def close(self) -> None:
        self.cluster.close()


def judge(demo: Demo, workers: list[Worker], seen: Probe, owner: Worker, expected: dict[str, str]) -> str:
    names = [name for worker in workers for name in worker.names]
    wrong = [name for worker in workers for name in worker.names if worker.digests[name].hexdigest() != expected[name]]
    lost = doubled = 0
    for worker in workers:
        for counts in worker.counts.values():
            for count in counts:
                lost += max(0, PROMPT + worker.done - count)
                doubled += max(0, count - PROMPT - worker.done)
    # Of the session that somebody steps at the node which is cut off: that node's last answer comes before any other's first.
    refused = [at for at, answer in seen.answers if answer == "NODE_LEASE_LAPSED"]
    begun = next(begin for host, begin, _, what in demo.story.spans if host == "node3" and what == "cut off") + demo.story.begun
    # What was on its way when the cable was pulled has come within a second.
    elsewhere = [demo.story.begun + at + took for at, took in owner.latencies if demo.story.begun + at + took > begun + 1]
    steps_there = [at for at, answer in seen.answers if answer == "OK"]
    last_there = max(steps_there, default=begun)
    first_elsewhere = min(elsewhere, default=float("inf"))
    forked = last_there > first_elsewhere
    tokens = sum(worker.done * len(worker.names) for worker in workers)
    drained = next((begin, end) for host, begin, end, what in demo.story.spans if host == "node2" and what == "draining")
    steady = [took for worker in workers for at, took in worker.latencies if at < 5]
    during = [took for worker in workers for at, took in worker.latencies if drained[0] <= at <= drained[1]]
    print(f"p99 of a call while a node drains {1000 * np.quantile(during, 0.99):.0f} ms ({len(during)} calls), before "
          f"{1000 * np.quantile(steady, 0.99):.0f} ms; p50 {1000 * np.quantile(during, 0.5):.1f} and {1000 * np.quantile(steady, 0.5):.1f} ms")
    print(f"sessions {len(names)}, tokens {tokens}, lost {lost}, doubled {doubled}, outputs that differ {len(wrong)}, "
          f"replays after losses {sum(worker.replays for worker in workers)}")
    print(f"cut off: {len(steps_there)} answers at node3 until {last_there - begun:.1f} s, then {len(refused)} refusals "
          f"(NODE_LEASE_LAPSED); the session's first answer elsewhere after {first_elsewhere - begun:.1f} s")
    if wrong or lost or doubled or forked or not refused or not elsewhere:
        raise SystemExit(f"cluster demo FAILED: differing {wrong[:5]}, forked {forked}, refusals {len(refused)}; logs are in {demo.folder}")
    return f"{len(names)} sessions, {tokens} tokens, 0 lost, 0 doubled, outputs bit-equal"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--probe")
    options = parser.parse_args()
    if options.probe:
        return probe(options.probe, options.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gdn-cluster-"))
    demo = Demo(options.bin, folder, options.seed)
    try:
        workers, seen, owner = demo.run()
        if options.measure:
            from cluster_measure import measure

            measure(demo, client_of, inputs)
    finally:
        demo.close()
    expected = undisturbed(options.bin, folder, options.seed, demo.groups, {worker.names[0]: worker.done for worker in workers})
    summary = judge(demo, workers, seen, owner, expected)
    if options.svg:
        options.svg.write_text(picture(demo.story, NODES + REDIS), encoding="utf-8")
        print(f"picture: {options.svg}")
    print(f"cluster demo ok: {summary}")
    return None


if __name__ == "__main__":
    main()
