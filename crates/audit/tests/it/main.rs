//! Audit policies and events through the public interface of the crate.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod events;
mod policy;
