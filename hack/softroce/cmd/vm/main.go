// Command vm runs programs in Soft-RoCE VMs. Run it through the launcher hack/softroce/vm, which
// builds it.
package main
