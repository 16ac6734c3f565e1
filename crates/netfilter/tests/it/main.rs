//! The encoder against fixtures, and against the kernel in network namespaces of the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod conntrack;
mod encoding;
mod kernel;
