#!/usr/bin/env bash
# The main job: latency on the best RDMA network there is, beside perftest's in the same run, and on
# shared memory. A device of this machine comes first, then Soft-RoCE in this kernel, then the VM.
# BENCHFLAGS is added to the first, `ibbench perftest lat`.
# Figures of a software device tell ratios; they say nothing about hardware. Results: build/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=hack/common.sh
. hack/common.sh

out=$PWD/build/bench ibbench=$PWD/build/bin/ibbench
mkdir -p "$out"
read -ra extra <<<"${BENCHFLAGS-}"

lat() { # NAME WRAPPER...
  local name=$1
  shift
  echo "== $name"
  "$@" "$ibbench" perftest lat ${extra[@]+"${extra[@]}"} -o "$out/$name.json" </dev/null
}

# rxe_here: make a Soft-RoCE device of this kernel, which takes root and a kernel that has the
# module.
rxe_here() { [ "$(id -u)" = 0 ] && modprobe -qn rdma_rxe 2>/dev/null && hack/softroce/setup.sh >&2; }

if host_device; then
  lat rdma
elif rxe_here; then
  trap 'hack/softroce/teardown.sh >&2' EXIT
  lat softroce
else
  echo "no RDMA device here, and none can be made: using the Soft-RoCE VM"
  lat softroce-vm hack/softroce/vm run -timeout 20m -rw "$out" --
fi

echo "== shared memory"
# A put and a get as one call sees them, then the round trip between two processes.
"$ibbench" lat put --ack --fabric shm --sizes 8,4K,64K -o "$out/shm-put.json" </dev/null
"$ibbench" lat get --fabric shm --sizes 8,4K,64K -o "$out/shm-get.json" </dev/null
"$ibbench" lat amo --fabric shm -o "$out/shm-amo.json" </dev/null
"$ibbench" lat put --fabric shm --sizes 8,4K,64K -o "$out/shm-pingpong.json" </dev/null
echo "results: ${out#"$PWD/"}"
