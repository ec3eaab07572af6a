package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// manifest is a file: one Job, or one JobSet of one job, with what it needs.
type manifest struct {
	name    string // of the Job or JobSet
	job     *batch.JobSpec
	policy  *networking.NetworkPolicy
	service *core.Service  // nil: the JobSet makes it
	set     *jobset.JobSet // nil: it is a Job
}

// decoder knows what a manifest may hold: no role, no account and no secret is among it. A field
// that a kind does not have, or has twice, is an error.
func decoder() (runtime.Decoder, error) {
	s := runtime.NewScheme()
	err := errors.Join(batch.AddToScheme(s), core.AddToScheme(s), networking.AddToScheme(s), jobset.AddToScheme(s))
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer(), err
}

func read(path string) (*manifest, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(b)
}

func parse(b []byte) (*manifest, error) {
	strict, err := decoder()
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	for docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(b))); ; {
		doc := make([]byte, len(b))
		n, err := docs.Read(doc)
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		object, _, err := strict.Decode(doc[:n], nil, nil)
		if err != nil {
			return nil, err
		}
		if err := m.add(object); err != nil {
			return nil, err
		}
	}
	if m.job == nil || m.policy == nil {
		return nil, fmt.Errorf("there is no job, or no network policy: %+v", m)
	}
	return m, nil
}

func (m *manifest) add(object runtime.Object) error {
	switch o := object.(type) {
	case *core.Service:
		m.service = o
	case *networking.NetworkPolicy:
		m.policy = o
	case *batch.Job:
		m.name, m.job = o.Name, &o.Spec
	case *jobset.JobSet:
		if n := len(o.Spec.ReplicatedJobs); n != 1 || o.Spec.ReplicatedJobs[0].Replicas != 1 {
			return fmt.Errorf("the JobSet has %d kinds of jobs, want one of one", n)
		}
		m.name, m.job, m.set = o.Name, &o.Spec.ReplicatedJobs[0].Template.Spec, o
	default:
		return fmt.Errorf("a %v is not expected here", reflect.TypeOf(object))
	}
	return nil
}

// rankName is the name that the pod of rank 0 has: Indexed Jobs call it JOB-0, those of a JobSet
// SET-JOB-0-0.
func (m *manifest) rankName() string {
	if m.set != nil {
		return fmt.Sprintf("%s-%s-0-0", m.name, m.set.Spec.ReplicatedJobs[0].Name)
	}
	return m.name + "-0"
}

func (m *manifest) pod() *core.PodSpec { return &m.job.Template.Spec }

func (m *manifest) rank() *core.Container { return &m.pod().Containers[0] }

func (m *manifest) env(name string) string {
	for _, e := range m.rank().Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// subdomain is the name of the headless service.
func (m *manifest) subdomain() string {
	if m.set != nil {
		if m.set.Spec.Network == nil {
			return ""
		}
		return m.set.Spec.Network.Subdomain
	}
	return m.pod().Subdomain
}
