#!/usr/bin/env bash
# Loses nodes, and not a session: servers that share sessions, each in a network namespace of its own, behind HAProxy, over Redis with
# two replicas and three Sentinels. Clients decode while one node is killed, one is drained, one joins, Redis fails over, and one node is
# cut off for half a minute. Then every output is compared with an undisturbed server's, bit for bit.
#
#   scripts/cluster_demo.sh [--svg FILE] [--seed N] [--measure]
#
#   --svg FILE  what happened, as a picture over time
#   --seed N    of the inputs (default: 1)
#   --measure   also what HAProxy costs a Decode of 32 sessions, and the latencies while a node drains
#
# The last line is `cluster demo ok: ..`; anything else is a failure and a non-zero exit. About three minutes, as root, for network
# namespaces. Environment: JOBS compile jobs.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
(( EUID == 0 )) || die "needs root, for network namespaces"

cd "${repo_root}"
scripts/setup.sh --cluster
note "building gdn_server and gdnctl (preset cpu, $(default_jobs) jobs)"
cmake --preset cpu >/dev/null
cmake --build --preset cpu --parallel "$(default_jobs)" --target gdn_server gdnctl

venv="${repo_root}/build/cpu/venv-cluster"
[[ -x "${venv}/bin/pip" ]] || python3 -m venv "${venv}"
copy="$(mktemp -d)"
trap 'rm -rf "${copy}"' EXIT
mkdir -p "${copy}/client"
cp -r client/python "${copy}/client/"
cp -r proto ring "${copy}/"
"${venv}/bin/pip" install --quiet "${copy}/client/python"

note "running the cluster"
"${venv}/bin/python" -B scripts/cluster_demo.py --bin "${repo_root}/build/cpu/bin" "$@"
