// Package mr measures registrations of the program's own memory in one process: what registering
// costs (reg), what a Get and a Put of the registration cache cost when it has the range (hit), and
// what listening for changes of the address space costs the program that makes them (churn).
//
// reg needs a device: there is no other registration. hit and churn are the same with a registrar
// that registers nothing, which is used where there is no device, or with --fake, and always
// named in the result.
//
// The loops that are timed stand in *_datapath.go. They do not allocate, and read the clock once
// per sample.
package mr
