module github.com/kaji-k8s/kaji/tests/components/argo-cd

go 1.26.0

require (
	github.com/argoproj/argo-cd/v3 v3.2.11
	open-cluster-management.io/api v0.5.0
)
