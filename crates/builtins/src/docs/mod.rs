//! Field documentation for `kubectl explain`, taken at run time from `k8s-openapi`.
