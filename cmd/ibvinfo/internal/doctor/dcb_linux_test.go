package doctor

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message is what the kernel answers: headers, and attributes.
func message(kind uint16, content ...byte) []byte {
	b := make([]byte, 16, 64)
	binary.NativeEndian.PutUint16(b[4:], kind)
	b = append(b, content...)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

func attr(kind uint16, content ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(content)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, content...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func TestPFCAnswer(t *testing.T) {
	pfc := make([]byte, 136) // struct ieee_pfc
	pfc[0], pfc[1] = 8, 0b1001
	nested := attr(13|unix.NLA_F_NESTED, append(attr(1, make([]byte, 60)...), attr(2, pfc...)...)...)
	content := append([]byte{0, dcbCommandGet, 0, 0}, append(attr(1, 'e', 't', 'h', '0', 0), nested...)...)
	bits, err := pfcAnswer(message(unix.RTM_GETDCB, content...))
	require.NoError(t, err)
	assert.Equal(t, uint8(0b1001), bits)

	errno := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EOPNOTSUPP)+1)
	_, err = pfcAnswer(message(unix.NLMSG_ERROR, errno...))
	assert.ErrorIs(t, err, unix.EOPNOTSUPP)

	whole := message(unix.RTM_GETDCB, content...)
	for n := range whole { // whatever is cut off
		if bits, err := pfcAnswer(whole[:n]); err == nil {
			assert.Equal(t, uint8(0b1001), bits)
		}
	}
}

// The kernel understands the question: it knows the loopback interface, which has no PFC, and
// not the other.
func TestKernelPFC(t *testing.T) {
	_, err := KernelPFC("lo")
	assert.ErrorIs(t, err, unix.EOPNOTSUPP)
	_, err = KernelPFC("no-such-netdev")
	assert.ErrorIs(t, err, unix.ENODEV)
}
