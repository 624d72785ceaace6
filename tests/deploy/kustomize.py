"""Renders the kustomizations of deploy/kubernetes, with what they use of kustomize and nothing more; anything else is an error.

Used: resources, components, images (newName, newTag), patches (JSON patches in place, for targets by kind and name), configMapGenerator
(files; options.labels) with the hash in its name. Where kubectl is installed, check_kubernetes.py compares with its rendering.
"""

import copy
import hashlib
import json
import pathlib
import re

import yaml

KNOWN = {"apiVersion", "kind", "resources", "components", "images", "patches", "configMapGenerator"}


class Unsupported(Exception):
    """A kustomization says what this renderer does not know."""


def only(mapping, allowed, where):
    surplus = sorted(set(mapping) - set(allowed))
    if surplus:
        raise Unsupported(f"{where}: {', '.join(surplus)}")


def render(folder):
    """The objects of a folder with a kustomization.yaml."""
    return apply(pathlib.Path(folder), [])


def apply(folder, objects):
    path = folder / "kustomization.yaml"
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    only(text, KNOWN, path)
    objects = list(objects)
    for name in text.get("resources", []):
        target = folder / name
        if target.is_dir():
            objects += render(target)
        else:
            objects += [item for item in yaml.safe_load_all(target.read_text(encoding="utf-8")) if item]
    generated = [config_map(folder, item) for item in text.get("configMapGenerator", [])]
    objects += generated
    for name in text.get("components", []):
        objects = apply(folder / name, objects)
    for patch in text.get("patches", []):
        only(patch, {"target", "patch"}, path)
        objects = patched(objects, patch, path)
    for image in text.get("images", []):
        only(image, {"name", "newName", "newTag"}, path)
        for pod in pods(objects):
            for container in pod.get("initContainers", []) + pod["containers"]:
                container["image"] = renamed(container["image"], image)
    for item in generated:
        rename_config_map(objects, item)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    if len(set(names)) != len(names):
        raise Unsupported(f"{path}: two objects of one name")
    return objects


def pods(objects):
    return [item["spec"]["template"]["spec"] for item in objects if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job")]


def renamed(image, change):
    name, _, tag = image.partition(":")
    if name != change["name"]:
        return image
    tag = change.get("newTag", tag)
    return change.get("newName", name) + (f":{tag}" if tag else "")


def config_map(folder, item):
    only(item, {"name", "files", "options"}, folder)
    only(item.get("options", {}), {"labels"}, folder)
    data = {name: (folder / name).read_text(encoding="utf-8") for name in item["files"]}
    metadata = {"name": item["name"]}
    if "options" in item:
        metadata["labels"] = item["options"]["labels"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def rename_config_map(objects, item):
    """With the hash of its contents, in the object and in pods' volumes."""
    # kustomize 5 leaves the name empty here.
    plain = json.dumps({"data": item["data"], "kind": "ConfigMap", "name": ""}, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    for character in "<>&":  # as Go writes JSON
        plain = plain.replace(character, f"\\u{ord(character):04x}")
    digits = hashlib.sha256(plain.encode()).hexdigest()[:10].translate(str.maketrans("013ae", "ghkmt"))
    old = item["metadata"]["name"]
    item["metadata"]["name"] = f"{old}-{digits}"
    for pod in pods(objects):
        for volume in pod.get("volumes", []):
            if volume.get("configMap", {}).get("name") == old:
                volume["configMap"]["name"] = item["metadata"]["name"]


def patched(objects, patch, where):
    target = patch["target"]
    only(target, {"kind", "name"}, where)
    chosen = [item for item in objects if item["kind"] == target["kind"] and item["metadata"]["name"] == target["name"]]
    if not chosen:
        raise Unsupported(f"{where}: nothing is {target['kind']} {target['name']}")
    changed = {id(item): json_patched(item, yaml.safe_load(patch["patch"]), where) for item in chosen}
    return [changed.get(id(item), item) for item in objects]


def json_patched(item, operations, where):
    result = copy.deepcopy(item)
    for operation in operations:
        only(operation, {"op", "path", "value"}, where)
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = result
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        name = operation["op"]
        there = last in place if isinstance(place, dict) else bool(re.fullmatch(r"\d+", last)) and int(last) < len(place)
        if name in ("remove", "replace") and not there:
            raise Unsupported(f"{where}: {name} {operation['path']}: there is nothing")
        if name == "remove":
            del place[int(last) if isinstance(place, list) else last]
        elif name not in ("add", "replace"):
            raise Unsupported(f"{where}: {name}")
        elif isinstance(place, dict):
            place[last] = operation["value"]
        elif last == "-":
            place.append(operation["value"])
        elif name == "add":
            place.insert(int(last), operation["value"])
        else:
            place[int(last)] = operation["value"]
    return result
