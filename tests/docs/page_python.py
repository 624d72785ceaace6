"""The virtual environment that pages' Python blocks run in, with both packages of this tree."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

PACKAGES = ("client/python", "capi/python")
# Pages also read state files and YAML, and call the server's reflection service.
REQUIREMENTS = ("safetensors", "xxhash", "pyyaml", "grpcio-reflection")
SOURCES = PACKAGES + ("proto",)


class NoEnvironment(Exception):
    """Python's venv is not installed, or pip finds no packages."""


def digest_of(root):
    digest = hashlib.sha256(repr(REQUIREMENTS).encode())
    for source in SOURCES:
        for folder, subfolders, names in os.walk(os.path.join(root, source)):
            subfolders[:] = sorted(set(subfolders) - {"build", "tests", "__pycache__"})
            for name in sorted(name for name in names if not name.endswith(".md")):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(name.encode() + file.read())
    return digest.hexdigest()


def install(root, environment):
    if not os.path.exists(os.path.join(environment, "bin/pip")):
        if subprocess.run([sys.executable, "-m", "venv", environment], stdout=subprocess.DEVNULL, check=False).returncode:
            raise NoEnvironment("python3-venv is not installed")
    with tempfile.TemporaryDirectory() as copy:  # a build of a package leaves files beside it
        for source in SOURCES:
            shutil.copytree(os.path.join(root, source), os.path.join(copy, source),
                            ignore=shutil.ignore_patterns("build", "__pycache__", "*.egg-info"))
        command = [os.path.join(environment, "bin/pip"), "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS,
                   *(os.path.join(copy, package) for package in PACKAGES)]
        if subprocess.run(command, check=False).returncode:
            raise NoEnvironment("pip installs nothing here")


def python_of(root, build_dir):
    """The environment's interpreter. It is made once for the same sources, by one process at a time."""
    environment = os.path.join(build_dir, "venv-pages")
    with open(environment + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, digest = os.path.join(environment, "installed"), digest_of(root)
        if not os.path.exists(stamp) or open(stamp, encoding="utf-8").read() != digest:
            install(root, environment)
            with open(stamp, "w", encoding="utf-8") as file:
                file.write(digest)
    return os.path.join(environment, "bin/python")
