package conduit

// Info describes a job to those who watch it. It does not change, and is valid
// after Close.
type Info struct {
	ID        string   // the launcher's name for the job
	Rank      int      // of this process
	Size      int      // ranks of the job
	Bootstrap string   // how the job was found: "pmi1 (PMI_FD)"
	Networks  []string // in use by this rank, fastest first
	Devices   []DevicePort
}

// DevicePort is a port of a verbs device that a job uses.
type DevicePort struct {
	Device string // "mlx5_0"
	Port   int    // from 1
}

// Info describes the job.
func (j *Job) Info() Info {
	i := Info{ID: j.ID(), Rank: j.rank, Size: j.size, Bootstrap: j.boot.Name(), Networks: j.networkNames()}
	for _, n := range j.networks {
		if d, ok := n.(interface {
			Device() string
			Port() int
		}); ok {
			i.Devices = append(i.Devices, DevicePort{Device: d.Device(), Port: d.Port()})
		}
	}
	return i
}

// OpenWorkers is how many workers are open.
func (j *Job) OpenWorkers() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.workers)
}
