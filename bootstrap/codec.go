package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// message is what goes over the wire: fields names its fields to a codec, in their order.
type message interface{ fields(c *codec) }

// codec appends the fields of a message to b, little-endian, or reads them from it; then the first
// error stays.
type codec struct {
	b     []byte
	reads bool
	err   error
}

var errShort = errors.New("message too short")

// maxString bounds every string of a message, in bytes.
const maxString = 1024

func clip(s string) string { return s[:min(len(s), maxString)] }

func encode(b []byte, m message) []byte {
	c := codec{b: b}
	m.fields(&c)
	return c.b
}

// decode reads a whole message. What it holds may be parts of b.
func decode(b []byte, m message) error {
	c := codec{b: b, reads: true}
	if m.fields(&c); c.err == nil && len(c.b) > 0 {
		c.err = fmt.Errorf("%d bytes too many", len(c.b))
	}
	return c.err
}

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// stop ends a message of which only the first fields are known.
func (c *codec) stop() { c.b = nil }

// numbers of fixed size, by pointers to them.
func (c *codec) numbers(all ...any) {
	for _, v := range all {
		switch {
		case !c.reads:
			c.b, _ = binary.Append(c.b, binary.LittleEndian, v)
		case c.err == nil:
			n, err := binary.Decode(c.b, binary.LittleEndian, v)
			if err != nil {
				c.fail(errShort)
			}
			c.b = c.b[n:]
		}
	}
}

// bytes are n bytes.
func (c *codec) bytes(p *[]byte, n int) {
	switch {
	case !c.reads:
		c.b = append(c.b, *p...)
	case n < 0 || n > len(c.b):
		c.fail(errShort)
	case c.err == nil:
		*p, c.b = c.b[:n:n], c.b[n:]
	}
}

// texts have their lengths before them, and are cut to the longest that is read.
func (c *codec) texts(all ...*string) {
	for _, s := range all {
		p := []byte(clip(*s))
		n := uint16(len(p))
		if c.numbers(&n); n > maxString {
			c.fail(fmt.Errorf("string of %d bytes, at most %d", n, maxString))
		}
		if c.bytes(&p, int(n)); c.reads && c.err == nil {
			*s = string(p)
		}
	}
}
