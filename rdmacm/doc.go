// Package rdmacm will bind librdmacm, the RDMA connection manager: connections by IP
// address instead of parameters that the two programs exchange by themselves.
//
// It exports nothing yet. Until then connect queue pairs with package ibv:
// ibv.QP.Init, ibv.LocalEndpoint.Exchange and ibv.QP.Connect.
package rdmacm
