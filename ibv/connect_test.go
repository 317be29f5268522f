package ibv

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNeedsGRH(t *testing.T) {
	lan, other := GID{0: 0xfe, 1: 0x80, 15: 1}, GID{0: 0xfd, 15: 2}
	for name, tc := range map[string]struct {
		typ           GIDType
		local, remote Endpoint
		want          bool
	}{
		"RoCE":                       {GIDTypeRoCEv2, Endpoint{GID: lan}, Endpoint{GID: lan}, true},
		"RoCE whose ports have LIDs": {GIDTypeRoCEv2, Endpoint{GID: lan, LID: 1}, Endpoint{GID: lan, LID: 1}, true},
		"RoCE, peer without a GID":   {GIDTypeRoCEv1, Endpoint{GID: lan}, Endpoint{}, true}, // and Modify refuses it
		"InfiniBand, same subnet":    {GIDTypeIB, Endpoint{GID: lan, LID: 1}, Endpoint{GID: lan, LID: 2}, false},
		"InfiniBand, other subnet":   {GIDTypeIB, Endpoint{GID: lan, LID: 1}, Endpoint{GID: other, LID: 2}, true},
		"InfiniBand, peer has none":  {GIDTypeIB, Endpoint{GID: lan, LID: 1}, Endpoint{LID: 2}, false},
	} {
		local := LocalEndpoint{Endpoint: tc.local, Choice: GIDChoice{Entry: GIDEntry{Type: tc.typ}}}
		assert.Equal(t, tc.want, needsGRH(local, tc.remote), name)
	}
}
