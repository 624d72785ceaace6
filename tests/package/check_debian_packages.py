#!/usr/bin/env python3
"""Fails where the Debian packages do not hold what they should, or the unit is not what systemd takes for a confined service.

  check_debian_packages.py BUILD_DIR    packs what BUILD_DIR has built, and looks at it; 77 where a tool is missing
  check_debian_packages.py PACKAGE...   looks at packages that are there
  check_debian_packages.py --self-test  plants a fault of each kind, and sees each reported
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

RUNTIME = "libgdn-client0.1"
MODES = {  # package: path: mode; {} is a file whose version is part of its name
    "gdn-server": {"/usr/bin/gdn_server": "-rwxr-xr-x", "/usr/lib/systemd/system/gdn-server.service": "-rw-r--r--",
                   "/usr/lib/sysusers.d/gdn-server.conf": "-rw-r--r--", "/etc/gdn/server.yaml": "-rw-r--r--",
                   "/usr/share/gdn-server/gpu.conf": "-rw-r--r--", "/etc/gdn/": "drwxr-xr-x",
                   "/usr/share/man/man8/gdn_server.8": "-rw-r--r--",
                   **{f"/usr/share/doc/gdn-server/{page}.md": "-rw-r--r--" for page in ("install", "deploy", "configure", "troubleshoot")}},
    "gdn-tools": {"/usr/bin/gdnctl": "-rwxr-xr-x", "/usr/bin/gdn_bench": "-rwxr-xr-x", "/usr/bin/gdn_parity": "-rwxr-xr-x",
                  "/usr/share/bash-completion/completions/gdnctl": "-rw-r--r--", "/usr/share/zsh/vendor-completions/_gdnctl": "-rw-r--r--",
                  "/usr/share/fish/vendor_completions.d/gdnctl.fish": "-rw-r--r--",
                  **{f"/usr/share/man/man1/{name}.1": "-rw-r--r--" for name in ("gdnctl", "gdn_bench", "gdn_parity")},
                  **{f"/usr/share/gdn-service/try-model/{name}": "-rw-r--r--"
                     for name in ("config.json", "model.safetensors", "io.safetensors")}},
    RUNTIME: {"/usr/lib/libgdn_client.so.0.1": "lrwxrwxrwx"},
    "libgdn-client-dev": {"/usr/lib/libgdn_client.so": "lrwxrwxrwx", "/usr/include/gdn-client/gdn/client.h": "-rw-r--r--",
                          "/usr/lib/cmake/gdn/gdnConfig.cmake": "-rw-r--r--", "/usr/lib/pkgconfig/gdn-client.pc": "-rw-r--r--"},
}
DEPENDS = {"gdn-server": ["libgrpc++1", "libc6", "systemd | systemd-standalone-sysusers", "procps"], "gdn-tools": ["libgrpc++1"],
           RUNTIME: ["libgrpc++1"], "libgdn-client-dev": [f"{RUNTIME} (=", "libgrpc++-dev", "libprotobuf-dev", "libabsl-dev"]}
CONTROL = {"gdn-server": {"conffiles": 0o644, "postinst": 0o755, "prerm": 0o755, "postrm": 0o755}, RUNTIME: {"shlibs": 0o644}}
PLACES = re.compile(r"/(usr/(bin|lib|include|share)/|etc/gdn/|(usr/|etc/)?$|usr/(bin|lib|include|share)/?$)")
EXPOSURE_LIMIT = 20  # tenths, of systemd-analyze's 100


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


def faults(packages):
    """packages: name -> {"fields": {}, "files": {path: (mode, owner)}, "control": {name: (mode, text)}}."""
    for name in sorted(set(MODES) - set(packages)):
        yield f"{name} was not made"
    for name, package in sorted(packages.items()):
        fields, files, control = package["fields"], package["files"], package["control"]
        for field in ("Version", "Architecture", "Maintainer", "Section", "Installed-Size"):
            if not fields.get(field):
                yield f"{name} has no field {field}"
        if "\n" not in fields.get("Description", ""):
            yield f"{name} has no description of several lines"
        depends = [one.strip() for one in fields.get("Depends", "").split(",")]
        for wanted in DEPENDS.get(name, []):
            if not any(one.startswith(wanted) for one in depends):
                yield f"{name} does not depend on {wanted}"
        for path, mode in {**MODES.get(name, {}), f"/usr/share/doc/{name}/copyright": "-rw-r--r--"}.items():
            if path not in files:
                yield f"{name} lacks {path}"
            elif files[path][0] != mode:
                yield f"{name}: {path} has the mode {files[path][0]}, expected {mode}"
        for path, (mode, owner) in files.items():
            if owner != "root/root" or mode[3] in "sS" or (mode[8] == "w" and mode[0] != "l"):
                yield f"{name}: {path} is {mode} {owner}"
            if not PLACES.match(path):
                yield f"{name}: {path} is no place for a package's files"
        for file, mode in CONTROL.get(name, {}).items():
            if control.get(file, (None,))[0] != mode:
                yield f"{name}: the control file {file} is not there with the mode {mode:o}"
        configuration = [path for path in files if path.startswith("/etc/") and not path.endswith("/")]
        if sorted(configuration) != sorted(control.get("conffiles", (0, ""))[1].split()):
            yield f"{name}: conffiles are not its files in /etc"


def read_package(path, work):
    fields = run("dpkg-deb", "-f", path).stdout
    package = {"fields": dict(re.findall(r"^([\w-]+): ((?:.|\n )*)", fields, re.M)), "files": {}, "control": {}}
    for line in run("dpkg-deb", "-c", path).stdout.splitlines():
        mode, owner, _, _, _, file = line.split(maxsplit=5)
        package["files"][file.split(" -> ")[0].removeprefix(".")] = (mode, owner)
    folder = os.path.join(work, package["fields"]["Package"])
    run("dpkg-deb", "-R", path, folder)
    for name in os.listdir(os.path.join(folder, "DEBIAN")):
        file = os.path.join(folder, "DEBIAN", name)
        with open(file, encoding="utf-8") as opened:
            package["control"][name] = (os.stat(file).st_mode & 0o7777, opened.read())
    return package


def unit_faults(unit, program):
    """What is wrong with the unit; `program` stands in for the one that is not installed here."""
    with open(unit, encoding="utf-8") as file:
        text = file.read()
    # The flags' defaults plus 10 s are what the drain may take; the unit has to wait longer.
    stop = re.search(r"^TimeoutStopSec=(\d+)min$", text, re.M)
    if not stop or int(stop.group(1)) * 60 <= 30 + 300 + 10:
        yield "TimeoutStopSec is shorter than a drain may take"
    if not shutil.which("systemd-analyze"):
        print("left out: systemd-analyze is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "gdn-server.service")
        with open(copy, "w", encoding="utf-8") as file:
            file.write(text.replace("/usr/bin/gdn_server", program))
        verified = run("systemd-analyze", "verify", "--man=no", copy, check=False)
        if verified.returncode != 0 or "gdn-server" in verified.stderr:
            yield f"systemd-analyze verify: {verified.stderr.strip()}"
        security = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_LIMIT}", copy, check=False)
        said = re.search(r"Overall exposure level.*: ([\d.]+)", security.stdout)
        print(f"systemd-analyze security: {said.group(1) if said else 'no figure'}")
        if security.returncode != 0:
            yield f"systemd-analyze security: above {EXPOSURE_LIMIT / 10}, or {security.stderr.strip() or 'no error'}"


def reader_faults(tools, pages):
    """What shells say of the completions, and man of its pages; programs that are not installed are not asked."""
    share = os.path.join(tools, "usr/share")
    for shell, path in (("bash", "bash-completion/completions/gdnctl"), ("zsh", "zsh/vendor-completions/_gdnctl"),
                        ("fish", "fish/vendor_completions.d/gdnctl.fish")):
        if shutil.which(shell) and os.path.exists(os.path.join(share, path)):
            read = run(shell, "-n", os.path.join(share, path), check=False)
            if read.returncode != 0 or read.stderr:
                yield f"{shell} -n {path}: {read.stderr.strip() or read.returncode}"
    for page in pages if shutil.which("man") else ():
        read = run("man", "--warnings", "-E", "UTF-8", "-l", page, check=False)
        if read.returncode != 0 or read.stderr or "NAME" not in read.stdout:
            yield f"man {os.path.basename(page)}: {read.stderr.strip() or 'shows no NAME'}"


def try_faults(tools, program):
    """Whether `gdnctl try` finds its model as installed, and passes."""
    tried = run(os.path.join(tools, "usr/bin/gdnctl"), "try", f"--server={program}", check=False)
    if tried.returncode != 0:
        yield f"gdnctl try: {(tried.stdout + tried.stderr).strip()}"


def check(paths):
    with tempfile.TemporaryDirectory() as work:
        packages = {}
        for path in paths:
            package = read_package(path, work)
            packages[package["fields"]["Package"]] = package
        found = list(faults(packages))
        server = os.path.join(work, "gdn-server")
        if os.path.isdir(server):
            program = os.path.join(server, "usr/bin/gdn_server")
            found += unit_faults(os.path.join(server, "usr/lib/systemd/system/gdn-server.service"), program)
            settings = run(program, "--config", os.path.join(server, "etc/gdn/server.yaml"), "--check-config", check=False)
            if settings.returncode != 0:
                found.append(f"the server refuses server.yaml: {settings.stderr.strip()}")
            tools = os.path.join(work, "gdn-tools")
            found += reader_faults(tools, sorted(glob.glob(os.path.join(work, "*/usr/share/man/man?/*"))))
            if os.path.isdir(tools):
                found += try_faults(tools, program)
    for fault in found:
        print(f"FAULT {fault}")
    print(f"{len(packages)} packages, {len(found)} faults")
    return 1 if found else 0


def pack_and_check(build):
    for tool in ("dpkg-deb", "dpkg-shlibdeps", "file"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is not installed")
            return 77
    with tempfile.TemporaryDirectory() as work:
        packed = run("cpack", "--config", os.path.join(build, "CPackConfig.cmake"), "-B", work, check=False)
        if packed.returncode != 0:
            print(packed.stdout, packed.stderr)
            return 1
        return check(sorted(glob.glob(os.path.join(work, "*.deb"))))


def good_packages():
    for name, modes in MODES.items():
        files = {path: (mode, "root/root") for path, mode in {**modes, f"/usr/share/doc/{name}/copyright": "-rw-r--r--"}.items()}
        control = {file: (mode, "/etc/gdn/server.yaml" if file == "conffiles" else "") for file, mode in CONTROL.get(name, {}).items()}
        fields = {"Version": "1", "Architecture": "amd64", "Maintainer": "m", "Section": "net", "Installed-Size": "1",
                  "Description": "one\n two", "Depends": ", ".join(DEPENDS[name])}
        yield name, {"fields": fields, "files": files, "control": control}


def self_test():
    def plant(words, change):
        packages = dict(good_packages())
        change(packages)
        found = list(faults(packages))
        assert len(found) == 1 and words in found[0], (words, found)

    assert not list(faults(dict(good_packages())))
    plant("gdn-tools was not made", lambda p: p.pop("gdn-tools"))
    plant("no field Maintainer", lambda p: p["gdn-server"]["fields"].pop("Maintainer"))
    plant("no description", lambda p: p["gdn-server"]["fields"].update(Description="one"))
    plant("does not depend on libgrpc++1", lambda p: p["gdn-tools"]["fields"].update(Depends="libc6"))
    plant("lacks /usr/bin/gdnctl", lambda p: p["gdn-tools"]["files"].pop("/usr/bin/gdnctl"))
    plant("expected -rwxr-xr-x", lambda p: p["gdn-tools"]["files"].update({"/usr/bin/gdnctl": ("-rw-r--r--", "root/root")}))
    plant("is -rwxr-xr-x user/root", lambda p: p["gdn-tools"]["files"].update({"/usr/bin/x": ("-rwxr-xr-x", "user/root")}))
    plant("is -rwsr-xr-x", lambda p: p["gdn-tools"]["files"].update({"/usr/bin/x": ("-rwsr-xr-x", "root/root")}))
    plant("is no place", lambda p: p["gdn-tools"]["files"].update({"/usr/local/bin/x": ("-rwxr-xr-x", "root/root")}))
    plant("control file postinst", lambda p: p["gdn-server"]["control"].update(postinst=(0o644, "")))
    plant("conffiles are not", lambda p: p["gdn-server"]["control"].update(conffiles=(0o644, "")))
    unit = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/debian/gdn-server.service")
    with open(unit, encoding="utf-8") as file:
        text = file.read()
    units = [(r"^TimeoutStopSec=.*", "TimeoutStopSec=1min", "TimeoutStopSec")]
    if shutil.which("systemd-analyze"):
        units += [(r"^CapabilityBoundingSet=.*", "", "above"), (r"^ExecStart=.*", "ExecStart=/nowhere", "verify"),
                  (r"^PrivateTmp=.*", "PrivateTmpp=yes", "verify")]
    for pattern, instead, words in units:
        with tempfile.TemporaryDirectory() as folder:
            planted = os.path.join(folder, "gdn-server.service")
            with open(planted, "w", encoding="utf-8") as file:
                file.write(re.sub(pattern, instead, text, flags=re.M))
            found = list(unit_faults(planted, sys.executable))
            assert any(words in fault for fault in found), (instead, found)
    assert not list(unit_faults(unit, sys.executable))
    print("check_debian_packages.py: every planted fault is reported")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(pack_and_check(sys.argv[1]) if os.path.isdir(sys.argv[1]) else check(sys.argv[1:]))
