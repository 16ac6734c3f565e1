//! The bridge network against the kernel: a node and its pods as network namespaces of the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod bridge;
mod cni;
mod support;
