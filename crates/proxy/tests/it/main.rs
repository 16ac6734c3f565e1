//! The service proxy and network policies: pure parts with fixtures, and rules in network namespaces of the tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod follow;
mod health;
mod policies;
mod rules;
mod scale;
mod support;
mod traffic;
