#!/bin/sh
# Redis and its Sentinels for servers that share sessions, in containers or not. The password comes from a file and goes to a
# configuration that only its owner reads: never to arguments or the environment.
#
#   start.sh redis       a Redis; primary or replica, whichever the Sentinels say, else GDN_REDIS_PRIMARY
#   start.sh sentinel    a Sentinel; what it has learned stays in GDN_REDIS_DIR
#   start.sh health      exits 0 where the one on GDN_REDIS_PORT answers (for a Redis, to the password)
#
# Environment:
#
#   GDN_REDIS_HOST             this one's name or address, as the others reach it
#   GDN_REDIS_PORT             6379; for a Sentinel 26379
#   GDN_REDIS_BIND             the addresses that it listens at (all)
#   GDN_REDIS_DIR              where its files are (/data)
#   GDN_REDIS_PRIMARY          HOST:PORT of the first primary
#   GDN_SENTINELS              HOST:PORT of each Sentinel, with spaces between
#   GDN_SENTINEL_NAME          what the Sentinels call the primary (gdn), as in --redis=sentinel://HOST:PORT,../gdn
#   GDN_SENTINEL_QUORUM        how many of them have to miss it (2)
#   GDN_REDIS_PASSWORD_FILE    of letters, digits and ._~- (/run/secrets/redis_password)
#   GDN_REDIS_CONFIGURATION    where a Redis' configuration is written (/tmp/redis.conf)
set -eu
umask 077

die() {
  echo "start.sh: $*" >&2
  exit 1
}

role="${1-}"
case "${role}" in redis | sentinel | health) ;; *) die "takes redis, sentinel or health" ;; esac
port="${GDN_REDIS_PORT:-6379}"
folder="${GDN_REDIS_DIR:-/data}"
name="${GDN_SENTINEL_NAME:-gdn}"
password_file="${GDN_REDIS_PASSWORD_FILE:-/run/secrets/redis_password}"
[ -r "${password_file}" ] || die "cannot read ${password_file}"
password="$(cat "${password_file}")"
case "${password}" in
  "" | *[!A-Za-z0-9._~-]*) die "the password in ${password_file} has to be of letters, digits and ._~-" ;;
esac

if [ "${role}" = health ]; then
  # printf is the shell's own, so the password is in no process's arguments. A Sentinel has none and says so.
  printf 'AUTH %s\nPING\n' "${password}" | redis-cli -h "${GDN_REDIS_BIND:-127.0.0.1}" -p "${port}" | grep -q '^PONG$'
  exit
fi

host="${GDN_REDIS_HOST:?the name of this one, as the others reach it}"
primary="${GDN_REDIS_PRIMARY:?HOST:PORT of the first primary}"

if [ "${role}" = sentinel ]; then
  configuration="${folder}/sentinel.conf"
  if [ -f "${configuration}" ]; then
    # Sentinel has written there who is primary now. The password may be a new one.
    sed -i '/^sentinel auth-pass /d' "${configuration}"
  else
    cat >"${configuration}" <<END
port ${port}
bind ${GDN_REDIS_BIND:-* -::*}
dir ${folder}
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip ${host}
sentinel announce-port ${port}
sentinel monitor ${name} ${primary%:*} ${primary##*:} ${GDN_SENTINEL_QUORUM:-2}
sentinel down-after-milliseconds ${name} 5000
sentinel failover-timeout ${name} 30000
sentinel parallel-syncs ${name} 1
END
  fi
  echo "sentinel auth-pass ${name} ${password}" >>"${configuration}"
  exec redis-server "${configuration}" --sentinel
fi

# Who is primary: after a failover it is not the first one any more, and two would be one too many.
for sentinel in ${GDN_SENTINELS-}; do
  answer="$(timeout 2 redis-cli -h "${sentinel%:*}" -p "${sentinel##*:}" --raw sentinel get-master-addr-by-name "${name}" 2>/dev/null |
    tr '\n' ' ')" || continue
  case "${answer}" in
    ?*" "[0-9]*) primary="${answer%% *}:$(echo "${answer}" | cut -d ' ' -f 2)"; break ;;
  esac
done

configuration="${GDN_REDIS_CONFIGURATION:-/tmp/redis.conf}"
cat >"${configuration}" <<END
port ${port}
bind ${GDN_REDIS_BIND:-* -::*}
dir ${folder}
requirepass ${password}
masterauth ${password}
replica-announce-ip ${host}
replica-announce-port ${port}
# Every write is on the disk before it is answered: a checkpoint is one that survives Redis, too.
appendonly yes
appendfsync always
save ""
# What does not fit is refused, and the server says so. Nothing is thrown away.
maxmemory-policy noeviction
# States are megabytes: a replica that is behind by some is no reason to copy all of them.
repl-backlog-size 256mb
client-output-buffer-limit replica 1gb 512mb 60
END
if [ "${primary}" = "${host}:${port}" ]; then
  echo "start.sh: ${host}:${port} begins as primary"
else
  echo "start.sh: ${host}:${port} begins as replica of ${primary}"
  echo "replicaof ${primary%:*} ${primary##*:}" >>"${configuration}"
fi
exec redis-server "${configuration}"
