#!/usr/bin/env python3
"""One layer on several servers with some value heads each. Needs first_session.py beside it, and the same packages.

    gdn_server --model m=DIR --heads 0-1/4 --listen 127.0.0.1:50061 &
    gdn_server --model m=DIR --heads 2-3/4 --listen 127.0.0.1:50062 &
    gdn_server --model m=DIR --listen 127.0.0.1:50063 &
    head_slices.py --target 127.0.0.1:50061 --others 127.0.0.1:50062 --whole 127.0.0.1:50063

The program sends the same inputs to every server at the same time, and adds the outputs in the order of the heads. With
--whole it compares the sum with the output of a server that has all heads. gdn_client.SlicedClient does all of this. It
also brings the servers back to the same token if one of them was away.
Exit code: 0 if all sums are within 1e-5, 1 otherwise.
"""

import argparse
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from first_session import Service, connect, parse_arguments, run, to_array

PROMPT_TOKENS, DECODED_TOKENS = 40, 20


class Part:
    """A session on one server, and the heads of that server."""

    def __init__(self, service):
        self._service = service
        self.model = service.ListModels().models[0]
        heads = self.model.heads
        self.first = heads.first_value_head
        self.end = self.first + (heads.value_heads or self.model.dims.value_heads)
        self.total = heads.total_value_heads or self.model.dims.value_heads
        self.session = service.CreateSession(model=self.model.name).session.name

    def prefill(self, layer, x):
        reply = self._service.Prefill(session=self.session, layer=layer, hidden_states=self._service.hidden_states(x))
        return to_array(reply.output)

    def decode(self, layer, x):
        hidden_states = self._service.hidden_states(x[None, None])  # [B = 1, T = 1, D]
        return to_array(self._service.Decode(sessions=[self.session], layer=layer, hidden_states=hidden_states).output)[0, 0]

    def end_session(self):
        self._service.DeleteSession(name=self.session)


def check_are_whole(parts):
    ends = [0] + [part.end for part in parts]
    if [part.first for part in parts] != ends[:-1] or ends[-1] != parts[-1].total:
        sys.exit("the servers have the heads %s, expected each of %d once" % ([(p.first, p.end) for p in parts], parts[-1].total))
    if len({part.model.whole_fingerprint for part in parts}) != 1:
        sys.exit("the servers have different models")


def step(pool, parts, take):
    """Returns the sum of the servers' outputs, which are computed at the same time."""
    return sum(output.astype(np.float64) for output in pool.map(take, parts))


def sums(parts, whole, layer, x, checks):
    with ThreadPoolExecutor(len(parts)) as pool:
        prompt = step(pool, parts, lambda part: part.prefill(layer, x[:PROMPT_TOKENS]))
        decoded = [step(pool, parts, lambda part, t=t: part.decode(layer, x[t])) for t in range(PROMPT_TOKENS, len(x))]
    print("layer %d: the sums of %d servers have a norm of %.3f" % (layer, len(parts), np.linalg.norm(prompt)))
    if whole is not None:
        checks.close("prompt, beside one server", prompt, whole.prefill(layer, x[:PROMPT_TOKENS]))
        want = [whole.decode(layer, x[t]) for t in range(PROMPT_TOKENS, len(x))]
        checks.close("decode, beside one server", np.array(decoded), np.array(want))


def add_servers(parser):
    parser.add_argument("--others", nargs="*", default=[], metavar="TARGET", help="servers of the other heads")
    parser.add_argument("--whole", metavar="TARGET", help="a server of all heads, to compare with")


def main():
    arguments = parse_arguments(__doc__, add_servers)

    def body(service, checks):
        if not service.ListModels().models:
            print("The server has no models, so there are no heads to add up.")
            return
        with contextlib.ExitStack() as stack:

            def connect_to(target):
                other = argparse.Namespace(**{**vars(arguments), "target": target})
                return Part(Service(stack.enter_context(connect(other))))

            parts = sorted([Part(service), *map(connect_to, arguments.others)], key=lambda part: part.first)
            check_are_whole(parts)
            whole = connect_to(arguments.whole) if arguments.whole else None
            model = parts[0].model
            random = np.random.default_rng(1)
            x = random.standard_normal((PROMPT_TOKENS + DECODED_TOKENS, model.dims.hidden_size)).astype(np.float32)
            for layer in model.gdn_layers:
                sums(parts, whole, layer, x, checks)
            for part in [*parts, *([whole] if whole else [])]:
                part.end_session()

    return run("head slices", __doc__, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
