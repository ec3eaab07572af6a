package conduit

import (
	"context"
	"fmt"
	"testing"
)

func TestSmoke(t *testing.T) {
	for _, n := range []int{1, 2, 5, 8} {
		err := RunLocal(context.Background(), n, func(j *Job) error {
			w, err := j.NewWorker()
			if err != nil {
				return err
			}
			defer w.Close()
			right := (j.Rank() + 1) % j.Size()
			if err := Put(w, At[int64](right, 64), int64(j.Rank())+100); err != nil {
				return err
			}
			if err := j.Barrier(t.Context()); err != nil {
				return err
			}
			v, err := Get(w, At[int64](j.Rank(), 64))
			if err != nil || v != int64((j.Rank()+j.Size()-1)%j.Size())+100 {
				return fmt.Errorf("got %d, %v", v, err)
			}
			if _, err := FetchAdd(w, At[int64](0, 128), 1); err != nil {
				return err
			}
			all, err := AllGatherValue(t.Context(), j, j.Rank())
			if err != nil {
				return err
			}
			for i, x := range all {
				if x != i {
					return fmt.Errorf("allgather %v", all)
				}
			}
			buf := make([]byte, 200000)
			if j.Rank() == 0 {
				for i := range buf {
					buf[i] = byte(i * 7)
				}
			}
			if err := j.Broadcast(t.Context(), 0, buf); err != nil {
				return err
			}
			for i := range buf {
				if buf[i] != byte(i*7) {
					return fmt.Errorf("broadcast at %d", i)
				}
			}
			s, err := Get(w, At[int64](0, 128))
			if err != nil || s != int64(j.Size()) {
				return fmt.Errorf("sum %d %v", s, err)
			}
			return j.Barrier(t.Context())
		})
		if err != nil {
			t.Fatal(n, err)
		}
	}
}

func BenchmarkPut8(b *testing.B) {
	_ = RunLocal(context.Background(), 2, func(j *Job) error {
		if j.Rank() == 0 {
			w, _ := j.NewWorker()
			defer w.Close()
			p := At[int64](1, 64)
			for b.Loop() {
				_ = Put(w, p, 1)
			}
		}
		return j.Barrier(context.Background())
	})
}
func BenchmarkGet8(b *testing.B) {
	_ = RunLocal(context.Background(), 2, func(j *Job) error {
		if j.Rank() == 0 {
			w, _ := j.NewWorker()
			defer w.Close()
			p := At[int64](1, 64)
			for b.Loop() {
				_, _ = Get(w, p)
			}
		}
		return j.Barrier(context.Background())
	})
}
