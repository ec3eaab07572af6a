package launch

import (
	"io"
	"os"
	"os/exec"
)

// nothing gives a command, in the place of standard files that it lacks, the ends of pipes, the
// other ends of which are closed, where there is no /dev/null, which os/exec would take: an empty
// image has no /dev. forget closes them once the command runs.
func nothing(cmd *exec.Cmd) (forget func(), err error) {
	var ends []*os.File
	forget = func() {
		for _, f := range ends {
			_ = f.Close()
		}
	}
	if cmd.Stdin != nil && cmd.Stdout != nil && cmd.Stderr != nil {
		return forget, nil
	}
	if f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
		return forget, f.Close()
	}
	if cmd.Stdin == nil {
		r, w, err := os.Pipe()
		if err != nil {
			return forget, err
		}
		_ = w.Close()
		cmd.Stdin, ends = r, append(ends, r)
	}
	for _, to := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		if *to != nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return forget, err
		}
		_ = r.Close()
		*to, ends = w, append(ends, w)
	}
	return forget, nil
}
