#!/usr/bin/env python3
"""Fails where a compose file does not fit the server, the files beside it, or itself.

  check_compose.py [ROOT]        check deploy/compose*.yaml
  check_compose.py --self-test   plant a mistake of each kind, and see each reported

Checked: flags; that a service has the time that its drain takes; that it is confined, and healthy by a check of its own, which for a
server asks the entrypoint's socket; that a server with a card may lock memory; that no secret is in arguments or environments; names
of services in addresses, of networks, volumes and secrets; files that are mounted; the servers that HAProxy and Prometheus are told of. Whether docker compose takes the files is lint.sh's
matter.
"""

import pathlib
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.append("/usr/lib/python3/dist-packages")  # Debian's python3-yaml, for a Python that has none
import server_flags  # noqa: E402
import yaml  # noqa: E402

SINGLE, FLEET, CARDS = "deploy/compose.yaml", "deploy/compose.fleet.yaml", "deploy/compose.fleet.mi50.yaml"
DEFAULT = re.compile(r"\$\{(\w+)(?::?([-?])((?:[^{}]|\{[^{}]*\})*))?\}")
SECRET = re.compile(r"(?i)(password|secret|token(?!s)|key)(?!s?[-_]*file)")


def interpolated(text):
    """As compose does it, with nothing set: a default's value, or the variable's name where one is required."""
    return DEFAULT.sub(lambda m: m.group(3) if m.group(2) == "-" else m.group(1), text)


def load(root, path):
    return yaml.safe_load(interpolated((root / path).read_text(encoding="utf-8")))


def merged(first, second):
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: merged(first[key], second[key]) if key in first and key in second else first.get(key, second.get(key))
                for key in {**first, **second}}
    return second


def check_service(root, where, service):
    confined = service.get("read_only") and service.get("cap_drop") == ["ALL"]
    if not confined or "no-new-privileges:true" not in service.get("security_opt", []):
        yield f"{where}: is not confined (read_only, cap_drop, no-new-privileges)"
    if "test" not in service.get("healthcheck", {}):
        yield f"{where}: has no health check"
    if service.get("privileged") or service.get("network_mode") or service.get("pid"):
        yield f"{where}: reaches into the host"
    if not re.search(r":[\w.-]+$", service.get("image", "")) or service["image"].endswith(":latest"):
        yield f"{where}: the image {service.get('image')} has no tag of its own"
    for port in service.get("ports", []):
        if not port.startswith("127.0.0.1:"):
            yield f"{where}: publishes {port} to other machines"
    for name, value in service.get("environment", {}).items():
        if SECRET.search(name):
            yield f"{where}: the environment has {name}"
        if SECRET.search(str(value)) and "/run/secrets/" not in str(value):
            yield f"{where}: the environment has {value}"
    for argument in service.get("command", []):
        if SECRET.search(argument.partition("=")[0]):
            yield f"{where}: the arguments have {argument}"
    for volume in service.get("volumes", []):
        source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
        if source.startswith("./") and not (root / "deploy" / source).exists():
            yield f"{where}: there is no deploy/{source[2:]}"


def is_server(service):
    return any(a.startswith("--model=") for a in service.get("command", []))


def check_names(path, file):
    services = file["services"]
    for name, service in services.items():
        where = f"{path}: {name}"
        for kind in ("networks", "secrets"):
            for used in service.get(kind, []):
                if used not in file.get(kind, {}):
                    yield f"{where}: {kind} has no {used}"
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) and volume["type"] == "volume" else str(volume).split(":")[0]
            if re.fullmatch(r"[\w-]+", source) and source not in file.get("volumes", {}):
                yield f"{where}: volumes has no {source}"
        for other in service.get("depends_on", []):
            if other not in services:
                yield f"{where}: depends on {other}, which is no service"
        words = " ".join([*service.get("command", []), *map(str, service.get("environment", {}).values())])
        for host in re.findall(r"(?<![\w.:/-])(?:sentinel://)?([a-z][\w-]*):\d+", words.replace(",", " ")):
            if host not in services:
                yield f"{where}: no service is named {host}"
            elif not set(service.get("networks", [])) & set(services[host].get("networks", [])):
                yield f"{where}: {host} is on no network of its own"


def check_servers(root, path, file):
    for name, service in file["services"].items():
        if not is_server(service):
            continue
        where = f"{path}: {name}"
        yield from server_flags.check(root, where, service["command"])
        needed, given = server_flags.drain_seconds(service["command"]), server_flags.seconds(service["stop_grace_period"])
        if given <= needed:
            yield f"{where}: stop_grace_period is {given} s, and a drain may take {needed} s"
        check_of = service.get("healthcheck", {"test": ["CMD", ""], "timeout": "1s"})
        yield from server_flags.check_health(root, where, check_of["test"][1:], server_flags.seconds(check_of["timeout"]))
        if not any(entry.split(":")[0] == "/tmp" for entry in service.get("tmpfs", [])):
            yield f"{where}: has no /tmp to write to, for the socket of its health check"
        if "/dev/kfd" in service.get("devices", []) and service.get("ulimits", {}).get("memlock") != -1:
            yield f"{where}: has a card, and may not lock memory (ulimits: memlock)"


def check_fleet(root, file):
    """HAProxy, Prometheus and the servers are told the same."""
    services = file["services"]
    servers = sorted(name for name, service in services.items() if is_server(service))
    told = services["haproxy"]["environment"]
    routed = sorted(value.removesuffix(":50061") for key, value in told.items() if key.startswith("GDN_NODE_"))
    if routed != servers:
        yield f"{FLEET}: HAProxy is told of {routed}, and the servers are {servers}"
    jobs = {job["job_name"]: job["static_configs"][0]["targets"]
            for job in yaml.safe_load((root / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]}
    if sorted(jobs["gdn"]) != [f"{name}:9464" for name in servers]:
        yield f"{FLEET}: Prometheus asks {jobs['gdn']}, and the servers are {servers}"
    for name in servers:
        values = dict(a.removeprefix("--").partition("=")[::2] for a in services[name]["command"])
        if values["node-name"] != name or "share-sessions" not in values or values.get("http-listen") != "0.0.0.0:9464":
            yield f"{FLEET}: {name} is no node of the fleet"
    haproxy = (root / "deploy/haproxy/haproxy.cfg").read_text(encoding="utf-8")
    stop = server_flags.seconds(re.search(r"hard-stop-after (\w+)", haproxy).group(1))
    if server_flags.seconds(services["haproxy"]["stop_grace_period"]) <= stop:
        yield f"{FLEET}: haproxy: stop_grace_period is not above hard-stop-after, {stop} s"


def check(root):
    errors = []
    files = {path: load(root, path) for path in (SINGLE, FLEET)}
    files[CARDS] = merged(files[FLEET], load(root, CARDS))
    for path, file in files.items():
        for name, service in file["services"].items():
            errors += check_service(root, f"{path}: {name}", service)
        errors += check_names(path, file)
        errors += check_servers(root, path, file)
    errors += check_fleet(root, files[FLEET])
    cards = [tuple(s["devices"]) for s in files[CARDS]["services"].values() if "devices" in s]
    if len(cards) != 3 or len(set(cards)) != 3:
        errors.append(f"{CARDS}: not every server has a card of its own: {cards}")
    return errors


# (file, what is in it, what is planted in its place, what the report has to say)
PLANTED = [
    (FLEET, "--share-sessions", "--share-session", "no flag --share-session"),
    (FLEET, "stop_grace_period: 110s", "stop_grace_period: 45s", "a drain may take 100 s"),
    (SINGLE, "stop_grace_period: 110s", "stop_grace_period: 45s", "a drain may take"),
    (FLEET, "read_only: true\n  tmpfs", "read_only: false\n  tmpfs", "is not confined"),
    (FLEET, "    healthcheck: *redis-health\n", "", "has no health check"),
    (FLEET, "GF_SECURITY_ADMIN_PASSWORD__FILE: /run/secrets/grafana_password", "GF_SECURITY_ADMIN_PASSWORD: admin", "the environment has"),
    (FLEET, "--redis-password-file=/run", "--redis-password=/run", "no flag --redis-password="),
    (FLEET, "sentinel-3:26379/gdn", "sentinel-4:26379/gdn", "no service is named sentinel-4"),
    (FLEET, "networks: [calls, store]", "networks: [calls]", "sentinel-1 is on no network of its own"),
    (FLEET, "./prometheus/alerts.yml", "./prometheus/alarms.yml", "there is no deploy/prometheus/alarms.yml"),
    (FLEET, "GDN_NODE_3: gdn-3", "GDN_NODE_3: gdn-2", "HAProxy is told of"),
    (FLEET, "127.0.0.1:${GDN_GRAFANA_PORT", "0.0.0.0:${GDN_GRAFANA_PORT", "to other machines"),
    (FLEET, "prom/prometheus:v2.53.5", "prom/prometheus", "has no tag of its own"),
    (FLEET, "  sentinel-3: {}\n", "", "volumes has no sentinel-3"),
    (FLEET, "stop_grace_period: 75s", "stop_grace_period: 60s", "not above hard-stop-after"),
    (CARDS, "renderD130", "renderD129", "not every server has a card of its own"),
    (SINGLE, "    ulimits: {memlock: -1}", "    ulimits: {memlock: 65536}", "may not lock memory"),
    (CARDS, "  ulimits: {memlock: -1}", "  ulimits: {nofile: 65536}", "may not lock memory"),
    (FLEET, '"--target=unix:/tmp/gdn-health.sock", ', "", "the health check is"),
    (SINGLE, "--timeout=4s]", "--timeout=5s]", "not below its limit of 5 s"),
    ("deploy/entrypoint.sh", "GDN_HEALTH_SOCKET-/tmp/gdn-health.sock", "GDN_HEALTH_SOCKET-/tmp/health.sock", "the health check is"),
    (SINGLE, 'tmpfs: ["/tmp:', 'tmpfs: ["/var/tmp:', "has no /tmp to write to"),
    ("deploy/prometheus/prometheus.yml", '"gdn-3:9464"', '"gdn-3:9465"', "Prometheus asks"),
]


def self_test(root):
    missed = 0
    for path, old, new, report in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            shutil.copytree(root / "deploy", copy / "deploy")
            (copy / server_flags.TABLE).parent.mkdir(parents=True)
            shutil.copy(root / server_flags.TABLE, copy / server_flags.TABLE)
            text = (copy / path).read_text(encoding="utf-8")
            if old not in text:
                raise SystemExit(f"{path} no longer has {old!r}: plant another fault")
            (copy / path).write_text(text.replace(old, new, 1), encoding="utf-8")
            if not any(report in error for error in check(copy)):
                print(f"not reported: {path}: {new}: {check(copy)}")
                missed += 1
    print(f"self-test: {len(PLANTED) - missed} of {len(PLANTED)} planted faults reported")
    return 1 if missed else 0


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    if arguments == ["--self-test"]:
        return self_test(root)
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__.strip())
        return 2
    errors = check(pathlib.Path(arguments[0]) if arguments else root)
    for error in errors:
        print(error)
    print(f"compose: {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
