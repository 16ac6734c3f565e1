//! Helpers that the tests of several crates share: JSON generators, killed processes, header fixtures, pages of metrics, ports, waiting.
//!
//! Invariants: the crate is a development dependency only and depends on no other crate of the workspace, so that every
//! crate can use it; nothing here waits without a deadline.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

pub mod etcd;
pub mod headers;
pub mod json;
#[cfg(target_os = "linux")]
pub mod netns;
pub mod ports;
pub mod process;
pub mod skip;
pub mod text_format;
pub mod wait;
