// Package metrics shows a job to Prometheus.
//
// A job counts always, in plain words that its data path increments. This
// package reads them at a scrape, and at no other time: a program that
// is not scraped pays nothing for it.
//
//	s, err := metrics.ServeEnv(job)            // as IBCONDUIT_METRICS says, or not at all
//	c := metrics.NewCollector(job)
//	go metrics.Serve(ctx, ":9464", c)          // or: registry.MustRegister(c)
//
// # Labels
//
// Every series of a job has the labels job_id (the launcher's name for the job)
// and rank; a process has one of each per job, so they add no cardinality to
// the target itself. Where an operation can travel by several networks the
// label network names it. What describes a job, its size for instance, are
// labels of ibconduit_job_info alone.
//
// # Messages
//
// ibconduit_message_... count the active messages of a job that has handlers, summed over its
// message lanes; ibconduit_message_port_... the network's work for them. Of the identities that
// am.Stats.Check holds: calls sent = calls ended + calls in flight; message_port_rnr_total is 0.
// ibconduit_library_message_... are the same for messages of the library's own parts, in a job
// with such parts.
//
// # Shared heaps
//
// ibconduit_heap_... are the heaps of a job with Config.HeapSize. The figures of the global heap,
// and of the boundary between the heaps, rank 0 knows: the other ranks have no such series.
//
// # Ports
//
// ibconduit_port_... are read from the kernel for the ports that the job's
// networks use. A port counts the traffic of everybody on the host: take max by
// (host, device, port) over the ranks of a host, not the sum; ServeEnv gives targets the label
// host. Which counters there are depends on the driver; one that cannot be read is left out.
//
// # Lifetime
//
// Counters of closed workers stay in the sums, so that no counter ever goes
// back. A scrape during or after Close shows what there was until then.
//
// # More sources
//
// Packages that count something of their own are attached with
// [Collector.Add]; they need not know of Prometheus.
package metrics
