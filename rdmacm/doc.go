// Package rdmacm binds librdmacm, the RDMA connection manager: connections by IP address
// and port instead of parameters that the two programs exchange by themselves.
package rdmacm
