package bootstrap

// Detection is how New would join a job.
type Detection struct {
	// Name is what Bootstrap.Name would be, as "pmi1 (PMI_FD)".
	Name string
}

// Detect says how New would join, without joining. The error is the one that New would return
// for these variables.
func Detect(opts Options) (Detection, error) {
	found, err := detect(opts.withDefaults().Lookup, "./prog")
	return Detection{Name: found.name()}, err
}
