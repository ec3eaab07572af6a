package am

import "github.com/ibconduit/conduit/internal/fabric"

// Network is how an endpoint of this configuration opens one of a network.
func (c Config) Network() (fabric.EndpointConfig, error) {
	c.Rank, c.Size = 0, 1
	err := c.populate()
	return c.endpoint(), err
}
