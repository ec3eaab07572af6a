//go:build !linux || !cgo

package pmix

import (
	"context"
	"fmt"
)

var errNotBuilt = fmt.Errorf("%w: this program was built without cgo, or not for Linux", ErrNoLibrary)

// Load returns ErrNoLibrary.
func Load(string) (string, error) { return "", errNotBuilt }

// Client is a connection to the launcher; this build has none.
type Client struct {
	Namespace  string
	Rank, Size int
}

// Init returns ErrNoLibrary.
func Init(context.Context) (*Client, error) { return nil, errNotBuilt }

// Put returns ErrNoLibrary.
func (c *Client) Put(context.Context, string, []byte) error { return errNotBuilt }

// Fence returns ErrNoLibrary.
func (c *Client) Fence(context.Context, bool) error { return errNotBuilt }

// Get returns ErrNoLibrary.
func (c *Client) Get(context.Context, int, string) ([]byte, error) { return nil, errNotBuilt }

// Abort returns ErrNoLibrary.
func (c *Client) Abort(context.Context, int, string) error { return errNotBuilt }

// Events returns nil.
func (c *Client) Events() <-chan Event { return nil }

// Close returns ErrNoLibrary.
func (c *Client) Close(context.Context) error { return errNotBuilt }
