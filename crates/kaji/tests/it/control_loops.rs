//! What control loops do for users, seen over the API of a whole cluster with simulated nodes.

mod adoption;
mod autoscaling;
mod cloud;
mod device_claims;
mod disruption;
mod gang;
mod nomination;
mod queue_metrics;
mod server_alone;
mod service_ranges;
