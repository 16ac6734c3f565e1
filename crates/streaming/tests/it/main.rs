//! Sessions over in-memory connections: hyper serves the upgrade requests, and small clients speak the protocols.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod client;
mod kubectl;
mod port_forward;
mod process;
mod refusals;
mod remote_command;
