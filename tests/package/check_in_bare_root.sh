#!/bin/sh
# Installs the Debian packages where it runs, a root of Debian 12 that is thrown away after; starts the server by the command line
# of its unit, as its user, asks it with gdnctl, and sees a session outlive a restart; then upgrades, removes and purges. As root.
#
#   check_in_bare_root.sh PACKAGES_DIR
set -eu
packages="${1:?usage: check_in_bare_root.sh PACKAGES_DIR}"
export DEBIAN_FRONTEND=noninteractive
server=''

fail() {
  echo "FAULT $*"
  [ -z "${server}" ] || kill "${server}" 2>/dev/null || true
  exit 1
}

# Does what systemd would do: makes the directories, then runs the command of ExecStart as User=, on a free port.
start() {
  install -d -o gdn -g gdn -m 0700 /var/lib/gdn
  install -d -o gdn -g gdn -m 0750 /run/gdn
  rm -f /run/gdn/port
  command="$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/gdn-server.service)"
  # shellcheck disable=SC2086  # its words
  setpriv --reuid gdn --regid gdn --clear-groups --no-new-privs --bounding-set=-all \
    ${command} --listen=127.0.0.1:0 --listen=unix:/run/gdn/gdn.sock --port-file=/run/gdn/port >/tmp/server.log 2>&1 &
  server=$!
  tries=0
  until [ -s /run/gdn/port ]; do
    tries=$((tries + 1))
    if [ "${tries}" -gt 600 ] || ! kill -0 "${server}" 2>/dev/null; then cat /tmp/server.log; fail "the server did not come up"; fi
    sleep 0.1
  done
}

stop() {
  kill -TERM "${server}"
  wait "${server}" || { cat /tmp/server.log; fail "the server did not drain"; }
  server=''
}

apt-get -qq update
apt-get -qq install -y --no-install-recommends "${packages}"/*.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; fail "apt-get install"; }
dpkg-query -W gdn-server gdn-tools libgdn-client-dev 'libgdn-client0*'
getent passwd gdn || fail "there is no user gdn"
for path in /run/gdn /etc/systemd/system/multi-user.target.wants/gdn-server.service; do
  [ ! -e "${path}" ] || fail "the service was started or enabled: ${path}"
done
bash -n /usr/share/bash-completion/completions/gdnctl
for path in zsh/vendor-completions/_gdnctl fish/vendor_completions.d/gdnctl.fish; do
  [ -s "/usr/share/${path}" ] || fail "there is no completion ${path}"
done
ldconfig -p | grep -q libgdn_client || fail "ldconfig does not know libgdn_client"
gdnctl try >/tmp/try.log 2>&1 || { cat /tmp/try.log; fail "gdnctl try"; }
/usr/bin/gdn_parity --backend=cpu --suite=layer_ops --test=projection_row_stable_F32 >/dev/null || fail "gdn_parity"

if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify --man=no gdn-server.service || fail "systemd-analyze verify"
  install -D -m 0644 /usr/share/gdn-server/gpu.conf /etc/systemd/system/gdn-server.service.d/gpu.conf
  systemd-analyze verify --man=no gdn-server.service || fail "systemd-analyze verify with the drop-in for GPUs"
  rm -r /etc/systemd/system/gdn-server.service.d
  systemd-analyze security --offline=true --no-pager --threshold=20 gdn-server.service >/tmp/security.txt || fail "too exposed"
  tail -n 1 /tmp/security.txt
else
  echo "left out: this root has no systemd-analyze"
fi

start
gdnctl health --target "127.0.0.1:$(cat /run/gdn/port)"
gdnctl info --target unix:/run/gdn/gdn.sock
gdnctl sessions create --target unix:/run/gdn/gdn.sock --operator 2,4,16,16 --id kept
[ "$(stat -c '%a %U' /run/gdn/gdn.sock)" = '600 gdn' ] || fail "the socket is $(stat -c '%a %U' /run/gdn/gdn.sock)"
stop
start
gdnctl sessions show --target unix:/run/gdn/gdn.sock kept || fail "the session did not outlive the restart"
stop

echo '# changed by hand' >>/etc/gdn/server.yaml
dpkg -i "${packages}"/gdn-server_*.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the upgrade"; }
grep -q 'changed by hand' /etc/gdn/server.yaml || fail "an upgrade lost the changes of server.yaml"
dpkg --remove gdn-server gdn-tools libgdn-client-dev
[ ! -e /usr/bin/gdn_server ] || fail "removing leaves the program"
[ -e /etc/gdn/server.yaml ] || fail "removing takes the configuration"
[ -d /var/lib/gdn ] || fail "removing takes the sessions"
dpkg --purge gdn-server
for path in /etc/gdn /var/lib/gdn; do
  [ ! -e "${path}" ] || fail "purging leaves ${path}"
done
echo "packages in a bare root: ok"
