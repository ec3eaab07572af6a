#!/usr/bin/env bash
# What the cache for remote data is worth: ibbench cache at the sizes that docs/performance.md has
# figures of, each kernel with and without the cache in turns.
#
#   hack/cache.sh [FLAG...]     further flags of ibbench cache, as --fabric ibv or -n 4
#
# ROUNDS (21) is how often each side is measured, SCALE the size of SSCA2 (17, in the VM 14), ONLY a
# pattern of awk for the lines of points to measure; VM=yes measures over Soft-RoCE in the VM.
# Results: build/bench/cache/*.ndjson, one file for each line.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=hack/common.sh
. hack/common.sh

vm=${VM:-no} rounds=${ROUNDS:-21} out=build/bench/cache
scale=${SCALE:-$([ "$vm" = yes ] && echo 14 || echo 17)}

# A walk along columns of ptrans has half as many rows as the matrix, each a page: 0.5, 1, 1.2 and 2
# times 256 pages. The tables, and the data of graphs, are four times their caches or more.
points() {
  local pages=256
  [ "$scale" -ge 17 ] || pages=32
  cat <<END
seq
reverse
stride
random --size 64K --pages 64
random --size 64K --pages 64 --sides passive,on
chase
handoff
bulk
gups --size 64K --pages 64
histogram --size 64K --pages 64
indexgather --variant words --size 64K --pages 64
indexgather --variant prefetch --size 64K --pages 64
ptrans --variant naive --pages 256 --sizes 256,512,616,1024
ptrans --variant prefetch --pages 256 --sizes 256,512,616,1024
ptrans --variant tiled --pages 256 --sizes 256,512,616,1024
ptrans --variant put --pages 256 --sizes 256,1024
stencil --sizes 15,45
md --size 10 --steps 5
ssca2-k1 --size $scale --pages $pages
ssca2-k2 --size $scale --pages $pages
ssca2-k3 --size $scale --pages $pages
ssca2-k4 --size $scale --pages $pages --steps 1
END
}

measure() {
  local line name args
  points | awk "/${ONLY:-.}/" | while read -r line; do
    name=$(tr -cs 'a-z0-9\n' - <<<"$line")
    read -ra args <<<"$line"
    build/bin/ibbench cache -q --rounds "$rounds" "${args[@]}" "$@" -o "$out/$name.ndjson" </dev/null
  done
}

mkdir -p "$out"
if [ "${1-}" = --measure ]; then # what is left to do in the VM
  shift
  measure "$@"
  exit
fi
go build -o build/bin/ibbench ./cmd/ibbench
if [ "$vm" = yes ]; then
  hack/softroce/vm run -timeout 120m -- env VM=yes ROUNDS="$rounds" SCALE="$scale" ONLY="${ONLY:-.}" hack/cache.sh --measure "$@" </dev/null
else
  measure "$@"
fi
