"""Runs a page's code blocks in a temporary folder that looks like the root of a clone."""

import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A line that starts a server. A page that puts a server in the background with & stops it itself.
SERVER = re.compile(r"^\s*(?:build/[\w-]+/bin/)?gdn_server(?:\s|$)")
NO_SERVER = re.compile(r"--(?:check-config|help|version)\b|[&|]\s*(?:#.*)?$")
PORT = re.compile(r"(?<=:)(?:50061|9464)\b|(?<=(?:127\.0\.0\.1|localhost):)[1-9]\d{3,4}\b")
DEFAULT_PORT = 50061
# Folders of a machine: models, the programs of a virtual environment, and folders to write to.
FOLDER = re.compile(r"(?<![\w/.$-])(?:(?P<gguf>/models/[\w./-]+\.gguf)|(?P<model>/models/[\w.-]+)"
                    r"|(?P<python>(?:~|/tmp)/gdn-[a-z]+/bin/)|/(?:tmp|var/lib/gdn|run/gdn)\b)")

# gdnctl's default target is the default port, which may be in use.
GDNCTL = """#!/bin/sh
case " $* " in *" --target"* | *" --help "* | " help "* | " completion "* | " try "*) exec "{program}" "$@" ;; esac
exec "{program}" "$@" --target=127.0.0.1:{port}
"""

# Executes the files whose names it reads, all in one namespace.
INTERPRETER = """
import sys, traceback
names = {"__name__": "__main__"}
with open(3, "w") as control:
    for line in sys.stdin:
        try:
            with open(line.strip(), encoding="utf-8") as file:
                exec(compile(file.read(), line.strip(), "exec"), names)
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        print("done", file=control, flush=True)
"""


class Failure(Exception):
    """A block that failed."""


class Interpreter:
    """A process that reads names of files, runs each, and then writes "done" to file descriptor 3."""

    def __init__(self, command, page):
        reader, writer = os.pipe()
        # pass_fds keeps numbers, so a shell moves the pipe's end to 3.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3>&{writer} {writer}>&-' if writer != 3 else 'exec "$@"', "bash", *command],
            stdin=subprocess.PIPE, stdout=page.log, stderr=subprocess.STDOUT, cwd=page.clone, env=page.environment,
            pass_fds=[writer], start_new_session=True)
        os.close(writer)
        self.reader, self.timed_out = reader, False

    def run(self, path, deadline):
        try:
            self.process.stdin.write((path + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return "the interpreter had ended"
        while True:
            readable, _, _ = select.select([self.reader], [], [], 0.05)
            if readable and b"done" in os.read(self.reader, 4096):
                return None
            if self.process.poll() is not None:
                return f"it ended with code {self.process.returncode}"
            if time.monotonic() > deadline:
                self.timed_out = True
                return "the page's time ran out"

    def end(self):
        """Ends the process and all that it started."""
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self.process.wait(timeout=0 if self.timed_out else 12)
        except subprocess.TimeoutExpired:
            pass
        for signal_number, seconds in ((signal.SIGTERM, 2), (signal.SIGKILL, 0)):
            try:
                os.killpg(self.process.pid, signal_number)  # its own session, so the group is what it started
            except ProcessLookupError:
                break
            time.sleep(seconds)
        self.process.wait()
        os.close(self.reader)


def free_ports(wanted):
    """Ports below the range that the system gives out, so that tests with port 0 do not take them."""
    ports = []
    while len(ports) < wanted:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def start_servers(lines):
    """Puts gdn_page_start in front of each line that starts a server."""
    result, continued = [], False
    for number, line in enumerate(lines):
        whole = line
        for following in lines[number + 1:]:
            if not whole.endswith("\\"):
                break
            whole = whole[:-1] + following
        starts = not continued and SERVER.match(line) and not NO_SERVER.search(whole)
        result.append("gdn_page_start " + line.lstrip() if starts else line)
        continued = line.endswith("\\")
    return result


class PageRun:
    """A temporary folder with the interpreters of one page."""

    def __init__(self, root, build_dir, python, page, limit):
        self.root, self.build_dir, self.python, self.page = root, build_dir, python, page
        self.work = tempfile.mkdtemp(prefix="gdn-page-")
        self.clone = os.path.join(self.work, "clone")
        self.ports = {}
        self.port = self.port_for(DEFAULT_PORT)
        self.deadline = time.monotonic() + limit
        self.interpreters = {}
        self.log = open(os.path.join(self.work, "output"), "wb")
        for folder in ("home", "tmp", "var/lib/gdn", "run/gdn", "blocks"):
            os.makedirs(os.path.join(self.work, folder))
        self.link_clone()
        inherited = {name: value for name, value in os.environ.items()
                     if not name.lower().endswith("_proxy") and not name.startswith(("GDN_", "PYTHON"))}
        self.environment = {
            **inherited, "HOME": os.path.join(self.work, "home"), "TMPDIR": os.path.join(self.work, "tmp"),
            "PATH": os.pathsep.join([os.path.join(self.clone, "build/cpu/bin"), os.path.dirname(python), os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1", "GDN_PAGE_WORK": self.work, "GDN_PAGE_PORT": str(self.port)}

    def link_clone(self):
        """Folders are made, files are links, so that new files stay in the temporary folder."""
        for folder, subfolders, names in os.walk(self.root):
            top = os.path.samefile(folder, self.root)
            skipped = {"__pycache__", "build"} if top else {"__pycache__"}
            subfolders[:] = [f for f in subfolders if not f.startswith(".") and f not in skipped]
            made = os.path.join(self.clone, os.path.relpath(folder, self.root))
            os.makedirs(made, exist_ok=True)
            for name in names:
                os.symlink(os.path.join(folder, name), os.path.join(made, name))
        programs = os.path.join(self.clone, "build/cpu/bin")
        os.makedirs(programs)
        for name in os.listdir(self.build_dir):
            if name != "bin":
                os.symlink(os.path.join(self.build_dir, name), os.path.join(self.clone, "build/cpu", name))
        for name in os.listdir(os.path.join(self.build_dir, "bin")):
            if name != "gdnctl":
                os.symlink(os.path.join(self.build_dir, "bin", name), os.path.join(programs, name))
        with open(os.path.join(programs, "gdnctl"), "w", encoding="utf-8") as file:
            file.write(GDNCTL.format(program=os.path.join(self.build_dir, "bin/gdnctl"), port=self.port))
        os.chmod(os.path.join(programs, "gdnctl"), 0o755)

    def port_for(self, port):
        if port not in self.ports:
            self.ports[port] = free_ports(len(self.ports) + 1)[-1]
        return self.ports[port]

    def substitute(self, text):
        """The block with this run's ports and folders, and a small model."""
        def folder(match):
            if match.group("gguf"):
                return f"{self.clone}/tests/golden/gguf_qwen3next_1/q8_0.gguf"
            if match.group("model"):
                return f"{self.clone}/tests/golden/qwen3_next_5"
            return os.path.dirname(self.python) + "/" if match.group("python") else self.work + match.group()

        text = FOLDER.sub(folder, text)
        return PORT.sub(lambda match: str(self.port_for(int(match.group()))), text)

    def write(self, block, lines):
        """The block in a file whose line numbers are those of the page."""
        path = os.path.join(self.work, "blocks", os.path.basename(self.page))
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n" * (block.line - 1) + self.substitute("\n".join(lines)) + "\n")
        return path

    def run(self, block):
        """Raises Failure if the block fails."""
        fault = getattr(self, "run_" + block.language)(block)
        if fault:
            raise Failure(f"{self.page}:{block.line}: this {block.language} block failed: {fault}")

    def interpreter(self, name, command):
        if name not in self.interpreters:
            self.interpreters[name] = Interpreter(command, self)
        return self.interpreters[name]

    def run_bash(self, block):
        loop = 'source "$0"; while IFS= read -r gdn_page_block; do source "${gdn_page_block}" </dev/null; echo done >&3; done'
        shell = self.interpreter("bash", ["bash", "--norc", "--noprofile", "-c", loop, os.path.join(HERE, "page_shell.sh")])
        return shell.run(self.write(block, start_servers(block.lines)), self.deadline)

    def run_python(self, block):
        interpreter = self.interpreter("python", [self.python, "-u", "-c", INTERPRETER])
        return interpreter.run(self.write(block, block.lines), self.deadline)

    def run_cpp(self, block):
        return self.compile(block, ["-x", "c++", "-std=c++20"], "CXX", "c++", "gdn-client")

    def run_c(self, block):
        return self.compile(block, ["-x", "c", "-std=c11", "-Wall", "-Werror"], "CC", "cc", "gdn")

    def run_json(self, block):
        try:
            json.loads("\n".join(block.lines))
        except ValueError as error:
            return str(error)
        return None

    def run_yaml(self, block):
        parse = "import sys, yaml; list(yaml.safe_load_all(open(sys.argv[1], encoding='utf-8')))"
        return self.command([self.python, "-c", parse, self.write(block, block.lines)])

    def command(self, command, log=None, **changes):
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log or self.log, stderr=subprocess.STDOUT,
                                  cwd=self.clone, env={**self.environment, **changes}, check=False,
                                  timeout=max(1, self.deadline - time.monotonic())).returncode
        except subprocess.TimeoutExpired:
            return "the page's time ran out"
        return f"{command[0]} ended with code {code}" if code else None

    def compile(self, block, flags, variable, compiler, package):
        """Checks a whole source file against the headers that the packages install."""
        installed = os.path.join(self.work, "installed")
        if not os.path.exists(installed):
            for component in ("client-dev", "inprocess-dev"):
                fault = self.command(["cmake", "--install", self.build_dir, "--prefix", installed, "--component", component],
                                     log=subprocess.DEVNULL)
                if fault:
                    return fault
        script = '"$@" $(pkg-config --cflags "$0")'
        return self.command(["bash", "-c", script, package, os.environ.get(variable, compiler), *flags, "-fsyntax-only",
                             self.write(block, block.lines)], PKG_CONFIG_PATH=os.path.join(installed, "lib/pkgconfig"))

    def output(self):
        """The last lines that the blocks and the server wrote."""
        self.log.flush()
        texts = []
        for name, most in (("output", 30), ("server.log", 10)):
            path = os.path.join(self.work, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(f"-- the end of {name}:\n" + "".join(file.readlines()[-most:]))
        return "\n".join(texts)

    def end(self):
        """Ends all processes and removes the folder. Clients end before the server that they call."""
        for name in sorted(self.interpreters, key=lambda name: name == "bash"):
            self.interpreters[name].end()
        self.log.close()
        shutil.rmtree(self.work)
