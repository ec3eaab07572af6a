#!/bin/sh
# A Slurm cluster of two nodes, n1 and n2, on this host, on loopback, without systemd, cgroups or
# DNS, as root.
#
#   slurm.sh DIR ROOT PORT    DIR: its files; ROOT: where the packages are unpacked, or /
#
# Writes "ready" when the nodes are idle. Ends, with all that it has started, at the end of its
# standard input: that is, with its caller in any case.
set -eu
dir=$1 root=${2%/} port=$3
host=$(hostname -s)
lib=$(dirname "$(find "$root/usr/lib" -name libslurmfull.so | head -n1)")
LD_LIBRARY_PATH="$lib:$(dirname "$lib")"
export LD_LIBRARY_PATH SLURM_CONF="$dir/slurm.conf" PATH="$root/usr/sbin:$root/usr/bin:$PATH"
find_one() { for p; do [ -x "$root/usr/sbin/$p" ] && { echo "$root/usr/sbin/$p"; return; }; done; echo "no $1 in $root/usr/sbin" >&2; exit 1; }
ctld=$(find_one slurmctld-wlm slurmctld) slurmd=$(find_one slurmd-wlm slurmd) stepd=$(find_one slurmstepd-wlm slurmstepd)

mkdir -p "$dir/state" "$dir/log" "$dir/munge" "$dir/pmix" "$dir/bin"
chmod 755 "$dir" "$dir/munge"
dd if=/dev/urandom of="$dir/munge/munge.key" bs=1 count=128 status=none
chmod 400 "$dir/munge/munge.key"
for p in munge unmunge; do # which know no variable for the socket
  printf '#!/bin/sh\nexec "%s" --socket="%s" "$@"\n' "$root/usr/bin/$p" "$dir/munge/munge.sock" >"$dir/bin/$p"
  chmod 755 "$dir/bin/$p"
done
cp /etc/hosts "$dir/hosts"
printf '127.0.0.1 n1\n127.0.0.1 n2\n' >>"$dir/hosts"

cat >"$SLURM_CONF" <<C
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
PluginDir=$lib
AuthType=auth/munge
AuthInfo=socket=$dir/munge/munge.sock
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
SlurmctldPort=$port
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
MpiParams=ports=$((port + 10))-$((port + 90))
KillWait=2
ReturnToService=2
PropagateResourceLimits=NONE
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
C
echo "PMIxCliTmpDirBase=$dir/pmix" >"$dir/mpi.conf"

pids=
"$root/usr/sbin/munged" --foreground --key-file="$dir/munge/munge.key" --socket="$dir/munge/munge.sock" --pid-file="$dir/munge/munged.pid" \
  --log-file="$dir/munge/munged.log" --seed-file="$dir/munge/munged.seed" --origin=127.0.0.1 >"$dir/log/munged" 2>&1 </dev/null &
pids="$pids $!"
i=0
while [ ! -S "$dir/munge/munge.sock" ] && [ $i -lt 100 ]; do sleep .1; i=$((i + 1)); done
"$ctld" -D -f "$SLURM_CONF" -c -i >"$dir/log/ctld" 2>&1 </dev/null &
pids="$pids $!"
for n in n1 n2; do
  mkdir -p "$dir/spool.$n"
  # The PMIx plug-in makes a directory of one name on each node: a tmpfs for each.
  unshare -m sh -c 'mount -t tmpfs pmix "$1/pmix" && mount --bind "$1/hosts" /etc/hosts && exec "$2" -D -f "$SLURM_CONF" -N "$3" -d "$4" -c' \
    - "$dir" "$slurmd" $n "$stepd" >"$dir/log/slurmd.$n" 2>&1 </dev/null &
  pids="$pids $!"
done

state=
for i in $(seq 300); do
  state=$(sinfo -h -o '%T %D' 2>&1) || true
  [ "$state" = "idle 2" ] && break
  sleep .1
done
[ "$state" = "idle 2" ] && echo ready || { echo "not ready: $state"; tail -n 20 "$dir"/log/*; }
cat >/dev/null || true
scancel -Q --user=root || true
for i in $(seq 300); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep .1; done
# shellcheck disable=SC2086 # a list
{
  kill $pids 2>/dev/null || true
  # A slurmd waits without end for a step that could not tell of its own.
  (sleep 20; kill -KILL $pids) >/dev/null 2>&1 </dev/null &
  late=$!
  wait $pids || true
}
kill $late 2>/dev/null || true
