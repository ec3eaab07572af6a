// Package remote is the host's end of the connection to the agent of one guest.
package remote
