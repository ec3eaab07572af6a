// Package swap makes swap areas: it writes their header, and calls swapon and swapoff. It is for
// Linux only.
package swap
