#include "textflag.h"

// The assembler's (TLS) is where the runtime keeps g (go doc: "A Quick Guide to Go's Assembler").

// func getg() uintptr
TEXT ·getg(SB), NOSPLIT, $0-8
	MOVQ	(TLS), AX
	MOVQ	AX, ret+0(FP)
	RET
