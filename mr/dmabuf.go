package mr

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
	"github.com/goverbs/goverbs/internal/core"
	"github.com/goverbs/goverbs/internal/cverbs"
)

// RegisterDMABuf registers length bytes, from offset on, of the dma-buf that fd names:
// memory of another device, such as a GPU. The file descriptor stays the caller's and
// may be closed as soon as this returns. Work requests and peers name the bytes by
// addresses from iova on, which must be as far into a page as offset is.
//
// Of the access flags a dma-buf can have LocalWrite, RemoteWrite, RemoteRead,
// RemoteAtomic and RelaxedOrdering. The region has no Bytes and cannot be changed by
// Rereg. An error matches ibv.ErrNotSupported where the device, or its provider, cannot
// register dma-bufs.
//
// Implements: ibv_reg_dmabuf_mr
func RegisterDMABuf(pd *ibv.PD, fd int, offset uint64, length int, iova uint64, access ibv.AccessFlags) (*Region, error) {
	const op = "ibv_reg_dmabuf_mr"
	s := &regionState{MR: core.MR{Access: uint32(access), Addr: iova, Len: length}, fixed: true}
	if reason := s.checkDMABuf(offset); reason != "" {
		return nil, regError(op, pd, syscall.EINVAL, reason)
	}
	c, err := s.begin(op, pd)
	if err != nil {
		return nil, err
	}
	h, err := cverbs.RegDMABufMR(c.H, fd, offset, uint64(length), iova, uint32(access))
	if err != nil {
		s.abandon()
		return nil, regError(op, pd, err, whyNoDMABuf(fd, err))
	}
	return s.finish(h), nil
}

func (s *regionState) checkDMABuf(offset uint64) string {
	const can = ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead | ibv.AccessRemoteAtomic | ibv.AccessRelaxedOrdering
	if s.Len < 1 {
		return fmt.Sprintf("%d bytes of a dma-buf: at least 1", s.Len)
	}
	if other := s.access() &^ can; other != 0 {
		return fmt.Sprintf("a dma-buf cannot have the access flags %v", other)
	}
	return s.checkIOVA(offset)
}

func whyNoDMABuf(fd int, err error) string {
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return "the device, or its provider, cannot register dma-bufs"
	case errors.Is(err, syscall.EBADF):
		return fmt.Sprintf("file descriptor %d is not open", fd)
	case errors.Is(err, syscall.EINVAL):
		return fmt.Sprintf("file descriptor %d is no dma-buf, or the range is outside it, or not in pages of %d", fd, os.Getpagesize())
	}
	return ""
}
