#ifndef YARDSTICK_H
#define YARDSTICK_H

#include "fakedev.h"

enum { FD_YARD_BATCH = 64, FD_YARD_SGES = 4 };

uint64_t fd_bare(uintptr_t a, uintptr_t b, uint32_t c);
struct ibv_qp *fd_yard_qp(struct fd_device *d, uint32_t qpn);
int fd_loop(struct ibv_qp *qp, uint64_t total, uint32_t n, uint32_t k, uint64_t addr, uint32_t lkey);

#endif
