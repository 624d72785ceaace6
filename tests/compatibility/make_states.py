"""State files of make.py: one of each form that ExportState and WatchState write, and what its session does next."""

import json
import os
import struct

from make_servers import Server, Story

# Two value heads read each key head, and no two dimensions are equal, so a transposed tensor has wrong bits.
OPERATOR = {"key_heads": 2, "value_heads": 4, "key_dim": 4, "value_dim": 3, "layer_count": 2}
BY_CHANNEL = {**OPERATOR, "layer_count": 1, "decay": 2}
TREE = [-1, 0, 0, 1, -1]
# Tokens in the log before the next steps. The log holds 16, so these steps fold it.
NEARLY_FULL = 14


def operator(**changed):
    return {"operator": {**OPERATOR, "layer_count": 1, **changed}}


def metadata_of(file):
    return json.loads(file[8:8 + struct.unpack("<Q", file[:8])[0]])["__metadata__"]


def without_checksums(file):
    """The same file as version 1, by the rules of docs/reference/state-files.md."""
    size = struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8:8 + size])
    for key in ("checksums", "header_checksum"):
        header["__metadata__"].pop(key)
    header["__metadata__"]["format_version"] = "1"
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + file[8 + size:]


def export(server, name, **fields):
    request = server.protocol.ExportStateRequest(name=f"sessions/{name}", **fields)
    return b"".join(part.data for part in server.call("ExportState", request))


def snapshots(server, name):
    """The state as a full file, then a delta after each token."""
    data = b""
    for part in server.call("WatchState", server.protocol.WatchStateRequest(name=f"sessions/{name}", every_tokens=1)):
        data += part.data
        if len(data) == part.total_bytes:
            yield data, part.delta
            data = b""


class StateFiles:
    def __init__(self, program, protocol, golden, folder):
        self._program, self._protocol, self._golden, self._folder = program, protocol, golden, folder
        self.entries = []
        self._layers = []  # as they were when the file was written
        os.makedirs(folder)

    def _keep(self, file, data, story, steps, config, **more):
        with open(os.path.join(self._folder, file), "wb") as out:
            out.write(data)
        metadata = metadata_of(data)
        entry = {"file": file, "format_version": metadata["format_version"], "numerics_id": metadata["numerics_id"],
                 **config, **more}
        if steps is not None:
            entry["session"] = story.manifest({"is": 1}, steps, layers=self._layers)
        self.entries.append(entry)

    def _start(self, server, name, spec, layers=1):
        return Story(None, server, name, spec, layers=layers).create()

    def record(self):
        self._float32()
        self._bf16()
        self._slice_of_heads()
        versions = {entry["format_version"] for entry in self.entries}
        if not versions >= {"1", "2", "3", "4", "5"}:
            raise RuntimeError(f"only the format versions {sorted(versions)} are there; each that is read must be")
        return self.entries

    def _float32(self):
        models = {"next": "qwen3_next_1", "kda": "kimi_linear_1"}
        config = {"state_dtype": "float32", "models": models}
        flags = [f"--model={name}={os.path.join(self._golden, path)}" for name, path in models.items()]
        with Server.running(self._program, self._protocol, *flags) as server:
            self._operators(server, config)
            self._drafts_and_replies(server, config)
            self._watched(server, config)
            by_channel = self._start(server, "by-channel", {"operator": BY_CHANNEL})
            by_channel.prefill(0, 3)
            for _ in range(2):
                by_channel.decode(0, 7)
            self._export("by_channel", by_channel, config)
            tree = self._start(server, "by-channel-tree", {"operator": BY_CHANNEL})
            tree.decode(0, 2)
            tree.decode(0, len(TREE), draft=True, draft_parents=TREE)
            self._export("by_channel_tree", tree, config, first=lambda: [
                tree.next_step(tree.accept_request(path=[0, 1, 3]))])
            for name, layer in (("next", 1), ("kda", 1)):
                story = self._start(server, f"model-{name}", {"model": f"models/{name}"})
                story.prefill(layer, 3)
                story.decode(layer, 2)
                self._export(f"model_{name}", story, config, steps_layers=[layer], tokens=(1, 2))

    def _export(self, file, story, config, first=None, steps_layers=None, tokens=(1, 3), **fields):
        data = export(story.steady, story.name, **fields)
        self._layers = story.layers()
        steps = (first() if first else []) + story.go_on(layers=steps_layers, tokens=tokens)
        self._keep(f"{file}.safetensors", data, story, steps, config)
        return data

    def _operators(self, server, config):
        story = self._start(server, "operator", {"operator": OPERATOR}, layers=2)
        story.prefill(0, 5)
        for _ in range(2):
            story.decode(0, NEARLY_FULL // 2)
        story.prefill(1, 3)
        plain = export(server, "operator")
        extra = [("operator_with_state", export(server, "operator", include_recurrent_state=True)),
                 ("operator_with_bf16_state", export(server, "operator", include_recurrent_state=True,
                                                     recurrent_state_dtype=3)),
                 ("operator_without_checksums", without_checksums(plain))]
        self._layers = story.layers()
        steps = story.go_on()
        self._keep("operator.safetensors", plain, story, steps, config)
        for name, data in extra:  # the same session, so the same next steps
            self._keep(f"{name}.safetensors", data, story, None, config, same_session_as="operator.safetensors")

    def _drafts_and_replies(self, server, config):
        draft = self._start(server, "draft", operator())
        draft.prefill(0, 3)
        draft.decode(0, 2)
        draft.decode(0, 4, draft=True)
        self._export("draft", draft, config, first=lambda: [
            draft.refused_step(draft.decode_request(0), "DRAFT_PENDING"), draft.next_step(draft.accept_request(3))])
        tree = self._start(server, "draft-tree", operator())
        tree.decode(0, 2)
        tree.decode(0, len(TREE), draft=True, draft_parents=TREE)
        self._export("draft_tree", tree, config, first=lambda: [tree.next_step(tree.accept_request(path=[0, 2]))])

        reply = self._start(server, "reply", operator())
        reply.prefill(0, 3)
        last = reply.decode_request(0, 2, request_id="step-2")
        reply.step(last)
        self._export("reply", reply, config, first=lambda: [
            reply.next_step(last, again=True),
            reply.refused_step(reply.decode_request(0, 2, request_id="step-2"), "REQUEST_ID_REUSED")])
        prompt = self._start(server, "prompt-reply", operator())
        first = prompt.prefill_request(0, 2, request_id="prompt-1")
        prompt.step(first)
        self._export("prompt_reply", prompt, config, first=lambda: [prompt.next_step(first, again=True)])
        accepted = self._start(server, "accepted", operator())
        accepted.decode(0, 4, draft=True)
        acceptance = accepted.accept_request(2, request_id="accept-1")
        accepted.step(acceptance)
        self._export("accepted", accepted, config, first=lambda: [accepted.next_step(acceptance, again=True)])

    def _watched(self, server, config):
        story = self._start(server, "watched", operator())
        story.prefill(0, 5)
        story.decode(0, 2)
        watch = snapshots(server, "watched")
        full, is_delta = next(watch)
        story.decode(0, 1)
        delta, then_delta = next(watch)
        watch.close()
        if is_delta or not then_delta:
            raise RuntimeError("WatchState did not send a full file and then a delta")
        self._keep("watched.safetensors", full, story, None, config)
        self._layers = story.layers()
        self._keep("watched.delta.safetensors", delta, story, story.go_on(), config, delta_to="watched.safetensors")

    def _bf16(self):
        config = {"state_dtype": "bf16", "models": {}}
        with Server.running(self._program, self._protocol, "--state-dtype=bf16") as server:
            for name, spec in (("bf16", operator()), ("bf16-by-channel", {"operator": BY_CHANNEL})):
                story = self._start(server, name, spec)
                story.prefill(0, 5)
                for _ in range(2):
                    story.decode(0, NEARLY_FULL // 2)
                self._export(name.replace("-", "_"), story, config)

    def _slice_of_heads(self):
        config = {"state_dtype": "float32", "models": {"next": "qwen3_next_1"}, "heads": "0-1/4"}
        flags = [f"--model=next={os.path.join(self._golden, 'qwen3_next_1')}", f"--heads={config['heads']}"]
        with Server.running(self._program, self._protocol, *flags) as server:
            story = self._start(server, "slice", {"model": "models/next"})
            story.prefill(0, 2)
            story.decode(0, 1)
            self._export("slice", story, config, steps_layers=[0], tokens=(1,))
