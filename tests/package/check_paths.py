#!/usr/bin/env python3
"""Fails if a program, given a path that is not the regular file or folder it hoped for, hangs, crashes, replaces it or does not name it.

  check_paths.py GDN_SERVER GDNCTL GDN_BENCH GDN_PARITY GOLDEN_FOLDER

Each path argument of each program meets each KIND of thing in a private folder. The devices there are made by mknod, if that is
permitted; no real one is ever named, because a program that fails this test would destroy it.
"""

import concurrent.futures
import contextlib
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 45  # seconds for one program: three times what a program may wait for the other end of a pipe
NOBODY = 65534
AT_ONCE = 4  # programs
TEXT = "this was here before\n"


class Failure(Exception):
    pass


class NotPermitted(Exception):
    pass


def write(path, text=TEXT):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def device(path, minor):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        with open(path, "rb"):  # a container may permit mknod and not the use
            pass
    except OSError as error:
        raise NotPermitted(f"no device can be made: {error}") from error


def symlink(path, make_target):
    make_target(path + ".target")
    os.symlink(path + ".target", path)




def nothing(path):
    del path


def read_only_file(path):
    write(path)
    os.chmod(path, 0o444)


NULL, ZERO, FULL = 3, 5, 7
KINDS = {
    "new": nothing,
    "file": write,
    "folder": os.mkdir,
    "missing folder": nothing,
    "symlink to a file": lambda path: symlink(path, write),
    "symlink to a folder": lambda path: symlink(path, os.mkdir),
    "broken symlink": lambda path: os.symlink(path + ".nowhere", path),
    "pipe without another end": os.mkfifo,
    "pipe with another end": os.mkfifo,
    "null device": lambda path: device(path, NULL),
    "endless device": lambda path: device(path, ZERO),
    "full device": lambda path: device(path, FULL),
    "symlink to a device": lambda path: symlink(path, lambda target: device(target, NULL)),
    "read-only file": read_only_file,
    "read-only folder": nothing,  # Argument.check makes it
    "full file system": write,
}
# An output that cannot be written must end with an error; one that can must be written.
MUST_FAIL = {"folder", "missing folder", "symlink to a folder", "broken symlink", "pipe without another end", "full device",
             "read-only file", "read-only folder", "full file system"}
AS_NOBODY = {"read-only file", "read-only folder"}


def seen(path):
    """What stands at a path and behind it, but for the contents and times of regular files."""
    status = os.lstat(path) if os.path.lexists(path) else None
    if status is None:
        return None
    behind = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
    return stat.S_IFMT(status.st_mode), status.st_rdev, behind, seen(behind) if behind else None


class OtherEnd(threading.Thread):
    """Reads or writes a pipe as another program would."""

    def __init__(self, path, reads):
        super().__init__(daemon=True)
        self.path, self.reads, self.got = path, reads, b""
        self.start()

    def run(self):
        with contextlib.suppress(OSError), open(self.path, "rb" if self.reads else "wb") as file:
            if self.reads:
                self.got = file.read()
            else:
                file.write(TEXT.encode())

    def end(self):
        """Lets a thread that still waits for the program go."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.path, (os.O_WRONLY if self.reads else os.O_RDONLY) | os.O_NONBLOCK))
        self.join(PATIENCE)


def run(arguments, kind, serves=False):
    """(exit code, what it printed). A server is told to end once it says that it listens."""
    if kind == "full file system":
        arguments = ["prlimit", "--fsize=0", *arguments]
    user = NOBODY if kind in AS_NOBODY and os.geteuid() == 0 else None
    try:
        process = subprocess.Popen(  # pylint: disable=consider-using-with
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            user=user, group=user, extra_groups=None if user is None else [])
    except PermissionError as error:
        raise NotPermitted(f"another user may not run it: {error}") from error
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    deadline = time.monotonic() + PATIENCE
    told = False
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise Failure(f"has not ended after {PATIENCE} s: {''.join(lines)[-500:]}")
        if serves and not told and any("listening on" in line for line in lines):
            process.terminate()
            told = True
        time.sleep(0.01)
    reader.join(PATIENCE)
    text = "".join(lines)
    if process.returncode < 0:
        raise Failure(f"was ended by signal {-process.returncode}: {text[-500:]}")
    for word in ("terminate called", "Traceback", "AddressSanitizer"):
        if word in text:
            raise Failure(f"printed '{word}': {text[-500:]}")
    return process.returncode, text


class Argument:
    """One path argument of one program."""

    def __init__(self, name, command, *, writes=False, folder=False, serves=False, kept=None, flag=None):
        self.name = name
        self.command = command  # makes the command line from the path and the private folder
        self.writes = writes
        self.folder = folder  # the path is a folder's
        self.serves = serves  # the program runs until it is told to end
        self.kept = kept  # asks for what must be the same after a failure
        self.flag = flag  # its name in errors, if an error may name it in place of the path

    def check(self, kind, folder):
        path = os.path.join(folder, "there")
        if kind == "missing folder":
            path = os.path.join(folder, "none", "there")
        elif kind == "read-only folder":
            path = os.path.join(folder, "locked", "there")
            os.mkdir(os.path.dirname(path))
            if self.folder:
                os.mkdir(path)
            else:
                write(path)
            os.chmod(os.path.dirname(path), 0o555)
        if kind != "read-only folder":
            KINDS[kind](path)
        os.chmod(folder, 0o777)
        before, kept = seen(path), self.kept and self.kept()
        names = set(os.listdir(os.path.dirname(path))) if kind != "missing folder" else set()
        other = OtherEnd(path, self.writes) if kind == "pipe with another end" else None
        try:
            code, text = run(self.command(path, folder), kind, self.serves)
        finally:
            if other:
                other.end()
        after = seen(path)
        if before is not None and after != before:
            raise Failure(f"replaced what was there: {before} became {after}")
        if code != 0 and os.path.basename(path) not in text and not (self.flag and self.flag in text):
            raise Failure(f"ended with {code} and did not name the path: {text[-500:]}")
        if code != 0 and kind == "broken symlink" and "doctor" not in self.name and not any(
                words in text for words in ("symbolic link", "No such file", "is not there", "cannot execute", "is no ")):
            raise Failure(f"ended with {code} and does not say that nothing is there: {text[-500:]}")
        if code != 0 and len(text.strip()) < 20:
            raise Failure(f"ended with {code} and did not say why: {text}")
        if self.writes and not self.folder:
            self.check_written(kind, path, code, text, other)
            left = set(os.listdir(os.path.dirname(path))) - names - {"there"} if kind != "missing folder" else set()
            if left:
                raise Failure(f"left {sorted(left)} behind")
        if kind == "full device" and self.kept:  # nobody can know it before the output is written
            if "the step has been taken" not in text:
                raise Failure(f"does not say that the state has moved: {text[-300:]}")
        elif code != 0 and self.kept and self.kept() != kept:
            raise Failure(f"ended with {code} and had already moved the state: {kept} became {self.kept()}")

    def check_written(self, kind, path, code, text, other):
        if kind in MUST_FAIL and code == 0:
            raise Failure(f"ended with 0, but nothing can be written there: {text[-300:]}")
        if kind not in MUST_FAIL and code != 0:
            raise Failure(f"ended with {code}, but it could have been written: {text[-500:]}")
        if kind in ("file", "new", "symlink to a file"):
            with open(path, "rb") as file:
                content = file.read()
            if not content or content == TEXT.encode():
                raise Failure("ended with 0 and wrote nothing")
        if other and not other.got:
            raise Failure("ended with 0 and the pipe's reader got nothing")
        if kind in ("full file system", "read-only file") and os.path.getsize(path) != len(TEXT):
            raise Failure("lost what was in the file")


def safetensors(path, tensors):
    header, data = {}, b""
    for name, shape in tensors.items():
        count = 1
        for size in shape:
            count *= size
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<f", 0.25) * count
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Server:
    """A server that the commands talk to."""

    def __init__(self, program, gdnctl, golden, folder):
        self.gdnctl = gdnctl
        port_file = os.path.join(folder, "port")
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [program, "--listen=127.0.0.1:0", f"--port-file={port_file}", "--backend=cpu", f"--model=m={golden}",
             "--trace-calls=10"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(port_file):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure("the server does not listen")
            time.sleep(0.01)
        with open(port_file, encoding="utf-8") as file:
            self.target = f"--target=127.0.0.1:{file.read().strip()}"
        for session in ("chat", "prefilled", "decoded"):
            self.ctl("sessions", "create", "--model=m", f"--id={session}")
        with open(os.path.join(golden, "config.json"), encoding="utf-8") as file:
            width = json.load(file)["hidden_size"]
        self.prompt = os.path.join(folder, "prompt.safetensors")
        safetensors(self.prompt, {"hidden_states": [2, width]})
        self.step = os.path.join(folder, "step.safetensors")
        safetensors(self.step, {"hidden_states": [1, 1, width]})
        self.state = os.path.join(folder, "state.safetensors")
        self.pem = os.path.join(folder, "pem")
        write(self.pem, "-----BEGIN NOTHING-----\n-----END NOTHING-----\n")
        for file in (self.prompt, self.step, self.pem):
            os.chmod(file, 0o644)
        self.ctl("prefill", "--session=chat", "--layer=0", f"--in={self.prompt}", f"--out={folder}/o.safetensors")
        self.ctl("state", "export", "--session=chat", f"--out={self.state}")
        os.chmod(self.state, 0o644)

    def ctl(self, *words):
        return subprocess.run([self.gdnctl, *words, self.target], check=True, capture_output=True, text=True,
                              timeout=PATIENCE).stdout

    def count(self, session):
        return json.loads(self.ctl("sessions", "show", session, "--json")).get("layers", [])


def arguments_of(server_program, gdnctl, bench, parity, golden, server):
    def ctl(*words):
        return lambda path, folder: [gdnctl, *(word.replace("PATH", path) for word in words)]

    def at(*words):
        return ctl(*words, server.target, "--timeout=20s")

    def serve(*words):
        return lambda path, folder: [server_program, "--listen=127.0.0.1:0", "--backend=null",
                                     *(word.replace("PATH", path).replace("FOLDER", folder) for word in words)]

    listed = serve("--tokens-file=PATH")
    yield Argument("gdnctl prefill --out", at("prefill", "--session=prefilled", "--layer=0", f"--in={server.prompt}", "--out=PATH"),
                   writes=True, kept=lambda: server.count("prefilled"))
    yield Argument("gdnctl decode --out", at("decode", "--session=decoded", "--layer=0", f"--in={server.step}", "--out=PATH"),
                   writes=True, kept=lambda: server.count("decoded"))
    yield Argument("gdnctl state export --out", at("state", "export", "--session=chat", "--out=PATH"), writes=True)
    yield Argument("gdnctl state slice --out", ctl("state", "slice", server.state, "--heads=0-1/4", "--out=PATH"), writes=True)
    yield Argument("gdnctl state join --out", ctl("state", "join", server.state + ".low", server.state + ".high", "--out=PATH"),
                   writes=True)
    yield Argument("gdnctl trace --chrome", at("trace", "--chrome=PATH"), writes=True)
    yield Argument("gdnctl state watch --out",
                   at("state", "watch", "--session=chat", "--out=PATH", "--every-tokens=1", "--count=1"), writes=True, folder=True)
    yield Argument("gdnctl prefill --in", at("prefill", "--session=prefilled", "--layer=0", "--in=PATH", "--out=/nowhere/out"),
                   flag="nowhere")
    yield Argument("gdnctl state import --in", at("state", "import", "--in=PATH"))
    yield Argument("gdnctl state inspect", ctl("state", "inspect", "PATH"))
    yield Argument("gdnctl models inspect", ctl("models", "inspect", "PATH"))
    yield Argument("gdnctl replay --io", at("replay", "--model=m", "--io=PATH"))
    yield Argument("gdnctl doctor --root", ctl("doctor", "--root=PATH"), folder=True, flag="doctor")
    for flag in ("token-file", "tls-ca"):
        yield Argument(f"gdnctl --{flag}", at("info", f"--{flag}=PATH"))
    yield Argument("gdnctl --tls-cert", at("info", "--tls-cert=PATH", f"--tls-key={server.pem}"))
    yield Argument("gdnctl --tls-key", at("info", "--tls-key=PATH", f"--tls-cert={server.pem}"))
    yield Argument("gdn_bench drift --json", lambda path, folder: [bench, "drift", "--drift-tokens=1", f"--json={path}"],
                   writes=True)
    yield Argument("gdn_bench state --folder", lambda path, folder: [bench, "state", "--quick", f"--folder={path}",
                                                                      f"--server={server_program}x"], folder=True, flag="execute")
    yield Argument("gdn_parity --dump",
                   lambda path, folder: [parity, "--test=gating_a_log", f"--dump={path}"], writes=True, folder=True)
    yield Argument("gdn_server --port-file", lambda path, folder: [
        server_program, "--listen=127.0.0.1:0", "--backend=null", f"--port-file={path}", "--shared-memory-dir="],
                   writes=True, serves=True)
    for flag in ("config", "tokens-file", "principals", "principal-key-file", "disk-dir", "shared-memory-dir"):
        yield Argument(f"gdn_server --{flag}", listed if flag == "tokens-file" else serve(f"--{flag}=PATH"), serves=True,
                       folder=flag.endswith("dir"), flag=f"--{flag}")
    yield Argument("gdn_server --model", serve("--model=m=PATH"), serves=True)
    yield Argument("gdn_server --listen unix:", serve("--listen=unix:PATH"), serves=True)
    for flag, other in (("tls-cert", "tls-key"), ("tls-key", "tls-cert")):
        yield Argument(f"gdn_server --{flag}", serve(f"--{flag}=PATH", f"--{other}={golden}/config.json"), serves=True,
                       flag=f"--{other}")
    yield Argument("gdn_server --redis-password-file",
                   serve("--redis=127.0.0.1:1", "--redis-password-file=PATH"), serves=True, flag="redis")


def check(argument, only):
    """(how many kinds passed, what failed, why kinds were not tried)."""
    passed, failed, skipped = 0, [], {}
    for kind in KINDS:
        name = f"{argument.name}: {kind}"
        if only and not any(word in name for word in only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                argument.check(kind, folder)
                passed += 1
            except NotPermitted as error:
                skipped[kind] = str(error)
            except Failure as error:
                failed.append(f"{name}: {error}")
                print(failed[-1], flush=True)
            finally:
                for path, _, _ in os.walk(folder):
                    os.chmod(path, 0o755)
    return passed, failed, skipped


def main(server_program, gdnctl, bench, parity, golden, *only):
    with tempfile.TemporaryDirectory() as common:
        os.chmod(common, 0o755)
        server = Server(server_program, gdnctl, golden, common)
        try:
            for part, heads in ((".low", "0-1/4"), (".high", "2-3/4")):
                server.ctl("state", "slice", server.state, f"--heads={heads}", f"--out={server.state}{part}")
                os.chmod(server.state + part, 0o644)
            # Most of the time is spent in waiting for other ends of pipes.
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                results = list(pool.map(lambda argument: check(argument, only),
                                        arguments_of(server_program, gdnctl, bench, parity, golden, server)))
        finally:
            server.process.terminate()
            server.process.wait(PATIENCE)
    for kind, why in {kind: why for _, _, skipped in results for kind, why in skipped.items()}.items():
        print(f"not tried: {kind}: {why}")
    passed, failed = sum(result[0] for result in results), sum(len(result[1]) for result in results)
    print(f"{passed} ok, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
