package am

import "github.com/ibconduit/conduit/internal/fabric"

// Network is what an endpoint of this configuration asks of a network.
func (c Config) Network() (fabric.EndpointConfig, error) {
	c.Rank, c.Size = 0, 1
	err := c.populate()
	return c.endpoint(), err
}
