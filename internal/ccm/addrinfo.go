//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ccm

// #include "shims.h"
import "C"

import "unsafe"

// GetAddrInfo stands for rdma_getaddrinfo and rdma_freeaddrinfo. node and service are
// numbers, so that no name has to be looked up; an empty node is none.
func GetAddrInfo(node, service string, hints AddrInfo) ([]AddrInfo, error) {
	var host *C.char
	if node != "" {
		host = C.CString(node)
		defer C.free(unsafe.Pointer(host))
	}
	port := C.CString(service)
	defer C.free(unsafe.Pointer(port))
	src := addrToC(hints.Src)
	var list *C.struct_rdma_addrinfo
	err := errnoOf(C.gv_getaddrinfo(host, port, C.int(hints.Flags), C.int(hints.Family), C.int(hints.QPType),
		C.int(hints.PortSpace), &src, &list))
	if err != nil {
		return nil, err
	}
	defer C.rdma_freeaddrinfo(list)
	var infos []AddrInfo
	for c := list; c != nil; c = c.ai_next {
		infos = append(infos, AddrInfo{
			Flags:     int32(c.ai_flags),
			Family:    int32(c.ai_family),
			QPType:    int32(c.ai_qp_type),
			PortSpace: int32(c.ai_port_space),
			Src:       sockaddr(c.ai_src_addr),
			Dst:       sockaddr(c.ai_dst_addr),
			Route:     bytesOf(c.ai_route, c.ai_route_len),
			Connect:   bytesOf(c.ai_connect, c.ai_connect_len),
		})
	}
	return infos, nil
}

func bytesOf(p unsafe.Pointer, n C.size_t) []byte {
	if n == 0 {
		return nil
	}
	return C.GoBytes(p, C.int(n))
}

func sockaddr(s *C.struct_sockaddr) Addr {
	var c C.struct_gv_addr
	C.gv_from_sockaddr(s, &c)
	return addrFromC(&c)
}
