# shellcheck shell=bash
# Read by the shell that runs a page's bash blocks (page_run.py). A failing command ends the shell, after its line is printed.
# The tester puts gdn_page_start in front of lines that start a gdn_server.
set -eE
trap 'echo "${BASH_SOURCE[0]##*/}:${LINENO}: failed with code $?: ${BASH_COMMAND}" >&2' ERR

gdn_page_pid=''
gdn_page_stop() {
  local i
  [[ -n "${gdn_page_pid}" ]] || return 0
  kill -TERM "${gdn_page_pid}" 2>/dev/null || true
  for ((i = 0; i < 100; ++i)); do
    kill -0 "${gdn_page_pid}" 2>/dev/null || break
    sleep 0.1
  done
  if kill -KILL "${gdn_page_pid}" 2>/dev/null; then echo "the server did not end within 10 s of SIGTERM" >&2; fi
  wait "${gdn_page_pid}" 2>/dev/null || true
  gdn_page_pid=''
}

trap gdn_page_stop EXIT

# Runs the command of a server in the background, and returns when the server takes calls.
gdn_page_start() {
  local listen=("--listen=127.0.0.1:${GDN_PAGE_PORT}") argument i
  gdn_page_stop
  for argument in "$@"; do
    case "${argument}" in --listen | --listen=* | --config | --config=*) listen=() ;; esac
  done
  rm -f "${GDN_PAGE_WORK}/port"
  "$@" "${listen[@]}" --port-file="${GDN_PAGE_WORK}/port" </dev/null >"${GDN_PAGE_WORK}/server.log" 2>&1 3>&- &
  gdn_page_pid=$!
  for ((i = 0; i < 600; ++i)); do
    if [[ -s "${GDN_PAGE_WORK}/port" ]]; then return 0; fi
    kill -0 "${gdn_page_pid}" 2>/dev/null || break
    sleep 0.05
  done
  echo "the server is not ready: $*" >&2
  return 1
}
