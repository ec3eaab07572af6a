// Package wire carries commands between the host and the agent in a guest, over one byte stream (a
// virtio-serial port).
//
// The host opens exchanges; each has a number, a request, and up to three byte streams. An exchange
// ends with one [Result] from the guest. Many run at once.
//
// Frame, little endian:
//
//	bytes  field
//	4      payload length, at most [MaxPayload]
//	4      exchange number (0 only in Hello)
//	1      kind
//	3      zero
//	n      payload
//
// Kinds:
//
//	Hello    guest to host, first frame: JSON [Greeting]
//	Open     host to guest: JSON [Request]
//	Data     stream (0 stdin, 1 stdout, 2 stderr) in 1 byte, bytes; none: end of the stream
//	Credit   stream in 1 byte, uint32: so many bytes were consumed, and may be sent again
//	Signal   host to guest: uint32 signal number for the command's process group
//	Exit     guest to host: JSON [Result]; no frame of the exchange follows from the guest
//
// A sender has at most [Window] bytes of a stream outstanding, so that a reader which stops reading
// stops its own stream only, and neither end buffers more than that.
package wire
