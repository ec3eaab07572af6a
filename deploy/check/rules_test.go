package check

import (
	"fmt"
	"net"
	"path"
	"reflect"
	"strconv"
	"time"

	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// label is what all pods of a job have, and its service and policy choose.
const label = "app"

// violations are what a cluster would accept, and no job would run with.
func violations(m *manifest) (all []string) {
	says := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if len(m.pod().Containers) != 1 || len(m.pod().InitContainers) > 0 {
		says("a pod has %d containers, want one", len(m.pod().Containers))
		return all
	}
	m.checkSize(says)
	m.checkNames(says)
	m.checkPolicy(says)
	m.checkSecret(says)
	m.checkEnds(says)
	m.checkDevice(says)
	return all
}

type complaint func(format string, args ...any)

func (m *manifest) checkSize(says complaint) {
	if m.job.CompletionMode == nil || *m.job.CompletionMode != batch.IndexedCompletion {
		says("completionMode is not Indexed: no pod has a rank")
	}
	size := m.env("IBCONDUIT_SIZE")
	for name, v := range map[string]*int32{"completions": m.job.Completions, "parallelism": m.job.Parallelism} {
		if v == nil || strconv.Itoa(int(*v)) != size {
			says("%s and IBCONDUIT_SIZE=%s differ", name, size)
		}
	}
	if d, err := time.ParseDuration(m.env("IBCONDUIT_JOIN_TIMEOUT")); err != nil || d < 5*time.Minute {
		says("IBCONDUIT_JOIN_TIMEOUT=%s: a pod may start minutes after the others", m.env("IBCONDUIT_JOIN_TIMEOUT"))
	}
}

// checkNames: the address is rank 0's name in the service's domain, and a port that is open.
func (m *manifest) checkNames(says complaint) {
	host, port, err := net.SplitHostPort(m.env("IBCONDUIT_ADDR"))
	if err != nil {
		says("IBCONDUIT_ADDR: %v", err)
	}
	if want := m.rankName() + "." + m.subdomain(); host != want {
		says("IBCONDUIT_ADDR names the host %s, and rank 0 is %s", host, want)
	}
	if ports := m.rank().Ports; len(ports) != 1 || strconv.Itoa(int(ports[0].ContainerPort)) != port {
		says("the container's port is not IBCONDUIT_ADDR's")
	}
	labels := m.job.Template.Labels
	if m.set != nil {
		n := m.set.Spec.Network
		if n == nil || n.EnableDNSHostnames == nil || !*n.EnableDNSHostnames {
			says("enableDNSHostnames is not set: rank 0 has no name")
		}
		if n == nil || n.PublishNotReadyAddresses == nil || !*n.PublishNotReadyAddresses {
			says("publishNotReadyAddresses is not set: ranks meet before any is ready")
		}
		if m.pod().Subdomain != "" || m.service != nil {
			says("the JobSet makes the service, and the pods' subdomain")
		}
		return
	}
	s := m.service
	if s == nil {
		says("there is no service")
		return
	}
	if s.Name != m.subdomain() {
		says("the service is %s, and the pods' subdomain %s", s.Name, m.subdomain())
	}
	if s.Spec.ClusterIP != core.ClusterIPNone {
		says("the service is not headless: rank 0 would have its address")
	}
	if !s.Spec.PublishNotReadyAddresses {
		says("publishNotReadyAddresses is not set: ranks meet before any is ready")
	}
	if len(s.Spec.Selector) != 1 || labels[label] == "" || s.Spec.Selector[label] != labels[label] {
		says("the service chooses %v, and the pods have %v", s.Spec.Selector, labels)
	}
	if len(s.Spec.Ports) != 1 || strconv.Itoa(int(s.Spec.Ports[0].Port)) != port {
		says("the service's port is not IBCONDUIT_ADDR's")
	}
}

// checkPolicy: it is of the ranks, who may reach each other and a name server, and nothing else.
func (m *manifest) checkPolicy(says complaint) {
	ranks := map[string]string{label: m.job.Template.Labels[label]}
	if ranks[label] == "" || !reflect.DeepEqual(m.policy.Spec.PodSelector.MatchLabels, ranks) {
		says("the policy is of %v, and the pods have %v", m.policy.Spec.PodSelector.MatchLabels, ranks)
	}
	in, out := m.policy.Spec.Ingress, m.policy.Spec.Egress
	if len(m.policy.Spec.PolicyTypes) != 2 || len(in) != 1 || len(out) != 2 {
		says("the policy is not one of both directions, with a rule in and two out")
		return
	}
	for _, r := range []struct {
		peers []networking.NetworkPolicyPeer
		ports []networking.NetworkPolicyPort
	}{{in[0].From, in[0].Ports}, {out[0].To, out[0].Ports}} {
		if len(r.peers) != 1 || r.peers[0].PodSelector == nil || r.peers[0].NamespaceSelector != nil || !reflect.DeepEqual(r.peers[0].PodSelector.MatchLabels, ranks) {
			says("the policy lets others than the ranks in, or not them")
		}
		if len(r.ports) != 1 || len(m.rank().Ports) != 1 || *r.ports[0].Port != intstr.FromInt32(m.rank().Ports[0].ContainerPort) {
			says("the policy's port is not the container's")
		}
	}
	if len(out[1].Ports) != 2 || out[1].Ports[0].Port.IntValue() != 53 || out[1].Ports[1].Port.IntValue() != 53 {
		says("the policy lets no rank ask a name server")
	}
}

// secretName and secretKey are those that README.md makes.
const secretName, secretKey = "hello", "key"

func (m *manifest) checkSecret(says complaint) {
	volumes, mounts := m.pod().Volumes, m.rank().VolumeMounts
	if len(volumes) != 1 || len(mounts) != 1 || volumes[0].Name != mounts[0].Name || volumes[0].Secret == nil {
		says("the secret is not what is mounted")
		return
	}
	if got := volumes[0].Secret.SecretName; got != secretName {
		says("the secret is %s, and README.md makes %s", got, secretName)
	}
	if want := path.Join(mounts[0].MountPath, secretKey); m.env("IBCONDUIT_SECRET_FILE") != want || !mounts[0].ReadOnly {
		says("IBCONDUIT_SECRET_FILE is not %s, or can be written", want)
	}
	mode := int32(0o400) // root's own
	if m.nonRoot() {
		mode = 0o440 // of the pod's group
		if g := m.pod().SecurityContext.FSGroup; g == nil {
			says("no fsGroup: an ordinary user cannot read the secret")
		}
	}
	if got := volumes[0].Secret.DefaultMode; got == nil || *got != mode {
		says("the secret's mode is not %#o", mode)
	}
}

// checkEnds: a rank that ends is not started again by itself, as it could not rejoin.
func (m *manifest) checkEnds(says complaint) {
	if m.job.BackoffLimit == nil || *m.job.BackoffLimit != 0 || m.job.BackoffLimitPerIndex != nil {
		says("backoffLimit is not 0")
	}
	if m.pod().RestartPolicy != core.RestartPolicyNever {
		says("restartPolicy is not Never")
	}
	if m.set != nil && (m.set.Spec.FailurePolicy == nil || m.set.Spec.FailurePolicy.MaxRestarts != 0) {
		says("maxRestarts is not 0")
	}
}

func (m *manifest) nonRoot() bool {
	s := m.pod().SecurityContext
	return s != nil && s.RunAsNonRoot != nil && *s.RunAsNonRoot && s.RunAsUser != nil && *s.RunAsUser > 0
}

// checkDevice: the device is asked for as such things must be, and nothing more is let in than the
// capability that only root gains by.
func (m *manifest) checkDevice(says complaint) {
	r := m.rank().Resources
	device, ok := r.Limits["rdma/hca"]
	if request := r.Requests["rdma/hca"]; !ok || device.Value() != 1 || request.Cmp(device) != 0 {
		says("the limit of rdma/hca is not 1, or not what is requested")
	}
	if limit, request := r.Limits[core.ResourceMemory], r.Requests[core.ResourceMemory]; limit.IsZero() || limit.Cmp(request) != 0 {
		says("the limit of memory is not what is requested")
	}
	s := m.rank().SecurityContext
	if s == nil || s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !reflect.DeepEqual(s.Capabilities.Drop, []core.Capability{"ALL"}) {
		says("the container may have more than it needs")
		return
	}
	root := s.RunAsUser != nil && *s.RunAsUser == 0
	switch {
	case root == m.nonRoot():
		says("it is not said whether the container is root's")
	case root && !reflect.DeepEqual(s.Capabilities.Add, []core.Capability{"IPC_LOCK"}):
		says("root has not the capability IPC_LOCK, and no other one")
	case !root && len(s.Capabilities.Add) > 0:
		says("a capability reaches no ordinary user")
	}
	if p := m.pod(); p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken || p.ServiceAccountName != "" || p.HostNetwork || p.HostPID || p.HostIPC {
		says("the pod has a token of the cluster, or a part of the host")
	}
}
