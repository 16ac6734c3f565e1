//! Sessions over in-memory connections: hyper serves the upgrade requests, and small clients speak the protocols.

#![allow(clippy::unwrap_used)]

mod client;
mod port_forward;
mod process;
mod refusals;
mod remote_command;
