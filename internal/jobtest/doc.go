// Package jobtest has the tests of jobs of processes: that every launcher starts them alike, and
// that they end, however their ranks do, in bounded time, with the right code and without a process
// left. Its test binary is the program that they start.
package jobtest
