"""What check_arrows.py and check_links.py share: the files of a tree, and a check that can be tried on planted mistakes."""

import os
import tempfile


def files_of(root, skipped_folders):
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(f for f in subfolders if f not in skipped_folders and not f.startswith("."))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def read_lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read().splitlines()


def self_test(check_tree, planted):
    """planted: (file, contents, the beginning of the report expected of it, or None where it is right)."""
    with tempfile.TemporaryDirectory() as root:
        for path, contents, _ in planted:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(contents)
        _, errors = check_tree(root)
    expected = [report for _, _, report in planted if report]
    missed = [report for report in expected if not any(e.startswith(report) for e in errors)]
    surplus = [e for e in errors if not any(e.startswith(report) for report in expected)]
    for report in missed:
        print(f"not reported: {report}")
    for error in surplus:
        print(f"wrongly reported: {error}")
    print(f"self-test: {len(expected) - len(missed)} of {len(expected)} planted mistakes reported, {len(surplus)} false")
    return 1 if missed or surplus else 0


def main(usage, check_tree, planted, arguments):
    """check_tree(root) returns (files read, ["file:line: what is wrong", ...])."""
    if arguments == ["--self-test"]:
        return self_test(check_tree, planted)
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(usage.strip())
        return 2
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    count, errors = check_tree(root)
    for error in errors:
        print(error)
    print(f"{count} files read, {len(errors)} errors")
    return 1 if errors or count == 0 else 0
