package am

// fault is a mistake that tests plant, to see that they would find it. Without the tag
// amfault planted is a constant, and the compiler removes all of it.
type fault int

const (
	noFault          fault = iota
	replyTakesCredit       // two ranks that call one another stand still
	spareLate              // handlers run before the buffers of their messages are posted again
	doubleReturn           // a death frees the entry of a call twice
	noLook                 // a waiter sleeps without a last look at what it joined a queue for
	noHandOver             // who leads leaves without a word
	noPoll                 // a wait does not poll
)
