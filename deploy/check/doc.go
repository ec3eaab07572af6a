// Package check holds what deploy/kubernetes must be: it decodes the manifests with Kubernetes's
// own strict decoders, and tries that what belongs together agrees. It is a module of its own, as
// no user of the library should need Kubernetes's types.
package check
