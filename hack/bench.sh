#!/usr/bin/env bash
# The main job: what the conduit costs, in three to five minutes. First shared memory, then a verbs
# device in user space (hack/softverbs) beside perftest and UCX in the same rounds, then an RDMA
# device: that of this machine, else Soft-RoCE in this kernel, else in the VM. Results and a report
# are in build/bench.
#   VM=yes         all of the VM's part, 5 rounds of 20,000 operations: 4 to 13 minutes more;
#                  VM=no: none of it
#   BUDGET=75      seconds for the rounds over the device in user space
#   BENCHFLAGS=... is added to each `ibbench perftest lat`
# Figures of a software device tell ratios; they say nothing about hardware.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/common.sh
. hack/common.sh

case ${VM-} in '' | yes | no) ;; *) echo "bench: VM=$VM: want yes or no" >&2; exit 2 ;; esac
budget=${BUDGET:-75}
case $budget in *[!0-9]* | '') echo "bench: BUDGET=$budget: want seconds" >&2; exit 2 ;; esac

# Ratios to perftest that are wanted of the best rounds; of a rate at least that.
goals=put:8=1.35,get:8=2.0,amo:8=2.3,put:4K=1.15,get:4K=1.4,am:short=1.8,am:4K=2.5
wire_goals=put:8=1.06,get:8=1.10,amo:8=1.08,am:short=1.25
rate_goals=am:8=0.7
vm_goals=put:8=1.15,put:4K=1.10,get:8=1.15,get:4K=1.10,amo:8=1.15,am:short=1.25,am:4K=1.3
vm_budget=60 vm_boots=15 # seconds

out=$PWD/build/bench ibbench=$PWD/build/bin/ibbench
rm -rf "$out"
mkdir -p "$out"
read -ra extra <<<"${BENCHFLAGS-}"
left_out=()

# One processor for each of the two processes: else the scheduler now and then has both on one.
cpus=$(awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)
pin=()
[ "$(nproc)" -lt 2 ] || pin=(--cpu "$cpus")

say() { echo "== $*"; }
failed=0
# part NAME COMMAND...: what cannot be measured does not keep the rest from it; a signal does.
part() {
  local name=$1 rc=0
  shift
  "$@" </dev/null || rc=$?
  [ $rc -lt 128 ] || exit $rc
  [ $rc = 0 ] || { failed=$rc; left_out+=("$name, which failed: see above"); }
}
lat() { # NAME WRAPPER...
  local name=$1
  shift
  part "$name" "$@" "$ibbench" perftest lat "${flags[@]}" ${extra[@]+"${extra[@]}"} -o "$out/$name.json"
}

# rxe_here: make a Soft-RoCE device of this kernel, which takes root and a kernel that has the
# module.
rxe_here() { [ "$(id -u)" = 0 ] && modprobe -qn rdma_rxe 2>/dev/null && hack/softroce/setup.sh >&2; }

# What is made or fetched once is no part of the measurement.
softverbs=no
if ! why=$(hack/softverbs/run true 2>&1); then
  left_out+=("the device in user space: $why")
elif ! command -v ib_write_lat >/dev/null; then
  left_out+=("the device in user space: perftest is not installed (make setup)")
else
  softverbs=yes
fi
where=vm
if host_device; then
  where=rdma
elif rxe_here; then
  where=softroce
  trap 'hack/softroce/teardown.sh >&2' EXIT
elif [ "${VM-}" = no ]; then
  where=none
  left_out+=("Soft-RoCE: VM=no")
elif ! hack/softroce/vm setup; then
  where=none
  left_out+=("Soft-RoCE: the VM cannot be made, see above")
fi

SECONDS=0
say "shared memory: put, get and fetch-add as one call sees them, then the round trip between two processes"
for what in "put --ack" get amo put; do
  sizes=(--sizes '8,4K,64K')
  [ "$what" != amo ] || sizes=()
  # shellcheck disable=SC2086 # two words
  "$ibbench" lat $what --fabric shm ${sizes[@]+"${sizes[@]}"} --duration 300ms --warmup 100ms -q -o "$out/shm-${what// --/-}.json" </dev/null
done

# Memory that processes share: copies through the kernel would be most of what is measured.
export SOFTVERBS_SHARE=1
if [ $softverbs = yes ]; then
  say "a verbs device in user space, beside perftest and UCX: what the software costs without a wire"
  flags=(--budget "${budget}s" --goals "$goals" ${pin[@]+"${pin[@]}"})
  if command -v ucx_perftest >/dev/null; then flags+=(--ucx); else left_out+=("UCX: ucx_perftest is not installed (make setup)"); fi
  lat softverbs hack/softverbs/run
  say "the same with a wire of 1 us"
  flags=(--budget "$((budget / 2))s" --goals "$wire_goals" --ops 'put,get,amo,am' ${pin[@]+"${pin[@]}"})
  SOFTVERBS_WIRE_NS=1000 lat softverbs-wire hack/softverbs/run
  say "messages of 8 bytes, one after the other without an answer"
  part softverbs-rate hack/softverbs/run "$ibbench" perftest rate --ops am --sizes 8 --iters 400000 --budget "$((budget / 5))s" --goals "$rate_goals" ${pin[@]+"${pin[@]}"} \
    -o "$out/softverbs-rate.json"
fi

flags=(--budget "${vm_budget}s" --goals "$vm_goals")
case $where in
rdma) say "the RDMA device of this machine" && lat rdma ;;
softroce) say "Soft-RoCE in this kernel" && lat softroce ;;
vm)
  say "Soft-RoCE in the VM: no RDMA device here, and none can be made"
  if [ "${VM-}" = yes ]; then
    flags=(--goals "$vm_goals")
    lat softroce-vm hack/softroce/vm run -timeout 20m -rw "$out" --
  else
    flags=(--iters 2000 --budget "$((vm_budget - vm_boots))s" --goals "$vm_goals")
    lat softroce-vm hack/softroce/vm run -timeout $((2 * vm_budget))s -rw "$out" --
    left_out+=("of Soft-RoCE what does not fit into $vm_budget s: VM=yes measures 5 rounds of 20,000 operations, not 2,000")
  fi
  ;;
esac

files=()
for f in "$out"/*.json; do # one that failed has no results
  [ "$(head -c 2 "$f")" = '[]' ] || files+=("$f")
done
(cd "$out" && "$ibbench" report --title "make bench" "${files[@]##*/}" -o report.html) >/dev/null # the page has the files' names
for what in ${left_out[@]+"${left_out[@]}"}; do echo "left out: $what"; done
echo "measured in $SECONDS s; figures as JSON: build/bench/*.json"
echo "report: build/bench/report.html"
exit $failed
