package check

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dir = "../kubernetes/"

func TestManifestsHoldTogether(t *testing.T) {
	files, err := filepath.Glob(dir + "*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%d manifests in %s, want 4 (%v)", len(files), dir, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			m, err := read(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range violations(m) {
				t.Error(v)
			}
			if want := strings.HasSuffix(f, "-nonroot.yaml"); m.nonRoot() != want {
				t.Errorf("runs as an ordinary user: %t, want %t", m.nonRoot(), want)
			}
			if set := strings.Contains(f, "jobset"); (m.set != nil) != set {
				t.Errorf("is a JobSet: %t, want %t", m.set != nil, set)
			}
		})
	}
}

// The commands make the secret that the manifests mount, and name files that there are.
func TestReadmeMakesTheSecret(t *testing.T) {
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	made := regexp.MustCompile(`kubectl create secret generic (\S+) --from-file=(\S+)=/dev/stdin`).FindStringSubmatch(string(b))
	if want := []string{secretName, secretKey}; made == nil || !slices.Equal(made[1:], want) {
		t.Errorf("README.md makes %q, want %q", made, want)
	}
	applied := regexp.MustCompile(`kubectl apply -f deploy/(\S+)`).FindAllStringSubmatch(string(b), -1)
	if len(applied) == 0 {
		t.Error("README.md applies nothing")
	}
	for _, a := range applied {
		if _, err := os.Stat("../" + a[1]); err != nil {
			t.Error(err)
		}
	}
}

// Each edit makes a manifest that a job could not run with, and that must be found.
func TestMistakesAreFound(t *testing.T) {
	for _, e := range []struct{ file, old, new, want string }{
		{"job.yaml", "backoffLimit: 0", "backoffLimits: 0", `unknown field "spec.backoffLimits"`},
		{"job.yaml", "completions: 4", "completions: 4\n  completions: 4", `key "completions" already set`},
		{"jobset.yaml", "enableDNSHostnames", "enableDNSHostname", "unknown field"},
		{"job.yaml", "kind: Service\n", "kind: ServiceAccount\n", "unknown field"},
		{"job.yaml", "backoffLimit: 0", "backoffLimit: 1", "backoffLimit is not 0"},
		{"job.yaml", "  parallelism: 4", "  parallelism: 2", "parallelism and IBCONDUIT_SIZE=4 differ"},
		{"job.yaml", "  completions: 4", "  completions: 8", "completions and IBCONDUIT_SIZE=4 differ"},
		{"job.yaml", `IBCONDUIT_SIZE, value: "4"`, `IBCONDUIT_SIZE, value: "2"`, "IBCONDUIT_SIZE=2 differ"},
		{"job.yaml", "value: 10m", "value: 60s", "a pod may start minutes after the others"},
		{"job.yaml", "completionMode: Indexed", "completionMode: NonIndexed", "completionMode"},
		{"job.yaml", "subdomain: hello", "subdomain: hallo", "the service is hello, and the pods' subdomain hallo"},
		{"job.yaml", "hello-0.hello:7777", "hello-0.other:7777", "rank 0 is hello-0.hello"},
		{"job.yaml", "hello-0.hello:7777", "hello-1.hello:7777", "rank 0 is hello-0.hello"},
		{"job.yaml", "hello-0.hello:7777", "hello-0.hello:7778", "port is not IBCONDUIT_ADDR's"},
		{"job.yaml", "clusterIP: None", "type: ClusterIP", "headless"},
		{"job.yaml", "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "publishNotReadyAddresses"},
		{"job.yaml", "  selector: {app: hello}", "  selector: {app: hallo}", "the service chooses"},
		{"job.yaml", "containerPort: 7777", "containerPort: 7778", "the policy's port"},
		{"job.yaml", "podSelector: {matchLabels: {app: hello}}\n  policy", "podSelector: {}\n  policy", "the policy is of"},
		{"job.yaml", "secretName: hello", "secretName: hallo", "README.md makes hello"},
		{"job.yaml", "/secret/key", "/secret/kez", "IBCONDUIT_SECRET_FILE"},
		{"job.yaml", "restartPolicy: Never", "restartPolicy: OnFailure", "restartPolicy"},
		{"job.yaml", "add: [IPC_LOCK]", "add: [SYS_ADMIN]", "IPC_LOCK"},
		{"job.yaml", "drop: [ALL], ", "", "more than it needs"},
		{"job.yaml", "limits: {memory: 512Mi, rdma/hca: 1}", "limits: {memory: 512Mi}", "rdma/hca"},
		{"job.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token"},
		{"job-nonroot.yaml", ", fsGroup: 65532", "", "fsGroup"},
		{"job-nonroot.yaml", "defaultMode: 0440", "defaultMode: 0400", "mode is not 0440"},
		{"job-nonroot.yaml", "drop: [ALL]", "drop: [ALL], add: [IPC_LOCK]", "reaches no ordinary user"},
		{"job-nonroot.yaml", "runAsNonRoot: true, ", "", "whether the container is root's"},
		{"jobset.yaml", "hello-ranks-0-0.hello:", "hello-0.hello:", "rank 0 is hello-ranks-0-0.hello"},
		{"jobset.yaml", "enableDNSHostnames: true", "enableDNSHostnames: false", "enableDNSHostnames"},
		{"jobset.yaml", "publishNotReadyAddresses: true", "publishNotReadyAddresses: false", "publishNotReadyAddresses"},
		{"jobset.yaml", "maxRestarts: 0", "maxRestarts: 3", "maxRestarts"},
		{"jobset.yaml", "subdomain: hello", "subdomain: hallo", "rank 0 is hello-ranks-0-0.hallo"},
		{"jobset-nonroot.yaml", "replicas: 1", "replicas: 2", "want one of one"},
	} {
		b, err := os.ReadFile(dir + e.file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(b), e.old); n != 1 {
			t.Errorf("%s has %d of %q, want one to edit", e.file, n, e.old)
			continue
		}
		var found []string
		if m, err := parse([]byte(strings.Replace(string(b), e.old, e.new, 1))); err != nil {
			found = []string{err.Error()}
		} else {
			found = violations(m)
		}
		if !strings.Contains(strings.Join(found, "\n"), e.want) {
			t.Errorf("%s with %q: found %q, want %q", e.file, e.new, found, e.want)
		}
	}
}
