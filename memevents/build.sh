#!/usr/bin/env bash
# Builds the C part as a library for LD_PRELOAD: build/libmemevents.so, or the file named by -o.
# Further arguments go to the compiler. CC chooses it.
#
#   memevents/build.sh [-o FILE] [FLAG...]
#   LD_PRELOAD=$PWD/build/libmemevents.so program
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../build/libmemevents.so
if [ "${1-}" = -o ]; then
  out=$2
  shift 2
fi
mkdir -p "$(dirname "$out")"
# The flags are those of cgo.go.
"${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -fPIC -Wall -Wextra -Werror -DIBC_MEM_PRELOAD "$@" \
  -shared -Wl,-z,now -Wl,-soname,libmemevents.so -o "$out" "$here"/ibc_mem_*.c -ldl -lpthread
