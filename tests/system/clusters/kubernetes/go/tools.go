//go:build tools

// Names what is built here, so that Go keeps it among the requirements. The module itself can't be installed, because its parts
// are in its own tree; go.mod maps them to their released versions.
package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
