package sysinfo

import "strings"

// Distro is the distribution, as os-release(5) has it.
type Distro struct {
	Name string // "Debian GNU/Linux 12 (bookworm)"
	ID   string
	Like []string // IDs of the distributions it derives from
}

// Distro reads /etc/os-release, else /usr/lib/os-release.
func (r Root) Distro() Distro {
	text := r.Text("/etc/os-release")
	if text == "" {
		text = r.Text("/usr/lib/os-release")
	}
	v := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, val, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			v[k] = strings.Trim(val, `"'`)
		}
	}
	d := Distro{Name: v["PRETTY_NAME"], ID: v["ID"], Like: strings.Fields(v["ID_LIKE"])}
	if d.Name == "" {
		d.Name = "unknown distribution"
	}
	return d
}

// Is reports whether the distribution is, or derives from, one of ids.
func (d Distro) Is(ids ...string) bool {
	for _, id := range ids {
		if d.ID == id {
			return true
		}
		for _, l := range d.Like {
			if l == id {
				return true
			}
		}
	}
	return false
}

// Container names the kind of container that the process is in, "" for none.
func (r Root) Container(getenv func(string) string) string {
	switch {
	case getenv("KUBERNETES_SERVICE_HOST") != "" || r.Exists("/var/run/secrets/kubernetes.io/serviceaccount"):
		return "Kubernetes pod"
	case r.Exists("/.dockerenv"):
		return "Docker container"
	case r.Exists("/run/.containerenv"):
		return "Podman container"
	case getenv("SINGULARITY_NAME") != "" || getenv("APPTAINER_NAME") != "":
		return "Apptainer container"
	case getenv("container") != "":
		return getenv("container") + " container"
	}
	return ""
}

// WSL reports whether the kernel is the one of the Windows Subsystem for Linux.
func WSL(kernel string) bool { return strings.Contains(strings.ToLower(kernel), "microsoft") }
