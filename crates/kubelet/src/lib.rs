//! Pods on nodes. For now simulated ones: `fake` reports what a kubelet would report, and runs nothing. `serve` is how a
//! kubelet is asked, simulated or not.

pub mod fake;
pub mod serve;
