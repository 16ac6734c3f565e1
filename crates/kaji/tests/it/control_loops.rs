//! What control loops do for users, seen over the API of a whole cluster with simulated nodes.

mod autoscaling;
mod disruption;
mod service_ranges;
