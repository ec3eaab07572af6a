package sim

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the processor time of the process.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkMessages(b *testing.B) {
	for _, c := range []struct {
		name  string
		ranks int
		m     mail
	}{
		{"ranks=2", 2, mail{batch: 16, size: 32, slots: 64}},
		{"ranks=100", 100, mail{batch: 16, size: 32, slots: 64}},
		{"ranks=10000", 10000, mail{batch: 16, size: 32, slots: 64}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, Config{Ranks: c.ranks, Seed: 1, Connections: 0})
			m := c.m
			m.count = max(1, b.N/c.ranks)
			b.ResetTimer()
			before := cpu()
			if err := m.run(w); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(m.count*c.ranks)/b.Elapsed().Seconds(), "messages/s")
			b.ReportMetric(float64(w.Events())/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(cpu()-before)/float64(m.count*c.ranks), "cpu-ns/message")
			b.ReportMetric(float64(w.RNR()), "rnr")
		})
	}
}
