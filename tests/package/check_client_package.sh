#!/usr/bin/env bash
# Installs the C++ client's components from BUILD_DIR, moves the tree, and builds consumer/ against it: by CMake's find_package,
# and by pkg-config alone. Each of its programs is run: consumer against a live
# gdn_server on a free loopback port, users_test against the package's fake server.
#
#   check_client_package.sh BUILD_DIR
set -euo pipefail

build_dir="$(cd "${1:?usage: check_client_package.sh BUILD_DIR}" && pwd)"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
server_pid=''
cleanup() {
  [[ -z "${server_pid}" ]] || { kill "${server_pid}" 2>/dev/null || true; wait "${server_pid}" || true; }
  rm -rf "${work}"
}
trap cleanup EXIT
cd "${work}"

for component in client client-dev; do
  cmake --install "${build_dir}" --prefix "${work}/made" --component "${component}" >install.log || { cat install.log; exit 1; }
done
mv made moved  # nothing in it may name where it was installed, or built
if grep -rlE "${work}/made|${build_dir}" moved/include moved/lib/cmake moved/lib/pkgconfig; then
  echo "these installed files name folders of the build"
  exit 1
fi
if grep -rnE '#include "(base|client)/' moved/include; then
  echo "these installed headers include by the names of the source tree"
  exit 1
fi

cmake -G Ninja -S "${here}/consumer" -B by_cmake -DCMAKE_PREFIX_PATH="${work}/moved" -DCMAKE_CXX_COMPILER_LAUNCHER="${CXX_LAUNCHER:-}" \
  >configure.log 2>&1 || { cat configure.log; exit 1; }
cmake --build by_cmake

export PKG_CONFIG_PATH="${work}/moved/lib/pkgconfig"
read -ra compile <<<"$(pkg-config --cflags gdn-client)"
read -ra link <<<"$(pkg-config --libs gdn-client)"
"${CXX:-c++}" -std=c++20 "${compile[@]}" "${here}/consumer/consumer.cc" -o by_pkg_config "${link[@]}"
read -ra compile <<<"$(pkg-config --cflags gdn-client-fake)"
read -ra link <<<"$(pkg-config --libs gdn-client-fake)"
"${CXX:-c++}" -std=c++20 "${compile[@]}" "${here}/consumer/users_test.cc" -o users_test_by_pkg_config "${link[@]}"

"${build_dir}/bin/gdn_server" --listen 127.0.0.1:0 --port-file port >server.log 2>&1 &
server_pid=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s port ]] && break
  kill -0 "${server_pid}" 2>/dev/null || { cat server.log; exit 1; }
  sleep 0.1
done
export LD_LIBRARY_PATH="${work}/moved/lib"
by_cmake/users_test
./users_test_by_pkg_config
by_cmake/consumer "127.0.0.1:$(cat port)"
./by_pkg_config "127.0.0.1:$(cat port)"
echo "client package: ok"
