package measure

import (
	"context"
	"sync"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
)

// Over is a bootstrap by way of a job: the ranks of the job make another one. A launcher lets a
// process join once.
type Over struct {
	job  *conduit.Job
	boot bootstrap.Bootstrap // of the job, which knows the host
	id   string
	lost chan bootstrap.Loss
	end  sync.Once
}

// NewOver makes one. The job stays the owner of what it uses.
func NewOver(job *conduit.Job, boot bootstrap.Bootstrap, name string) *Over {
	return &Over{job: job, boot: boot, id: job.ID() + "-" + name, lost: make(chan bootstrap.Loss)}
}

func (o *Over) Rank() int                        { return o.job.Rank() }
func (o *Over) Size() int                        { return o.job.Size() }
func (o *Over) JobID() string                    { return o.id }
func (o *Over) Name() string                     { return "over another job" }
func (o *Over) Local() (rank, size int, ok bool) { return o.boot.Local() }

func (o *Over) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	return o.job.AllGather(ctx, blob)
}

func (o *Over) Barrier(ctx context.Context) error { return o.job.Barrier(ctx) }
func (o *Over) Abort(code int, msg string)        { o.job.Abort(code, msg) }

// Lost delivers nothing: session.watch looks after the job below.
func (o *Over) Lost() <-chan bootstrap.Loss { return o.lost }

func (o *Over) Fail(error) error  { return o.Close() }
func (o *Over) Leave(error) error { return o.Close() }

func (o *Over) Close() error {
	o.end.Do(func() { close(o.lost) })
	return nil
}
