//! Tests of the CRI backend against a runtime in this process, at a unix socket.

#![allow(clippy::unwrap_used)]

mod cni;
mod fake;
mod lifecycle;
mod sessions;
mod streaming_server;
