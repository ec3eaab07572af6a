#!/bin/sh
# Two sshd, of hosts a and b, on loopback. They differ in their ports; those of root also have names
# of their own, and an account whose shell talks when it starts.
#
#   sshd.sh DIR ROOT LIBS PORT-OF-A PORT-OF-B
#
# DIR: sshd_config, and their files; ROOT: where the packages are unpacked, with libraries in LIBS, or /
#
# Ends, with all that it has started, at the end of its standard input: that is, with its caller in
# any case.
set -eu
dir=$1 root=${2%/}
[ -z "$root" ] || export LD_LIBRARY_PATH="$3"
shift 3

# What sshd of root looks for is not that of the machine: a directory, and the user who owns nothing.
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$dir/home"
  echo 'echo "Welcome to $(hostname)."; echo "This host is watched." >&2' >"$dir/home/.bashrc"
  { echo "root:x:0:0:root:$dir/home:/bin/bash"; grep -v -e '^root:' -e '^sshd:' /etc/passwd; } >"$dir/passwd"
  echo "sshd:x:$(id -u nobody):$(id -g nobody)::/run/sshd:/usr/sbin/nologin" >>"$dir/passwd"
  { echo 'root:*:19000:0:99999:7:::'; grep -v '^root:' /etc/shadow || true; } >"$dir/shadow"
  chmod 644 "$dir/passwd"
  chmod 600 "$dir/shadow"
fi

pids=
for name in a b; do
  port=$1
  shift
  if [ "$(id -u)" = 0 ]; then
    unshare -u -m sh -c 'set -e; hostname "$2"
      mount -t tmpfs -o mode=755 run /run && mkdir -m 755 /run/sshd
      mount --bind "$1/passwd" /etc/passwd && mount --bind "$1/shadow" /etc/shadow
      exec "$3/usr/sbin/sshd" -D -e -f "$1/sshd_config" -p "$4"' - "$dir" $name "$root" "$port" >"$dir/log.$name" 2>&1 </dev/null &
  else
    "$root/usr/sbin/sshd" -D -e -f "$dir/sshd_config" -p "$port" >"$dir/log.$name" 2>&1 </dev/null &
  fi
  pids="$pids $!"
  echo $! >"$dir/pid.$name"
done
cat >/dev/null || true
# shellcheck disable=SC2086 # a list
kill $pids 2>/dev/null || true
wait
