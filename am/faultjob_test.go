//go:build amfault

package am

// Plant sets the fault of the tests of package am_test.
func Plant(name string) (undo func()) {
	planted = map[string]fault{"reply takes credit": replyTakesCredit, "no look": noLook, "no hand-over": noHandOver, "no poll": noPoll,
		"spare late": spareLate, "double return": doubleReturn, "none": noFault}[name]
	return func() { planted = noFault }
}
