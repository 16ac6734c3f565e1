//! Pods on nodes. For now simulated ones: `fake` reports what a kubelet would report, and runs nothing.

pub mod fake;
