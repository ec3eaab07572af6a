# Shared by the scripts beside it: source it after `cd` to the root of the project.
# shellcheck shell=bash

# The Go that hack/setup.sh chose, else the one of the machine.
PATH=$PWD/build/go/bin:$PATH:/usr/local/go/bin
export PATH

# go.mod names an exact version; any Go from 1.21 on may fetch it.
export GOTOOLCHAIN=${GOTOOLCHAIN:-auto}

# record FILE STAGE NAME pass|fail|skip [REASON]: a result in the form of hack/testsum.
record() {
  local reason=${5-}
  reason=${reason//[\"\\]/}
  reason=${reason//[[:cntrl:]]/ }
  printf '{"Stage":"%s","Package":"%s","Test":"%s","Outcome":"%s","Reason":"%s"}\n' \
    "$2" "$2" "$3" "$4" "$reason" >>"$1"
}

# host_device: does this machine itself have an RDMA device?
host_device() { [ -n "$(ls -A /sys/class/infiniband 2>/dev/null)" ]; }

# limited_memory: may this user limit the memory of processes (cgroup v1), and add swap space?
limited_memory() {
  local group=/sys/fs/cgroup/memory/ibconduit-probe-$$ file ok=1
  mkdir "$group" 2>/dev/null || return 1
  file=$(mktemp)
  # swapon(2) refuses files with holes.
  if [ -w "$group/memory.limit_in_bytes" ] && fallocate -l 1M "$file" 2>/dev/null &&
    mkswap "$file" >/dev/null 2>&1 && swapon "$file" 2>/dev/null; then
    swapoff "$file" && ok=0
  fi
  rmdir "$group"
  rm -f "$file"
  return $ok
}

# lock_memory: may this shell's programs lock 1 GiB? It raises RLIMIT_MEMLOCK where it may.
# CAP_IPC_LOCK lifts the limit, unless it is that of a user namespace.
lock_memory() {
  local caps limit
  caps=$(awk '$1 == "CapEff:" { print $2 }' /proc/self/status)
  if (((16#$caps >> 14) & 1)) && grep -qE '^ +0 +0 +4294967295$' /proc/self/uid_map; then return 0; fi
  ulimit -l unlimited 2>/dev/null || sudo -n prlimit --pid $$ --memlock=unlimited 2>/dev/null || ulimit -S -l "$(ulimit -H -l)"
  limit=$(ulimit -l)
  [ "$limit" = unlimited ] || [ "$limit" -ge 1048576 ] || {
    echo "RLIMIT_MEMLOCK is $limit KiB, and the tests register up to 1 GiB: 'memlock unlimited' in /etc/security/limits.conf, or run as root" >&2
    return 1
  }
}
