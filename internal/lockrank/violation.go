package lockrank

// Violation is what a check of the debug build panics with.
type Violation struct {
	Rule Rule
	Text string // which locks, where they were taken, and what to do
}

// Rule is one of the rules of the package comment.
type Rule string

// The rules.
const (
	Inversion      Rule = "lock order"            // taken although a lock of the same or a higher rank is held
	NotHeld        Rule = "unlock by a stranger"  // unlocked by a goroutine that does not hold it
	HeldInWait     Rule = "wait with a lock held" // MustHoldNone
	InHandler      Rule = "communication from a handler"
	HeldByHandler  Rule = "lock left by a handler"
	NotInHandler   Rule = "end of no handler" // LeaveHandler without EnterHandler
	NotInitialised Rule = "lock without a rank"
)

func (v *Violation) Error() string { return "lockrank: " + string(v.Rule) + ": " + v.Text }
