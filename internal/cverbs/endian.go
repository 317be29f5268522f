package cverbs

import "encoding/binary"

// FromBE32 returns the number that v holds in big endian, as C keeps it in memory.
func FromBE32(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return binary.BigEndian.Uint32(b[:])
}

// ToBE32 is the reverse of FromBE32.
func ToBE32(v uint32) uint32 { return FromBE32(v) }

func fromBE64(v uint64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}
