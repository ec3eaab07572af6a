// Package twohosts holds tests of jobs whose ranks are on two hosts: two virtual
// machines with a Soft-RoCE device each, on one network that can be cut, can
// lose packets, and whose hosts can lose power. The test binary is also the
// ranks' program.
//
// It lies below hack because it boots machines, as the tests of hack/softroce
// do; hack/test.sh runs it once, natively.
package twohosts
