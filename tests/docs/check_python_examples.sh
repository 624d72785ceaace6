#!/usr/bin/env bash
# Runs every program of examples/python against a server with TLS, tokens and a disk, on a free port, in a virtual environment.
#
#   check_python_examples.sh SOURCE_DIR BUILD_DIR    exits 77 where python3-venv or openssl is not installed, or pip finds no packages
set -uo pipefail
source_dir="$1" build_dir="$2"
examples="${source_dir}/examples/python"
command -v openssl >/dev/null || { echo "openssl is not installed"; exit 77; }

# Made once for what requirements.txt says.
venv="${build_dir}/venv-examples"
if ! cmp -s "${examples}/requirements.txt" "${venv}/installed"; then
  python3 -m venv "${venv}" >/dev/null || { echo "python3-venv is not installed"; exit 77; }
  "${venv}/bin/pip" install --quiet --requirement "${examples}/requirements.txt" || { echo "pip installs nothing here"; exit 77; }
  cp "${examples}/requirements.txt" "${venv}/installed"
fi

work="$(mktemp -d)"
server_pid=
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  [[ -z "${server_pid}" ]] || { kill "${server_pid}" 2>/dev/null; wait "${server_pid}"; }
  rm -rf "${work}"
}
trap cleanup EXIT
cd "${work}" || exit 1

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
{
  openssl req -x509 "${new_key[@]}" -days 2 -subj /CN=ca -keyout ca.key -out ca.crt &&
    for name in server alice; do
      openssl req "${new_key[@]}" -subj "/CN=${name}" -addext subjectAltName=DNS:localhost -keyout "${name}.key" -out "${name}.csr" &&
        openssl x509 -req -in "${name}.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy -days 2 -out "${name}.crt" ||
        exit 1
    done
} 2>openssl.log || { cat openssl.log; exit 1; }
"${build_dir}/bin/gdnctl" token new --subject alice >alice.token 2>alice.json || exit 1
echo "{\"subjects\": [$(cat alice.json)]}" >tokens.json

"${build_dir}/bin/gdn_server" --listen localhost:0 --port-file port --tls-cert server.crt --tls-key server.key --tls-client-ca ca.crt \
  --tokens-file tokens.json --disk-dir states --disk-high-watermark 100 >server.log 2>&1 &
server_pid=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s port ]] && break
  kill -0 "${server_pid}" 2>/dev/null || { cat server.log; exit 1; }
  sleep 0.1
done

failed=0
for example in "${examples}"/*.py; do
  name="$(basename "${example}" .py)"
  if "${venv}/bin/python" -B "${example}" --target "localhost:$(cat port)" --tls-ca ca.crt --tls-cert alice.crt --tls-key alice.key \
      --token-file alice.token >"${name}.out" 2>&1 && grep -qx "${name//_/ } ok" "${name}.out"; then
    echo "${name}: ok"
  else
    echo "${name}: FAILED"
    cat "${name}.out"
    failed=1
  fi
done
(( failed == 0 )) || tail -n 40 server.log
exit "${failed}"
