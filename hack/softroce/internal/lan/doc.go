// Package lan is an Ethernet switch for guests, inside this process. Each guest's network card is
// one end of a pair of datagram sockets; a frame is a datagram. Links between two guests can be
// cut, made lossy and slowed.
//
// Like a real switch it has bounded queues and drops what does not fit.
package lan
