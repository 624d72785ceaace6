#!/usr/bin/env bash
# Runs the ten lines that docs/how-to/secure.md begins with, on free ports, and looks at what they print.
#
#   check_security_recipe.sh SOURCE_DIR BUILD_DIR    exits 77 where curl or openssl is not installed
set -uo pipefail
source_dir="$1" build_dir="$2"
for program in curl openssl python3; do
  command -v "${program}" >/dev/null || { echo "${program} is not installed"; exit 77; }
done
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
mkdir -p "${work}/build" "${work}/tmp"
ln -s "${build_dir}" "${work}/build/cpu"

free_ports() {
  python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}
# The first block of the page.
awk '/^```/ { if (inside) exit; inside = 1; next } inside' "${source_dir}/docs/how-to/secure.md" >"${work}/recipe"
[[ "$(wc -l <"${work}/recipe")" == 10 ]] || { echo "docs/how-to/secure.md does not begin with a block of ten lines"; exit 1; }

# A port that was free a moment ago may be taken, so there are some tries; the server then ends with that message.
for attempt in 1 2 3 4 5; do
  read -r rpc_port http_port < <(free_ports)
  {
    echo 'trap "kill %1 2>/dev/null; wait" EXIT'
    sed -e "s/50061/${rpc_port}/g; s/9464/${http_port}/g" \
      -e 's/until \[ -s port \]; do/until [ -s port ]; do kill -0 %1 || exit 9;/' "${work}/recipe"
  } >"${work}/run"
  (cd "${work}" && TMPDIR="${work}/tmp" bash "${work}/run") >"${work}/output" 2>&1
  grep -q "the port is taken" "${work}/output" || break
  echo "attempt ${attempt}: a port was taken"
done

missing=0
# expect TEXT WHAT
expect() {
  grep -qF -- "$1" "${work}/output" && return
  echo "the recipe did not print '$1' ($2)"
  missing=1
}
expect "numerics id" "a good login is answered"
expect "UNAUTHENTICATED" "a wrong token is refused"
expect 'gdn_errors_total{reason="UNAUTHENTICATED"} 1' "and counted"
expect "UNAVAILABLE" "there is no connection without a certificate"
if grep -qF "$(cat "${work}"/tmp/*/alice.token)" "${work}/output"; then
  echo "the token is in what the recipe printed"
  missing=1
fi
(( missing == 0 )) || cat "${work}/output"
exit "${missing}"
