#!/usr/bin/env python3
"""Fails where the manifests of an overlay in deploy/kubernetes do not fit the server, the files of deploy/, or each other.

  check_kubernetes.py [ROOT]          check every overlay
  check_kubernetes.py --render NAME   print an overlay as kubectl kustomize would
  check_kubernetes.py --write         copy deploy/haproxy/haproxy.cfg to where kustomize reads it
  check_kubernetes.py --self-test     plant a mistake of each kind, and see each reported

Checked: flags; the time to end; names of ports, volumes, services, selectors, config maps; who may reach whom; that pods are confined
and have probes; that HAProxy is told of the pods there are. Where kubectl is installed with kustomize 5, that it renders the same
objects. Whether Kubernetes takes the objects is lint.sh's matter.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.append("/usr/lib/python3/dist-packages")  # Debian's python3-yaml, for a Python that has none
import kustomize  # noqa: E402
import server_flags  # noqa: E402
import yaml  # noqa: E402

FOLDER = "deploy/kubernetes"
OVERLAYS = ("cpu", "mi50", "fleet", "fleet-cpu")
ROUTING, ROUTING_COPY = "deploy/haproxy/haproxy.cfg", f"{FOLDER}/components/fleet/haproxy.cfg"


def selects(selector, labels):
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


class Overlay:
    def __init__(self, name, objects):
        self.name, self.objects = name, objects
        self.workloads = self.of("StatefulSet") + self.of("Deployment")

    def of(self, kind):
        return [item for item in self.objects if item["kind"] == kind]

    def chosen(self, selector):
        return [w for w in self.workloads if selects(selector, w["spec"]["template"]["metadata"]["labels"])]


def container_of(workload):
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container


def ports_of(workload):
    return {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}


def probes_of(container):
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(name)
        if probe:
            yield name, probe.get("httpGet", {}).get("port")


def check_pod(overlay, workload):
    where = f"{overlay.name}: {workload['kind']} {workload['metadata']['name']}"
    spec, container, ports = workload["spec"]["template"]["spec"], container_of(workload), ports_of(workload)
    if not selects(workload["spec"]["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]):
        yield f"{where}: does not select its own pods"
    own, pod = container.get("securityContext", {}), spec.get("securityContext", {})
    if not (own.get("readOnlyRootFilesystem") and own.get("allowPrivilegeEscalation") is False and pod.get("runAsNonRoot")
            and own.get("capabilities", {}).get("drop") == ["ALL"] and pod.get("seccompProfile", {}).get("type") == "RuntimeDefault"
            and spec.get("automountServiceAccountToken") is False):
        yield f"{where}: is not confined"
    if "memory" not in container["resources"].get("limits", {}) or "cpu" not in container["resources"].get("requests", {}):
        yield f"{where}: has no limit of memory, or asks for no processor"
    if ":" not in container["image"].rsplit("/", 1)[-1] or container["image"].endswith(":latest"):
        yield f"{where}: the image {container['image']} has no tag of its own"
    for name, port in probes_of(container):
        if port and port not in ports and port not in ports.values():
            yield f"{where}: {name} asks port {port}, which the container has not"
    if {"readinessProbe", "livenessProbe"} - {name for name, _ in probes_of(container)}:
        yield f"{where}: has no probes"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    volumes |= {claim["metadata"]["name"]: {} for claim in workload["spec"].get("volumeClaimTemplates", [])}
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    if sorted(mounted) != sorted(volumes):
        yield f"{where}: mounts {sorted(mounted)}, and its volumes are {sorted(volumes)}"
    maps = {item["metadata"]["name"] for item in overlay.of("ConfigMap")}
    for volume in volumes.values():
        if "configMap" in volume and volume["configMap"]["name"] not in maps:
            yield f"{where}: there is no config map {volume['configMap']['name']}"


def check_probes(root, overlay):
    """A server's own commands ask the socket of its entrypoint; Kubernetes' gRPC probes fail if a flag turns on TLS."""
    for workload in overlay.of("StatefulSet"):
        where, container = f"{overlay.name}: {workload['metadata']['name']}", container_of(workload)
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(name, {})
            if "exec" in probe:
                yield from server_flags.check_health(root, f"{where}: {name}", probe["exec"]["command"], probe.get("timeoutSeconds", 1))
            elif "httpGet" not in probe:
                yield f"{where}: {name} asks neither by a command nor by HTTP"
        if not any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"]):
            yield f"{where}: has no /tmp to write to, for the socket of its probes"


def pre_stop(container):
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    return int(command[1])


def check_ends(root, overlay):
    """Each pod has the time that it needs."""
    for workload in overlay.workloads:
        where = f"{overlay.name}: {workload['metadata']['name']}"
        container = container_of(workload)
        if workload["kind"] == "StatefulSet":
            yield from server_flags.check(root, where, container["args"])
            needed = server_flags.drain_seconds(container["args"])
        else:
            words = (root / ROUTING).read_text(encoding="utf-8").split()
            needed = server_flags.seconds(words[words.index("hard-stop-after") + 1])
        given = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        if given <= needed + pre_stop(container):
            yield f"{where}: may take {needed} s and {pre_stop(container)} s of preStop to end, and is given {given} s"


def check_services(overlay):
    services = {item["metadata"]["name"]: item["spec"] for item in overlay.of("Service")}
    for name, spec in services.items():
        chosen = overlay.chosen(spec["selector"])
        if len(chosen) != 1:
            yield f"{overlay.name}: the service {name} selects {len(chosen)} workloads"
            continue
        for port in spec["ports"]:
            if ports_of(chosen[0]).get(port["targetPort"]) != port["port"]:
                yield f"{overlay.name}: the service {name} has port {port['port']}, its pods {ports_of(chosen[0])}"
    for item in overlay.of("StatefulSet"):
        if services.get(item["spec"]["serviceName"], {}).get("clusterIP") != "None":
            yield f"{overlay.name}: {item['metadata']['name']} has no headless service"
    for item in overlay.of("ServiceMonitor") + overlay.of("PodMonitor"):
        labels = item["spec"]["selector"]["matchLabels"]
        ends = item["spec"].get("endpoints") or item["spec"]["podMetricsEndpoints"]
        found = [service["spec"]["ports"] for service in overlay.of("Service") if selects(labels, service["metadata"]["labels"])]
        if item["kind"] == "PodMonitor":
            found = [container_of(workload)["ports"] for workload in overlay.chosen(labels)]
        if not any(port["name"] == ends[0]["port"] for ports in found for port in ports):
            yield f"{overlay.name}: {item['kind']} {item['metadata']['name']} finds no port {ends[0]['port']}"


def check_policies(overlay):
    for workload in overlay.workloads:
        where, labels = f"{overlay.name}: {workload['metadata']['name']}", workload["spec"]["template"]["metadata"]["labels"]
        for kind, selector_of in (("PodDisruptionBudget", lambda s: s["selector"]["matchLabels"]),
                                  ("NetworkPolicy", lambda s: s["podSelector"]["matchLabels"])):
            if sum(selects(selector_of(item["spec"]), labels) for item in overlay.of(kind)) != 1:
                yield f"{where}: has not one {kind}"
    for item in overlay.of("NetworkPolicy"):
        for workload in overlay.chosen(item["spec"]["podSelector"]["matchLabels"]):
            named = {port["port"] for rule in item["spec"]["ingress"] for port in rule["ports"]}
            if named != set(ports_of(workload)):
                policy = f"{overlay.name}: NetworkPolicy {item['metadata']['name']}"
                yield f"{policy} lets in {sorted(named)}, the ports are {sorted(ports_of(workload))}"


def check_fleet(overlay):
    """HAProxy is told of the pods, reaches them, and the pods are a fleet's."""
    (nodes,), (routing,) = overlay.of("StatefulSet"), overlay.of("Deployment")
    name, service, port = nodes["metadata"]["name"], nodes["spec"]["serviceName"], ports_of(nodes)["grpc"]
    told = {e["name"]: e["value"] for e in container_of(routing)["env"] if e["name"].startswith("GDN_NODE_")}
    expected = {f"GDN_NODE_{i + 1}": f"{name}-{i}.{service}.$(POD_NAMESPACE).svc.cluster.local:{port}" for i in range(8)}
    if told != expected or nodes["spec"]["replicas"] > len(expected):
        yield f"{overlay.name}: HAProxy is not told of the pods of {name}"
    policies = {item["metadata"]["name"]: item["spec"] for item in overlay.of("NetworkPolicy")}
    out = [rule for rule in policies["gdn-routing"]["egress"] if "to" in rule]
    if {p["port"] for rule in out for p in rule["ports"]} != set(ports_of(nodes).values()):
        yield f"{overlay.name}: HAProxy may not call the servers"
    labels = routing["spec"]["template"]["metadata"]["labels"]
    lets_in = [rule for rule in policies[name]["ingress"] for peer in rule["from"]
               if selects(peer.get("podSelector", {}).get("matchLabels", {}), labels)]
    if not any(p["port"] == "http" for rule in lets_in for p in rule["ports"]):
        yield f"{overlay.name}: HAProxy may not ask /readyz"
    flags = [argument.partition("=")[0] for argument in container_of(nodes)["args"]]
    if "--share-sessions" not in flags or "--disk-dir" in flags or nodes["spec"].get("volumeClaimTemplates"):
        yield f"{overlay.name}: its servers share no sessions"


def kustomize_of_kubectl():
    """Whether there is a kubectl with kustomize 5."""
    if not shutil.which("kubectl"):
        return False
    told = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    try:
        return json.loads(told.stdout).get("kustomizeVersion", "").startswith("v5")
    except ValueError:
        return False


def check_against_kubectl(root, overlay):
    done = subprocess.run(["kubectl", "kustomize", root / FOLDER / "overlays" / overlay.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"{overlay.name}: kubectl: {done.stderr.strip()}"
        return
    def keyed(objects):
        return {(item["kind"], item["metadata"]["name"]): item for item in objects}
    theirs, ours = keyed(yaml.safe_load_all(done.stdout)), keyed(overlay.objects)
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            yield f"{overlay.name}: kubectl renders another {' '.join(key)}"


def check(root, with_kubectl=True):
    errors = []
    if (root / ROUTING).read_bytes() != (root / ROUTING_COPY).read_bytes():
        errors.append(f"{ROUTING_COPY} is no copy of {ROUTING}: tests/deploy/check_kubernetes.py --write")
    there = {path.name for path in (root / FOLDER / "overlays").iterdir()}
    if there != set(OVERLAYS):
        errors.append(f"{FOLDER}/overlays has {sorted(there)}")
    for name in OVERLAYS:
        try:
            overlay = Overlay(name, kustomize.render(root / FOLDER / "overlays" / name))
        except kustomize.Unsupported as error:
            errors.append(str(error))
            continue
        for workload in overlay.workloads:
            errors += check_pod(overlay, workload)
        errors += check_ends(root, overlay)
        errors += check_probes(root, overlay)
        errors += check_services(overlay)
        errors += check_policies(overlay)
        if name.startswith("fleet"):
            errors += check_fleet(overlay)
        if with_kubectl:
            errors += check_against_kubectl(root, overlay)
    return errors


FLEET = f"{FOLDER}/components/fleet/kustomization.yaml"
SET, NET = f"{FOLDER}/base/statefulset.yaml", f"{FOLDER}/base/network.yaml"
ROUTES = f"{FOLDER}/components/fleet/routing.yaml"
# (file, what is in it, what is planted in its place, what the report has to say)
PLANTED = [
    (SET, "terminationGracePeriodSeconds: 120", "terminationGracePeriodSeconds: 105", "is given 105 s"),
    (SET, "--checkpoint-every-tokens", "--checkpoint-each-tokens", "no flag --checkpoint-each-tokens"),
    (SET, "path: /readyz, port: http", "path: /readyz, port: https", "readinessProbe asks port https"),
    (SET, "            exec: {command: [gdnctl, health, \"--target=unix:/tmp/gdn-health.sock\", --timeout=4s]}\n            periodSeconds: 10",
     "            grpc: {port: 50061}\n            periodSeconds: 10", "livenessProbe asks neither"),
    (SET, "unix:/tmp/gdn-health.sock", "127.0.0.1:50061", "startupProbe: the health check is"),
    (SET, "            timeoutSeconds: 5\n            failureThreshold: 240", "            failureThreshold: 240", "not below its limit of 1 s"),
    (SET, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "is not confined"),
    (SET, "- {name: tmp, mountPath: /tmp}", "- {name: temp, mountPath: /tmp}", "and its volumes are"),
    (f"{FOLDER}/base/services.yaml", "targetPort: http", "targetPort: grpc", "the service gdn-pods has port 9464"),
    (f"{FOLDER}/base/disruption.yaml", "    matchLabels: {app.kubernetes.io/name: gdn-service",
     "    matchLabels: {app.kubernetes.io/name: gdn", "has not one PodDisruptionBudget"),
    (NET, "        - {port: http}\n", "        - {port: grpc}\n", "NetworkPolicy gdn lets in ['grpc']"),
    (f"{FOLDER}/overlays/cpu/kustomization.yaml", "newTag: cpu", "newTag: latest", "has no tag of its own"),
    (FLEET, "path: /spec/volumeClaimTemplates", "path: /spec/volumeClaimTemplate", "there is nothing"),
    (FLEET, "--share-sessions", "--share-session", "no flag --share-session"),
    (FLEET, "            - {port: http}", "            - {port: grpc}", "HAProxy may not ask /readyz"),
    (FLEET, "name: gdn-routing\n    files", "name: gdn-routes\n    files", "there is no config map gdn-routing"),
    (ROUTES, "gdn-2.gdn-pods", "gdn-2.gdn", "HAProxy is not told of the pods"),
    (ROUTES, "        - {port: 9464}\n", "", "HAProxy may not call the servers"),
    (ROUTES, "terminationGracePeriodSeconds: 75", "terminationGracePeriodSeconds: 65", "is given 65 s"),
    (ROUTING, "  retries 3", "  retries 2", "is no copy of"),
    (f"{FOLDER}/components/monitoring/monitors.yaml", "  endpoints:\n    - port: http", "  endpoints:\n    - port: metrics",
     "finds no port metrics"),
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
            errors = check(copy, with_kubectl=False)
            if not any(report in error for error in errors):
                print(f"not reported: {path}: {new}: {errors}")
                missed += 1
    print(f"self-test: {len(PLANTED) - missed} of {len(PLANTED)} planted faults reported")
    return 1 if missed else 0


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    if arguments == ["--self-test"]:
        return self_test(root)
    if arguments == ["--write"]:
        shutil.copyfile(root / ROUTING, root / ROUTING_COPY)
        return 0
    if arguments[:1] == ["--render"] and len(arguments) == 2:
        print(yaml.safe_dump_all(kustomize.render(root / FOLDER / "overlays" / arguments[1]), sort_keys=False), end="")
        return 0
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__.strip())
        return 2
    asked = kustomize_of_kubectl()
    errors = check(pathlib.Path(arguments[0]) if arguments else root, asked)
    for error in errors:
        print(error)
    print(f"{len(OVERLAYS)} overlays, {len(errors)} errors; compared with kubectl kustomize: {'yes' if asked else 'not installed'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
