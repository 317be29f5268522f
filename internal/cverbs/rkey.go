package cverbs

// IncRKey stands for ibv_inc_rkey: the next rkey that a window may have. Its low byte
// counts, and wraps.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }
