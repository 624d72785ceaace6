#!/usr/bin/env python3
"""Fails where .dockerignore keeps from the images' build what it needs: a folder that CMake adds, a source, a file that is copied.

  check_build_context.py ROOT        configure what .dockerignore lets in, as deploy/build_in_image.sh does
  check_build_context.py --self-test ROOT    keep one needed thing out at a time, and see each reported

Nothing is compiled: ninja is asked what it would do, for which every source has to be there.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAMS = ("gdn_server", "gdnctl", "gdn_parity", "gdn_bench")


def allowed(lines):
    """The paths that an allow-list names: "*", then "!PATH" for each."""
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if rules[0] != "*" or any(rule[0] != "!" and rule != "**/__pycache__" for rule in rules[1:]):
        raise SystemExit(".dockerignore is not written the way this script reads it")
    return [rule[1:] for rule in rules[1:] if rule[0] == "!"]


def named(root):
    """What the Dockerfile copies by name or runs, and what the scripts that it runs call."""
    text = (root / "deploy/Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        yield from (path for path in line.split()[:-1] if path != ".")
    for script in re.findall(r"^RUN ((?:deploy|scripts)/[\w.-]+)", text, re.MULTILINE):
        yield script
        yield from re.findall(r"\$\{source_root\}/([\w./-]+)", (root / script).read_text(encoding="utf-8"))


def check(root, paths):
    """What is wrong, or None."""
    with tempfile.TemporaryDirectory() as folder:
        context = pathlib.Path(folder)
        for path in paths:
            source, target = root / path, context / path
            if not source.exists():
                return f".dockerignore lets in {path}, which is not there"
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
            else:
                shutil.copy(source, target)
        missing = sorted({path for path in named(root) if not (context / path).exists()})
        if missing:
            return f"the Dockerfile needs {missing}, which .dockerignore keeps out"
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "DESTDIR")}
        for command in (["cmake", "--preset", "cpu", "-DGDN_BUILD_TESTS=OFF"], ["ninja", "-C", "build/cpu", "-n", *PROGRAMS]):
            done = subprocess.run(command, cwd=context, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"{command[0]}: " + "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        if not (context / "deploy/build_in_image.sh").stat().st_mode & 0o100:
            return "deploy/build_in_image.sh cannot be run"
    return None


def self_test(root, paths):
    missed = 0
    for path in ("capi", "scripts/sbom.py", "deploy/entrypoint.sh", "deploy/sbom_of_image.sh"):
        wrong = check(root, [p for p in paths if p != path])
        print(f"without {path}: {(wrong or 'nothing is reported').splitlines()[-1]}")
        missed += wrong is None
    return 1 if missed else 0


def main(arguments):
    planted = arguments[:1] == ["--self-test"]
    if len(arguments) != 1 + planted:
        print(__doc__.strip())
        return 2
    root = pathlib.Path(arguments[-1]).resolve()
    paths = allowed((root / ".dockerignore").read_text(encoding="utf-8").splitlines())
    if planted:
        return self_test(root, paths)
    wrong = check(root, paths)
    print(wrong or "the build context has what the programs are made of")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
