#!/usr/bin/env python3
"""Fails where scripts/sbom.py does not tell of a system what dpkg and the copyright files say, or its --check lets a mistake pass.

  check_sbom.py ROOT
"""

import copy
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

STATUS = """Package: alpha
Status: install ok installed
Maintainer: Some Team <team@example.org>
Architecture: amd64
Source: alphabet (1:2.0-1)
Version: 1:2.0-1+b3
Description: one
 with a second line

Package: beta++
Status: install ok installed
Architecture: all
Version: 3~rc1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 9
"""
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: alphabet

Files: *
Copyright: somebody
License: GPL-2+ or Artistic

Files: src/x.c
License: Expat
 The text.

Files: src/y.c
License: house-rules, and BSD-3-clause
 The text.

License: GPL-2+
 The text, which is no file's.
"""
DECLARED = "(Artistic-1.0-Perl OR GPL-2.0-or-later) AND BSD-3-Clause AND LicenseRef-Debian-house-rules AND MIT"


def system(folder):
    root = pathlib.Path(folder)
    for path, text in (("etc/os-release", 'ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n'), ("var/lib/dpkg/status", STATUS),
                       ("usr/share/doc/alpha/copyright", COPYRIGHT), ("usr/share/doc/beta++/copyright", "Free text.\n"), ("prog", "x")):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def drop(sbom, *path):
    *parents, last = path
    for part in parents:
        sbom = sbom[part]
    del sbom[last]


def put(sbom, value, *path):
    *parents, last = path
    for part in parents:
        sbom = sbom[part]
    sbom[last] = value


# Packages 0 and 1 are the image and what is its own.
PLANTED = [
    (lambda s: put(s, "SPDX-2.2", "spdxVersion"), "spdxVersion is SPDX-2.2"),
    (lambda s: put(s, "yesterday", "creationInfo", "created"), "created is no time"),
    (lambda s: put(s, "a name", "documentNamespace"), "documentNamespace"),
    (lambda s: drop(s, "packages", 2, "versionInfo"), "alpha: has no versionInfo"),
    (lambda s: put(s, "SPDXRef-a_b", "packages", 2, "SPDXID"), "the id SPDXRef-a_b is none of SPDX's"),
    (lambda s: put(s, "GPL-2+", "packages", 2, "licenseDeclared"), "'GPL-2+' is no licence"),
    (lambda s: put(s, "MIT ISC", "packages", 2, "licenseDeclared"), "two licences without AND or OR"),
    (lambda s: put(s, "(MIT AND ISC", "packages", 2, "licenseDeclared"), "ends too early"),
    (lambda s: drop(s, "hasExtractedLicensingInfos"), "LicenseRef-Debian-house-rules' is no licence"),
    (lambda s: put(s, "pkg:deb/debian/alpha@2.0-1?arch=amd64", "packages", 2, "externalRefs", 0, "referenceLocator"), "another package's"),
    (lambda s: drop(s, "packages", 3, "externalRefs"), "has not one purl"),
    (lambda s: drop(s, "files", 0, "checksums", 0), "has not both checksums"),
    (lambda s: put(s, "SPDXRef-alpha-amd64", "packages", 3, "SPDXID"), "two things have the id"),
    (lambda s: put(s, "SPDXRef-none", "relationships", 1, "relatedSpdxElement"), "SPDXRef-none, which is not there"),
    (lambda s: drop(s, "relationships", 3), "is in no relationship"),
    (lambda s: put(s, "3~rc2", "packages", 3, "versionInfo"), "beta++ 3~rc1 is installed and not told of"),
]


def check_release(script, sbom, root):
    """A release has its files, and depends on those of the named packages that are installed."""
    out = root / "release.json"
    command = [sys.executable, script, "--root", root, "--name", "gdn-service", "--version", "1.0", "--file", root / "prog"]
    subprocess.run([*command, "--package", "alpha", "--package", "gone", "--out", out], check=True)
    made = json.loads(out.read_text(encoding="utf-8"))
    assert not list(sbom.check(made)), list(sbom.check(made))
    assert [p["name"] for p in made["packages"]] == ["gdn-service", "gdn-service", "alpha"], made["packages"]
    assert made["packages"][0]["primaryPackagePurpose"] == "INSTALL"
    assert [f["fileName"] for f in made["files"]] == ["./prog"], made["files"]
    verbs = [r["relationshipType"] for r in made["relationships"] if r["relatedSpdxElement"] == "SPDXRef-alpha-amd64"]
    assert verbs == ["DEPENDS_ON"], verbs
    refused = subprocess.run([*command, "--program", root / "prog", "--out", out], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--program is of an image" in refused.stderr, refused.stderr


def main(arguments):
    if len(arguments) != 1:
        print(__doc__.strip())
        return 2
    script = pathlib.Path(arguments[0]) / "scripts/sbom.py"
    spec = importlib.util.spec_from_file_location("sbom", script)
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    with tempfile.TemporaryDirectory() as folder:
        root = system(folder)
        command = [sys.executable, script, "--root", root, "--name", "image", "--version", "1.0", "--created", "2026-01-31T12:00:00Z",
                   "--program", root / "prog", "--out", root / "out.json"]
        subprocess.run(command, check=True)
        text = (root / "out.json").read_text(encoding="utf-8")
        subprocess.run(command, check=True)
        assert (root / "out.json").read_text(encoding="utf-8") == text, "two runs differ"
        subprocess.run([sys.executable, script, "--check", root / "out.json", "--root", root], check=True)
        made = json.loads(text)
        packages = {p["name"]: p for p in made["packages"]}
        assert list(packages) == ["image", "gdn-service", "alpha", "beta++"], list(packages)
        assert packages["alpha"]["licenseDeclared"] == DECLARED, packages["alpha"]["licenseDeclared"]
        assert packages["beta++"]["licenseDeclared"] == "NOASSERTION"
        assert packages["alpha"]["sourceInfo"] == "built from the source package alphabet 1:2.0-1"
        assert packages["alpha"]["originator"] == "Organization: Some Team (team@example.org)"
        purls = [packages[name]["externalRefs"][0]["referenceLocator"] for name in ("alpha", "beta++")]
        assert purls == ["pkg:deb/debian/alpha@1%3A2.0-1%2Bb3?arch=amd64&distro=debian-12",
                         "pkg:deb/debian/beta%2B%2B@3~rc1?arch=all&distro=debian-12"], purls
        missed = 0
        for plant, report in PLANTED:
            planted = copy.deepcopy(made)
            plant(planted)
            errors = list(sbom.check(planted, root))
            if not any(report in error for error in errors):
                print(f"not reported: {report}: {errors}")
                missed += 1
        print(f"{len(PLANTED) - missed} of {len(PLANTED)} planted mistakes reported")
        check_release(script, sbom, root)
        subprocess.run([sys.executable, script, "--root", "/", "--name", "here", "--version", "1", "--out", root / "here.json"], check=True)
        subprocess.run([sys.executable, script, "--check", root / "here.json", "--root", "/"], check=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
