//go:build cgo && linux && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

/*
 * What benchmarks compare with: the least that a call costs, and the loop that a
 * program in C would be.
 */

#include "yardstick.h"

uint64_t fd_bare(uintptr_t a, uintptr_t b, uint32_t c)
{
	return a + b + c;
}

struct ibv_qp *fd_yard_qp(struct fd_device *d, uint32_t qpn)
{
	FD_LOCKED(d);
	struct fd_qp *qp = (struct fd_qp *)fd_find(d, FD_QP, qpn);

	return qp ? &qp->ibv : NULL;
}

/* Posts WRs in batches of n with k SGEs each and polls their completions, total times. */
int fd_loop(struct ibv_qp *qp, uint64_t total, uint32_t n, uint32_t k, uint64_t addr, uint32_t lkey)
{
	struct ibv_send_wr wrs[FD_YARD_BATCH], *bad;
	struct ibv_sge sges[FD_YARD_BATCH][FD_YARD_SGES];
	struct ibv_wc wcs[FD_YARD_BATCH];

	if (n > FD_YARD_BATCH || k > FD_YARD_SGES)
		return EINVAL;
	for (uint64_t done = 0; done < total; done += n) {
		for (uint32_t i = 0; i < n; i++) {
			for (uint32_t j = 0; j < k; j++)
				sges[i][j] = (struct ibv_sge){ .addr = addr + 64 * i, .length = 64, .lkey = lkey };
			wrs[i] = (struct ibv_send_wr){
				.wr_id = done + i,
				.next = i + 1 < n ? &wrs[i + 1] : NULL,
				.sg_list = sges[i],
				.num_sge = k,
				.opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED,
			};
		}
		int rc = ibv_post_send(qp, wrs, &bad);

		if (rc)
			return rc;
		for (uint32_t got = 0; got < n;) {
			int m = ibv_poll_cq(qp->send_cq, n - got, wcs);

			if (m <= 0)
				return EIO;
			for (int i = 0; i < m; i++)
				if (wcs[i].status || wcs[i].wr_id != done + got + i)
					return EPROTO;
			got += m;
		}
	}
	return 0;
}
