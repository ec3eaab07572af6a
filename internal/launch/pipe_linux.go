package launch

import "os"

// pipe is a rank's standard output or standard error on its way.
type pipe struct {
	fd   int      // of the rank: 1 or 2
	ours *os.File // the end that is read here
	to   outputWriter
}

// copy passes on what comes until the end of the pipe, or until a deadline. Data written
// by then are still taken, however long the destination lets them wait, but no more: a process that
// goes on writing may be no rank's.
func (p *pipe) copy(s outputWriter) {
	takeAll(s, p.ours)
	for left := available(p.ours); left > 0; {
		buf := make([]byte, min(left, 32<<10))
		n := readNow(p.ours, buf)
		if n <= 0 {
			break
		}
		left -= n
		s.take(buf[:n])
	}
	s.flush()
}
