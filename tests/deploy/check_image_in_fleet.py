#!/usr/bin/env python3
"""Replays golden recordings by way of HAProxy, on servers that some command runs, over Redis with a replica and Sentinels.

  check_image_in_fleet.py ROOT FOLDER MODELS COMMAND...

HAProxy and Redis run here, by deploy/haproxy/haproxy.cfg and deploy/redis/start.sh, on addresses of the loopback range. COMMAND is what
runs a program where gdn-entrypoint and gdnctl are: `buildah run CONTAINER --`, or nothing but `env`. There, FOLDER (made here) is
/fleet and tests/golden is MODELS. Three servers share sessions.
"""

import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
import check_redis_start  # noqa: E402
import check_routing  # noqa: E402

PATIENCE = 300  # seconds; a deadline, not a measurement
WHERE = "/fleet"

# run.sh FLEET MODELS: inside the image.
RUN = """#!/bin/sh
set -eu
fleet="$1" models="$2"
. "$fleet/addresses"
servers=
share="--share-sessions --redis=sentinel://$GDN_SENTINELS/gdn --redis-wait-replicas=1"
hosts="127.0.0.2 127.0.0.3 127.0.0.4"
flags=
for folder in "$models"/qwen3_*; do flags="$flags --model=${folder##*/}=$folder"; done
for host in $hosts; do
  # shellcheck disable=SC2086  # several flags in each
  GDN_BACKEND=cpu GDN_HEALTH_SOCKET= gdn-entrypoint $flags $share --node-name="node-$host" --redis-password-file="$fleet/password" --checkpoint-every-tokens=16 --threads=1 \\
    --shared-memory-dir= --listen="$host:$GDN_PORT" --http-listen="$host:$GDN_HTTP_PORT" --drain-checkpoint-timeout=60s \\
    >"/tmp/$host.log" 2>&1 &
  servers="$servers $!"
done
failed() { for host in $hosts; do echo "--- $host"; tail -n 20 "/tmp/$host.log"; done; echo "$1"; exit 1; }
trap 'kill $servers 2>/dev/null || true' EXIT
tries=0
for host in $hosts; do
  until gdnctl health --target="$host:$GDN_PORT" --timeout=1s >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -le 600 ] || failed "the server on $host did not come up"
    sleep 0.1
  done
done
until gdnctl health --target="$GDN_PROXY" --timeout=1s >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -le 600 ] || failed "HAProxy took none of the servers"
  sleep 0.1
done
for folder in "$models"/qwen3_*; do
  gdnctl replay --target="$GDN_PROXY" --model="${folder##*/}" --io="$folder/io.safetensors" --tolerance=1e-5 >/tmp/replay 2>&1 || {
    cat /tmp/replay
    failed "the replay of ${folder##*/} failed"
  }
  echo "${folder##*/}: $(tail -n 1 /tmp/replay)"
done
# shellcheck disable=SC2086  # one word a server
kill -TERM $servers
for server in $servers; do wait "$server" || failed "a server did not drain: $?"; done
trap - EXIT
"""


def main(arguments):
    if len(arguments) < 4:
        print(__doc__.strip())
        return 2
    root, folder, models, command = pathlib.Path(arguments[0]).resolve(), pathlib.Path(arguments[1]).resolve(), arguments[2], arguments[3:]
    os.environ["PATH"] += ":/usr/sbin"
    folder.mkdir(parents=True)
    redis = check_redis_start.Fleet(root, folder)
    redis.password_file.chmod(0o644)  # for the user in the image
    proxy = None
    try:
        for node in redis.nodes:
            node.start()
        redis.until_followed()
        hosts = [check_routing.PROXY, *check_routing.HOSTS]
        port, http_port = check_routing.free_port(hosts), check_routing.free_port(hosts)
        sentinels = ",".join(redis.sentinel_addresses.split())
        (folder / "addresses").write_text(f"GDN_SENTINELS={sentinels}\nGDN_PORT={port}\n"
                                          f"GDN_HTTP_PORT={http_port}\nGDN_PROXY=127.0.0.1:{port}\n", encoding="utf-8")
        (folder / "run.sh").write_text(RUN, encoding="utf-8")
        environment = os.environ | {f"GDN_NODE_{n}": f"127.0.0.{n + 1}:{port}" for n in (1, 2, 3)}
        environment |= {"GDN_NODE_HTTP_PORT": str(http_port), "GDN_PROXY_ADMIN": str(folder / "admin.sock"), "GDN_PROXY_SLOWSTART": "1s",
                        "GDN_PROXY_LISTEN": f"127.0.0.1:{port}", "GDN_PROXY_HTTP_LISTEN": f"127.0.0.1:{http_port}"}
        with open(folder / "haproxy.log", "wb") as log:
            proxy = subprocess.Popen(  # pylint: disable=consider-using-with
                ["haproxy", "-W", "-db", "-f", root / "deploy/haproxy/haproxy.cfg"], env=environment, stdout=log, stderr=subprocess.STDOUT)
        inside = WHERE if command[0] != "env" else str(folder)
        done = subprocess.run([*command, "sh", f"{inside}/run.sh", inside, models], timeout=PATIENCE, check=False)
        stats = check_routing.stat_of(str(folder / "admin.sock"))
        calls = {n: int(row["hrsp_2xx"]) for n, row in stats.items() if int(row["hrsp_2xx"])}
        scripts = [line for line in redis.redis[0].ask("info", "commandstats") if line.startswith(("cmdstat_eval", "cmdstat_set"))]
        print(f"calls by server, as HAProxy counts them: {calls}; Redis: {' '.join(line.partition(',')[0] for line in scripts)}")
        if done.returncode == 0 and calls and scripts:
            print("behind HAProxy, over Redis: ok")
            return 0
        print(*(folder / "haproxy.log").read_text(errors="replace").splitlines()[-10:], sep="\n")
        return 1
    finally:
        for process in [proxy, *(node.process for node in redis.nodes)]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
