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
