//! The library, as the tests of an operator use it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod control;
mod forks;
mod kube_rs;
mod node_failure;
mod node_leases;
mod volumes;
