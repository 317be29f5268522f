//go:build rdma

package rdmacm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/cq"
	"github.com/goverbs/goverbs/rdmacm"
)

func TestConnectTransferDisconnect(t *testing.T) {
	client, server := connected(t, channel(t))
	client.send(t, "ping")
	assert.Equal(t, "ping", server.received(t))
	server.send(t, "pong")
	assert.Equal(t, "pong", client.received(t))

	client.receive(t)
	server.receive(t)
	require.NoError(t, client.id.Disconnect())
	next(t, server.id, rdmacm.EventDisconnected)
	for wc := client.completion(t); wc.WRID != 1; wc = client.completion(t) {
		assert.Equal(t, cq.StatusSuccess, wc.Status, "the send")
	}
	require.NoError(t, server.id.Disconnect())
	next(t, client.id, rdmacm.EventDisconnected)
	require.NoError(t, client.id.Close())
	require.NoError(t, server.id.Close())
}
