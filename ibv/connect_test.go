package ibv

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNeedsGRH(t *testing.T) {
	lan, other := GID{0: 0xfe, 1: 0x80, 15: 1}, GID{0: 0xfd, 15: 2}
	for name, tc := range map[string]struct {
		local, remote Endpoint
		want          bool
	}{
		"RoCE":                      {Endpoint{GID: lan}, Endpoint{GID: lan}, true},
		"InfiniBand, same subnet":   {Endpoint{GID: lan, LID: 1}, Endpoint{GID: lan, LID: 2}, false},
		"InfiniBand, other subnet":  {Endpoint{GID: lan, LID: 1}, Endpoint{GID: other, LID: 2}, true},
		"InfiniBand, peer's has no": {Endpoint{GID: lan, LID: 1}, Endpoint{LID: 2}, false},
	} {
		assert.Equal(t, tc.want, needsGRH(tc.local, tc.remote), name)
	}
}
