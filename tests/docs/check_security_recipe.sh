#!/usr/bin/env bash
# Runs the first two bash blocks of docs/how-to/secure.md on free ports and checks what they print.
#
#   check_security_recipe.sh SOURCE_DIR BUILD_DIR    exits 77 if curl, openssl or python3 is not installed
set -uo pipefail
source_dir="$1" build_dir="$2"
for program in curl openssl python3; do
  command -v "${program}" >/dev/null || { echo "${program} is not installed"; exit 77; }
done
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

free_ports() {
  python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}
# The first block makes the credentials and starts the server. The second one is the client.
awk '/^```bash/ { ++block; inside = block <= 2; next } /^```/ { inside = 0 } inside' "${source_dir}/docs/how-to/secure.md" >"${work}/recipe"
[[ "$(grep -c '^gdn_server ' "${work}/recipe")" == 1 ]] || { echo "the first two bash blocks start no server, or more than one"; exit 1; }

# Another process may take a port that was free a moment ago. The server then ends with that message, and the test tries again.
for attempt in 1 2 3 4 5; do
  read -r rpc_port http_port < <(free_ports)
  rm -rf "${work}/run"
  mkdir "${work}/run"
  {
    echo 'trap "kill %1 2>/dev/null; wait" EXIT'
    sed -e "s/50061/${rpc_port}/g; s/9464/${http_port}/g" \
      -e 's/^gdn_server .*/& --port-file port \&\nuntil [ -s port ]; do kill -0 %1 || exit 9; sleep 0.1; done/' "${work}/recipe"
  } >"${work}/script"
  (cd "${work}/run" && PATH="${build_dir}/bin:${PATH}" bash "${work}/script") >"${work}/output" 2>&1
  grep -q "the port is taken" "${work}/output" || break
  echo "attempt ${attempt}: a port was taken"
done

missing=0
# expect TEXT WHY
expect() {
  grep -qF -- "$1" "${work}/output" && return
  echo "the page's commands did not print '$1' ($2)"
  missing=1
}
expect "numerics id" "a valid login is answered"
expect "UNAUTHENTICATED (UNAUTHENTICATED)" "a wrong token is refused"
expect 'gdn_errors_total{reason="UNAUTHENTICATED"} 1' "and counted"
expect "refused: no client certificate" "there is no connection without a certificate"
expect "UNAVAILABLE" "there is no connection without a certificate"
expect "sessions/chat-1" "a session is created"
for token in alice ops; do
  if grep -qF "$(cat "${work}/run/credentials/${token}.token")" "${work}/output"; then
    echo "the token of ${token} is in the output"
    missing=1
  fi
done
(( missing == 0 )) || cat "${work}/output"
exit "${missing}"
