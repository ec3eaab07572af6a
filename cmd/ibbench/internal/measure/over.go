package measure

import (
	"context"
	"sync"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
)

// over is a bootstrap by way of a job: the ranks of the job make another one. A launcher lets a
// process join once.
type over struct {
	job  *conduit.Job
	boot bootstrap.Bootstrap // of the job, which knows the host
	id   string
	lost chan bootstrap.Loss
	end  sync.Once
}

func newOver(job *conduit.Job, boot bootstrap.Bootstrap, name string) *over {
	return &over{job: job, boot: boot, id: job.ID() + "-" + name, lost: make(chan bootstrap.Loss)}
}

func (o *over) Rank() int                        { return o.job.Rank() }
func (o *over) Size() int                        { return o.job.Size() }
func (o *over) JobID() string                    { return o.id }
func (o *over) Name() string                     { return "over another job" }
func (o *over) Local() (rank, size int, ok bool) { return o.boot.Local() }

func (o *over) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	return o.job.AllGather(ctx, blob)
}

func (o *over) Barrier(ctx context.Context) error { return o.job.Barrier(ctx) }
func (o *over) Abort(code int, msg string)        { o.job.Abort(code, msg) }

// Lost delivers nothing: session.watch looks after the job below.
func (o *over) Lost() <-chan bootstrap.Loss { return o.lost }

func (o *over) Fail(error) error  { return o.Close() }
func (o *over) Leave(error) error { return o.Close() }

func (o *over) Close() error {
	o.end.Do(func() { close(o.lost) })
	return nil
}
