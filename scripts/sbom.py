#!/usr/bin/env python3
"""A software bill of materials of an image or of a release: SPDX 2.3, as JSON, from what dpkg knows.

  sbom.py --root DIR --name NAME --version VERSION [--created TIME] [--program FILE]... --out FILE
  sbom.py --root DIR --name NAME --version VERSION [--created TIME] --file FILE... [--package NAME]... --out FILE
  sbom.py --check FILE [--root DIR]

--root is a system, or the parts of one: etc/os-release, var/lib/dpkg/status, usr/share/doc. Each installed package is told with name,
version, maker, source, purl and, where its copyright file is machine-readable (DEP 5), licences: the declared ones of all its files. A
name that SPDX does not have becomes a LicenseRef. NOASSERTION stands where the file is free text. --program: what is in the image
beside packages, with checksums. Two runs over one system with one --created write the same bytes.

--file: a file of a release, such as a Debian package or a wheel. --package: a package that the release depends on; the document has
those of them that are installed under --root, in the versions there.

--check says what is wrong with such a file (form, references, licences, purls), and with --root whether it has the packages that
are there.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import re
import sys
import urllib.parse
import uuid

# DEP 5's short names, and those that Debian's packages use beside them.
SPDX = {
    "Apache-2": "Apache-2.0", "Apache-2.0": "Apache-2.0", "Artistic": "Artistic-1.0-Perl", "Artistic-2": "Artistic-2.0",
    "BSD-2-clause": "BSD-2-Clause", "BSD-2-Clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause", "BSD-3-Clause": "BSD-3-Clause",
    "BSD-4-clause": "BSD-4-Clause", "BSL-1.0": "BSL-1.0", "CC0": "CC0-1.0", "CC0-1.0": "CC0-1.0", "Expat": "MIT", "MIT": "MIT",
    "FSFAP": "FSFAP", "GFDL-1.3": "GFDL-1.3-only", "GFDL-1.3+": "GFDL-1.3-or-later", "GFDL-1.2+": "GFDL-1.2-or-later",
    "ISC": "ISC", "MPL-1.1": "MPL-1.1", "MPL-2.0": "MPL-2.0", "NCSA": "NCSA", "OFL-1.1": "OFL-1.1", "OpenSSL": "OpenSSL",
    "Python-2.0": "Python-2.0", "W3C": "W3C", "X11": "X11", "Zlib": "Zlib", "zlib": "Zlib", "curl": "curl", "Unicode": "Unicode-DFS-2016",
}
for family in ("GPL", "LGPL", "AGPL"):
    for number in ("1", "2", "2.1", "3"):
        long = number if "." in number else f"{number}.0"
        for short in {number, long}:
            SPDX[f"{family}-{short}"] = f"{family}-{long}-only"
            SPDX[f"{family}-{short}+"] = f"{family}-{long}-or-later"
REF = "LicenseRef-Debian-"
IMAGE, OWN = "SPDXRef-Image", "SPDXRef-gdn-service"  # of which no package of the distribution is
ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
PURL = re.compile(r"pkg:deb/[a-z]+/[a-z0-9][a-z0-9+.%A-F-]+@[^@?\s]+\?arch=[a-z0-9]+(&distro=[a-z0-9.-]+)?")


def paragraphs(text):
    """Of a file in Debian's control format: a dictionary each; continuation lines keep their line ends."""
    for block in re.split(r"\n\s*\n", text):
        fields, name = {}, None
        for line in block.splitlines():
            if line[:1] in " \t":
                if name:
                    fields[name] += "\n" + line.strip()
            elif not line.startswith("#") and ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields:
            yield fields


def installed(root):
    """What dpkg has installed, by name and architecture."""
    text = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    found = [p for p in paragraphs(text) if p.get("status", "").endswith(" installed")]
    return sorted(found, key=lambda p: (p["package"], p.get("architecture", "")))


def distribution(root):
    text = (root / "etc/os-release").read_text(encoding="utf-8")
    values = {name: value.strip('"') for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)}
    return values["ID"], values.get("VERSION_ID", ""), values.get("NAME", values["ID"])


def reference(name):
    return REF + re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")


def terms_of(short, references):
    """A DEP 5 license name such as "GPL-2+ or Artistic, and Expat" as SPDX terms that all hold; unknown names are added to references."""
    alternatives = set()
    for alternative in re.split(r",?\s+or\s+", short.strip()):
        terms = set()
        for term in filter(None, re.split(r",?\s+and\s+|,\s*", alternative)):
            if term not in SPDX:
                references[reference(term)] = term
            terms.add(SPDX.get(term) or reference(term))
        if terms:
            alternatives.add(frozenset(terms))
    if len(alternatives) < 2:
        return set().union(*alternatives)
    joined = [" AND ".join(sorted(alternative)) for alternative in alternatives]
    return {"(" + " OR ".join(sorted(f"({text})" if " AND " in text else text for text in joined)) + ")"}


def licenses(root, package, references):
    """The licences that its copyright file declares for its files, or NOASSERTION."""
    path = root / "usr/share/doc" / package / "copyright"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "NOASSERTION"
    parts = list(paragraphs(text))
    if not parts or "copyright-format" not in parts[0].get("format", "") and "dep.debian.net" not in parts[0].get("format", ""):
        return "NOASSERTION"
    named = {p["license"].splitlines()[0].strip() for p in parts if "files" in p and p.get("license", "").strip()}
    return " AND ".join(sorted(set().union(*(terms_of(name, references) for name in named)))) or "NOASSERTION"


def package_entry(root, item, system, references):
    name, version, architecture = item["package"], item["version"], item.get("architecture", "all")
    source, _, source_version = item.get("source", name).partition(" ")
    person = re.fullmatch(r"(.*?)\s*<(.+)>", item.get("maintainer", ""))
    quoted = urllib.parse.quote(version, safe="")
    purl = f"pkg:deb/{system[0]}/{urllib.parse.quote(name, safe='')}@{quoted}?arch={architecture}"
    purl += f"&distro={system[0]}-{system[1]}".rstrip("-")
    entry = {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name.replace('+', 'plus')}-{architecture}"),
        "name": name,
        "versionInfo": version,
        "supplier": f"Organization: {system[2]}",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "sourceInfo": f"built from the source package {source} {source_version.strip('()') or version}",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licenses(root, name, references),
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }
    if person:
        entry["originator"] = f"Organization: {person.group(1)} ({person.group(2)})"
    return entry


def file_entry(path, folder):
    content = path.read_bytes()
    return {"SPDXID": f"SPDXRef-File-{re.sub(r'[^A-Za-z0-9.-]', '-', path.name)}", "fileName": f"./{folder}{path.name}",
            "checksums": [{"algorithm": a, "checksumValue": hashlib.new(a.lower(), content).hexdigest()} for a in ("SHA1", "SHA256")],
            "licenseConcluded": "Apache-2.0", "licenseInfoInFiles": ["Apache-2.0"], "copyrightText": "NOASSERTION"}


def own_entry(version, files):
    """The files of the project's own, as SPDX sums up files."""
    sums = sorted(c["checksumValue"] for file in files for c in file["checksums"] if c["algorithm"] == "SHA1")
    return {"SPDXID": OWN, "name": "gdn-service", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
            "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()},
            "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "licenseInfoFromFiles": ["Apache-2.0"],
            "copyrightText": "NOASSERTION"}


def relationship(subject, verb, entry):
    return {"spdxElementId": subject, "relationshipType": verb, "relatedSpdxElement": entry["SPDXID"]}


def document(root, name, version, created, programs, released=(), needed=()):
    """Of an image with `programs`, or of the release of the files `released`, which needs the packages `needed`."""
    references, system = {}, distribution(root)
    verb = "DEPENDS_ON" if released else "CONTAINS"
    image = {"SPDXID": IMAGE, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "NOASSERTION", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
             "primaryPackagePurpose": "INSTALL" if released else "CONTAINER"}
    packages = [package_entry(root, item, system, references) for item in installed(root) if not released or item["package"] in needed]
    files = [file_entry(pathlib.Path(p), "usr/local/bin/") for p in sorted(programs)]
    files += [file_entry(pathlib.Path(p), "") for p in sorted(released)]
    own = [own_entry(version, files)] if files else []
    content = json.dumps([packages, files], sort_keys=True)
    result = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{uuid.uuid5(uuid.NAMESPACE_URL, f'{name} {version} {created} {content}')}",
        "creationInfo": {"created": created, "creators": ["Tool: gdn-service-sbom.py"]},
        "packages": [image, *own, *packages],
        "files": files,
        "relationships": [relationship("SPDXRef-DOCUMENT", "DESCRIBES", image)] + [
            relationship(IMAGE, "CONTAINS", entry) for entry in own] + [relationship(IMAGE, verb, entry) for entry in packages] + [
            relationship(OWN, "CONTAINS", f) for f in files],
        "hasExtractedLicensingInfos": [
            {"licenseId": key, "name": value,
             "extractedText": f"Named '{value}' in /usr/share/doc/*/copyright of the packages that have it."}
            for key, value in sorted(references.items())],
    }
    return {key: value for key, value in result.items() if value != []}


# ---- Checking


def check_expression(text, references):
    """What is wrong with a licence expression, or None."""
    if text in ("NOASSERTION", "NONE"):
        return None
    known = set(SPDX.values())
    tokens = re.findall(r"\(|\)|[^\s()]+", text)
    depth, wants_name = 0, True
    for token in tokens:
        if token == "(":
            if not wants_name:
                return f"'(' after a licence in '{text}'"
            depth += 1
        elif token == ")":
            depth -= 1
            if wants_name or depth < 0:
                return f"misplaced ')' in '{text}'"
        elif token in ("AND", "OR"):
            if wants_name:
                return f"misplaced {token} in '{text}'"
            wants_name = True
        else:
            if not wants_name:
                return f"two licences without AND or OR in '{text}'"
            if token not in known and token not in references:
                return f"'{token}' is no licence of SPDX's, and not told of in the file"
            wants_name = False
    return f"'{text}' ends too early" if wants_name or depth else None


def check_package(package, references):
    name = package.get("name", "a package without a name")
    for field in ("SPDXID", "name", "versionInfo", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"):
        if not isinstance(package.get(field), str) or not package[field]:
            yield f"{name}: has no {field}"
    if not ID.fullmatch(package.get("SPDXID", "")):
        yield f"{name}: the id {package.get('SPDXID')} is none of SPDX's"
    for field in ("licenseConcluded", "licenseDeclared"):
        wrong = check_expression(package.get(field, ""), references)
        if wrong:
            yield f"{name}: {wrong}"
    if package.get("SPDXID") in (IMAGE, OWN):
        return
    purls = [r["referenceLocator"] for r in package.get("externalRefs", []) if r.get("referenceType") == "purl"]
    if len(purls) != 1 or not PURL.fullmatch(purls[0]):
        yield f"{name}: has not one purl of a Debian package: {purls}"
    elif f"/{urllib.parse.quote(name, safe='')}@{urllib.parse.quote(package.get('versionInfo', ''), safe='')}?" not in purls[0]:
        yield f"{name}: the purl is another package's: {purls[0]}"


def check(sbom, root=None):
    for field, value in (("spdxVersion", "SPDX-2.3"), ("dataLicense", "CC0-1.0"), ("SPDXID", "SPDXRef-DOCUMENT")):
        if sbom.get(field) != value:
            yield f"{field} is {sbom.get(field)}, not {value}"
    if not re.fullmatch(r"https?://\S+", sbom.get("documentNamespace", "")) or "#" in sbom.get("documentNamespace", ""):
        yield "documentNamespace is no URI without a fragment"
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", sbom.get("creationInfo", {}).get("created", "")):
        yield "created is no time such as 2026-01-31T12:00:00Z"
    references = {item["licenseId"] for item in sbom.get("hasExtractedLicensingInfos", [])}
    for package in sbom.get("packages", []):
        yield from check_package(package, references)
    for file in sbom.get("files", []):
        lengths = {c["algorithm"]: len(c["checksumValue"]) for c in file.get("checksums", [])}
        if lengths != {"SHA1": 40, "SHA256": 64}:
            yield f"{file.get('fileName')}: has not both checksums"
    ids = [item.get("SPDXID") for item in [sbom, *sbom.get("packages", []), *sbom.get("files", [])]]
    for twice in sorted({i for i in ids if ids.count(i) > 1}, key=str):
        yield f"two things have the id {twice}"
    ends = {end for r in sbom.get("relationships", []) for end in (r["spdxElementId"], r["relatedSpdxElement"])}
    for missing in sorted(ends - set(ids)):
        yield f"a relationship names {missing}, which is not there"
    for alone in sorted(set(ids) - ends, key=str):
        yield f"{alone} is in no relationship"
    if root:
        there = {(p["package"], p["version"]) for p in installed(root)}
        told = {(p.get("name"), p.get("versionInfo", "")) for p in sbom["packages"] if p.get("SPDXID") not in (IMAGE, OWN)}
        for name, version in sorted(there ^ told):
            yield f"{name} {version} is {'installed and not told of' if (name, version) in there else 'told of and not installed'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--name")
    parser.add_argument("--version")
    parser.add_argument("--created", default="")
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--package", action="append", default=[])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    given = parser.parse_args()
    if given.check:
        sbom = json.loads(given.check.read_text(encoding="utf-8"))
        errors = list(check(sbom, given.root))
        print(*errors, sep="\n", end="\n" if errors else "")
        packages = [p for p in sbom["packages"] if p.get("SPDXID") not in (IMAGE, OWN)]
        licensed = sum(p["licenseDeclared"] != "NOASSERTION" for p in packages)
        print(f"sbom: {len(packages)} packages, {licensed} with machine-readable licences, {len(errors)} errors")
        return 1 if errors else 0
    if not (given.root and given.name and given.version and given.out):
        parser.error("needs --root, --name, --version and --out, or --check")
    if given.program and given.file or given.package and not given.file:
        parser.error("--program is of an image, --file and --package are of a release")
    # An image's CREATED argument may be left at its default.
    created = given.created
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created):
        created = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = document(given.root, given.name, given.version, created, given.program, given.file, set(given.package))
    text = json.dumps(made, indent=1) + "\n"
    given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
