#!/bin/sh
# Starts the server in a container: flags go to gdn_server, anything else is run as a command (`gdnctl doctor`).
#
# Adds --listen=0.0.0.0:50061 and --backend=$GDN_BACKEND where the flags do not say; beside that --listen also
# --allow-insecure where there is no --tls-cert, as the port leaves the container only where it is published. Before a GPU backend, `gdnctl doctor`
# looks at the node, and ends the container with its list where something is missing; GDN_SKIP_DOCTOR=1 leaves it out.
set -eu

case "${1-}" in
  "" | -*) ;;
  *) exec "$@" ;;
esac

backend=
listen=
tls=
previous=
for argument in "$@"; do
  case "${previous}" in -backend | --backend) backend="${argument}" ;; esac
  case "${argument}" in
    --help | -help | -h | --version) exec gdn_server "$@" ;;
    --backend=* | -backend=*) backend="${argument#*=}" ;;
    --tls-cert | --tls-cert=* | --tls_cert | --tls_cert=*) tls=given ;;
    --listen | --listen=* | -listen | -listen=*) listen=given ;;
  esac
  previous="${argument}"
done
if [ -z "${listen}" ]; then
  set -- "$@" --listen=0.0.0.0:50061
  [ -n "${tls}" ] || set -- "$@" --allow-insecure
fi
if [ -z "${backend}" ]; then
  backend="${GDN_BACKEND:-auto}"
  set -- "$@" "--backend=${backend}"
fi

if [ "${backend}" = gpu ] && [ "${GDN_SKIP_DOCTOR:-0}" != 1 ]; then
  # The server itself tells how much memory it needs.
  gdnctl doctor --need=0 >&2 || exit 1
fi
exec gdn_server "$@"
