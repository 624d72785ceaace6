"""Stores of make.py: the folder and the Redis of servers that stopped in order, or were killed, and what the next server
must make of them."""

import hashlib
import json
import os
import shutil
import signal
import tempfile
import time

from make_servers import NEVER_FULL, PATIENCE, Redis, Server, Story
from make_states import BY_CHANNEL, TREE, operator

ALICE = "alice-token"
TIER_DISK, TIER_REDIS = 3, 4
LEASE_SECONDS = 2


def tokens_file(folder):
    """A subject "alice", as the tests have her."""
    path = os.path.join(folder, "tokens.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"subjects": [{"subject": "alice", "roles": ["user"],
                                 "tokens": [{"sha256": hashlib.sha256(ALICE.encode()).hexdigest()}]}]}, file)
    return path


class Store:
    """A server with stores, a steady one beside it, and what is kept of them."""

    def __init__(self, recorder, name, disk=False, redis=False, share_sessions=False, logins=False, model=False):
        self.entry = {"name": name, "disk": disk, "redis": redis, "share_sessions": share_sessions, "logins": logins,
                      "models": {"next": "qwen3_next_1"} if model else {}}
        self._target = os.path.join(recorder.folder, name)
        self._work = tempfile.TemporaryDirectory()
        self.disk = os.path.join(self._work.name, "disk")
        self.redis = Redis() if redis else None
        models = [f"--model={name}={os.path.join(recorder.golden, path)}" for name, path in self.entry["models"].items()]
        flags = list(models)
        if disk:
            flags += [f"--disk-dir={self.disk}", NEVER_FULL]
        if redis:
            flags += [f"--redis={self.redis.endpoint}"]
        if share_sessions:
            flags += ["--share-sessions", "--node-name=recorded", f"--node-lease={LEASE_SECONDS}s", "--drain-notice=0s"]
        if logins:
            flags += [f"--tokens-file={tokens_file(self._work.name)}"]
        self._token = ALICE if logins else ""
        self._start = lambda: Server(recorder.program, recorder.protocol, *flags)
        self.kept = self._start()
        self.steady = Server(recorder.program, recorder.protocol, *models)
        self.sessions = []
        self._redis_kept = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.kept, self.steady):
            if server.process.poll() is None:
                server.end(signal.SIGKILL)
        if self.redis:
            self.redis.end()
        self._work.cleanup()

    def story(self, name, spec, layers=1):
        return Story(self.kept, self.steady, name, spec, self._token, layers).create()

    def call(self, method, **fields):
        request = getattr(self.kept.protocol, f"{method}Request")(**fields)
        return self.kept.call(method, request, self._token)

    def checkpoint(self, story, name=""):
        made = self.call("CheckpointSession", name=f"sessions/{story.name}", checkpoint_id=name).checkpoint
        return {"id": name, "epoch": made.epoch, "layers": story.layers()}

    def restart(self):
        self.kept.end(signal.SIGTERM)
        self.kept = self._start()

    def keep_redis(self):
        """Now, which may be before the end of the server."""
        os.makedirs(self._target, exist_ok=True)
        with open(os.path.join(self._target, "redis.json"), "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(command) for command in self.redis.commands()) + "\n]\n")
        self._redis_kept = True

    def end(self, how):
        self.entry["ended"] = {signal.SIGTERM: "stopped", signal.SIGKILL: "killed"}[how]
        self.kept.end(how)
        if self.redis and not self._redis_kept:
            if self.entry["share_sessions"]:
                until = time.monotonic() + PATIENCE
                while any(b"node:" in key for key in self.redis.call("KEYS", "*")) and time.monotonic() < until:
                    time.sleep(0.1)
            self.keep_redis()
        if self.entry["disk"]:
            # Without modes, of which git keeps none of these.
            shutil.copytree(self.disk, os.path.join(self._target, "disk"), copy_function=shutil.copyfile)
            for folder, _, _ in os.walk(self._target, topdown=False):  # git keeps no empty folders, so nobody may need them
                if not os.listdir(folder):
                    os.rmdir(folder)

    def keep(self, story, epoch, layers, steps, **more):
        self.sessions.append(story.manifest(epoch, steps, layers=layers, **more))

    def finished(self):
        return {**self.entry, "sessions": self.sessions}


class Stores:
    def __init__(self, program, protocol, golden, folder):
        self.program, self.protocol, self.golden, self.folder = program, protocol, golden, folder

    def record(self):
        return [self._disk_stopped(), self._disk_killed(), self._redis_stopped(), self._redis_killed(),
                self._shared(signal.SIGTERM), self._shared(signal.SIGKILL), self._both_stopped(), self._both_killed()]

    @staticmethod
    def _stop_and_keep(store, stories, first=lambda story: []):
        """Ends the server in order: each session goes on where it was, in its epoch."""
        told = [(story, story.layers(), story.epoch()) for story in stories]
        store.end(signal.SIGTERM)
        for story, layers, epoch in told:
            store.keep(story, {"is": epoch}, layers, first(story) + story.go_on(epoch))

    def _disk_stopped(self):
        with Store(self, "disk_stopped", disk=True, model=True) as store:
            plain = store.story("plain", operator())
            plain.prefill(0, 5)
            named = [store.checkpoint(plain, "turn-1")]
            at_turn = plain.as_it_is("turn-1")
            plain.decode(0, 2)
            store.checkpoint(plain)  # a full file, to which the stop writes a delta
            last = plain.decode_request(0, 1, request_id="step-3")
            plain.step(last)
            named.append(store.checkpoint(plain, "turn-2"))
            tree = store.story("tree", operator())
            tree.decode(0, 2)
            tree.decode(0, len(TREE), draft=True, draft_parents=TREE)
            by_channel = store.story("by-channel", {"operator": BY_CHANNEL})
            for _ in range(2):
                by_channel.decode(0, 7)
            model = store.story("model", {"model": "models/next"})
            model.prefill(0, 2)
            model.decode(0, 1)
            model_layers, model_epoch = model.layers(), model.epoch()
            told = {story.name: (story.layers(), story.epoch()) for story in (plain, tree, by_channel)}
            store.end(signal.SIGTERM)

            layers, epoch = told["plain"]
            steps = [plain.next_step(last, again=True), *plain.go_on(epoch)]
            steps += [self._restore(plain, "turn-1"), *at_turn.go_on()]
            store.keep(plain, {"is": epoch}, layers, steps, checkpoints=named)
            layers, epoch = told["tree"]
            store.keep(tree, {"is": epoch}, layers,
                       [tree.next_step(tree.accept_request(path=[0, 1, 3])), *tree.go_on(epoch)])
            layers, epoch = told["by-channel"]
            store.keep(by_channel, {"is": epoch}, layers, by_channel.go_on(epoch))
            store.keep(model, {"is": model_epoch}, model_layers, model.go_on(model_epoch, layers=[0], tokens=(1,)))
            return store.finished()

    @staticmethod
    def _restore(story, checkpoint):
        request = story.protocol.RestoreCheckpointRequest(name=f"sessions/{story.name}", checkpoint_id=checkpoint)
        return story._recorded(request)

    @staticmethod
    def _crash_after(store, story):
        """Makes the session durable and takes a step that the crash loses. Returns what to keep it by, after the crash."""
        store.checkpoint(story)
        layers, epoch, durable = story.layers(), story.epoch(), story.as_it_is("durable")
        story.decode(0, 1)

        def keep():
            lost = story.decode_request(0, 1, session_epochs=[epoch])
            store.keep(story, {"above": epoch}, layers, [story.refused_step(lost, "EPOCH_MISMATCH"), *durable.go_on()])
        return keep

    def _disk_killed(self):
        with Store(self, "disk_killed", disk=True, logins=True) as store:
            full = store.story("full", operator())
            full.prefill(0, 4)
            delta = store.story("delta", operator())
            delta.prefill(0, 4)
            store.checkpoint(delta)
            store.restart()  # so that the folder has seen two starts
            for story in (full, delta):
                story.kept = store.kept
            delta.decode(0, 2)
            store.checkpoint(delta)
            delta.decode(0, 1)
            keepers = [self._crash_after(store, full), self._crash_after(store, delta)]
            unstored = store.story("never-durable", operator())
            unstored.prefill(0, 2)
            store.end(signal.SIGKILL)
            if not any("state.delta.safetensors" in names for _, _, names in os.walk(store.disk)):
                raise RuntimeError("the folder has no delta")
            for keep in keepers:
                keep()
            store.sessions.append({"name": "never-durable", "token": ALICE, "gone": True})
            return store.finished()

    def _redis_stopped(self):
        with Store(self, "redis_stopped", redis=True, logins=True) as store:
            story = store.story("plain", operator())
            story.prefill(0, 5)
            named = [store.checkpoint(story, "turn-1")]
            at_turn = story.as_it_is("turn-1")
            last = story.decode_request(0, 1, request_id="step-3")
            story.step(last)
            layers, epoch = story.layers(), story.epoch()
            store.end(signal.SIGTERM)
            # All steps are there, but where Redis is the only store it might have been set back: a new epoch.
            old = story.decode_request(0, 1, session_epochs=[epoch])
            steps = [story.next_step(last, again=True), story.refused_step(old, "EPOCH_MISMATCH"), *story.go_on(),
                     self._restore(story, "turn-1"), *at_turn.go_on()]
            store.keep(story, {"above": epoch}, layers, steps, checkpoints=named)
            return store.finished()

    def _redis_killed(self):
        with Store(self, "redis_killed", redis=True) as store:
            story = store.story("plain", operator())
            story.prefill(0, 5)
            keep = self._crash_after(store, story)
            store.end(signal.SIGKILL)
            keep()
            return store.finished()

    def _shared(self, how):
        name = {signal.SIGTERM: "shared_stopped", signal.SIGKILL: "shared_killed"}[how]
        with Store(self, name, redis=True, share_sessions=True) as store:
            story = store.story("shared", operator())
            story.prefill(0, 5)
            story.decode(0, 1)
            if how == signal.SIGTERM:
                self._stop_and_keep(store, [story])
            else:
                keep = self._crash_after(store, story)
                store.end(how)
                keep()
            return store.finished()

    def _both_stopped(self):
        with Store(self, "disk_and_redis_stopped", disk=True, redis=True) as store:
            stories = []
            for name, tier in (("on-disk", TIER_DISK), ("in-redis", TIER_REDIS)):
                story = store.story(name, operator())
                story.prefill(0, 3)
                story.decode(0, 2)
                store.call("EvictSession", name=f"sessions/{name}", tier=tier)
                stories.append(story)
            told = {story.name: (story.layers(), story.epoch()) for story in stories}
            store.end(signal.SIGTERM)
            for story in stories:
                layers, epoch = told[story.name]
                store.keep(story, {"is": epoch}, layers, story.go_on(epoch))
            return store.finished()

    def _both_killed(self):
        """A session in Redis is deleted while Redis cannot be reached, so the folder has a note of it."""
        with Store(self, "erasure_owed", disk=True, redis=True) as store:
            story = store.story("deleted", operator())
            story.prefill(0, 3)
            store.call("EvictSession", name="sessions/deleted", tier=TIER_REDIS)
            store.keep_redis()
            store.redis.end()
            store.call("DeleteSession", name="sessions/deleted")
            store.end(signal.SIGKILL)
            if not os.path.exists(os.path.join(store.disk, "owed")):
                raise RuntimeError("the server left no note of what Redis has still to erase")
            store.sessions.append({"name": "deleted", "gone": True})
            return store.finished()
