#!/bin/sh
# Starts the server in a container: flags go to gdn_server, anything else is run as a command (`gdnctl doctor`).
#
# It adds these flags, which override a file of --config:
#   --listen=0.0.0.0:50061               unless the flags have a --listen; without --tls-cert also --allow-insecure, because only a
#                                        published port leaves the container
#   --listen=unix:/tmp/gdn-health.sock   for the health check: a Unix socket stays plain if the server uses TLS, and does not depend on
#                                        other addresses. $GDN_HEALTH_SOCKET names another path; empty: no such socket
#   --backend=$GDN_BACKEND               unless the flags have a --backend
# Before it starts a GPU backend, it runs `gdnctl doctor`. If something is missing, the container ends with doctor's list.
# GDN_SKIP_DOCTOR=1 skips this check.
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
health_socket="${GDN_HEALTH_SOCKET-/tmp/gdn-health.sock}"
if [ -n "${health_socket}" ] && [ -w "${health_socket%/*}" ]; then
  set -- "$@" "--listen=unix:${health_socket}"
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
