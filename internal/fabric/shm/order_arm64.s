#include "textflag.h"

// The operand is CRm of DMB: 9 ISHLD, 10 ISHST, 11 ISH (Arm ARM §C6.2, DMB).

// func orderStores()
TEXT ·orderStores(SB), NOSPLIT, $0-0
	DMB	$10
	RET

// func orderLoads()
TEXT ·orderLoads(SB), NOSPLIT, $0-0
	DMB	$9
	RET

// func fullFence()
TEXT ·fullFence(SB), NOSPLIT, $0-0
	DMB	$11
	RET
