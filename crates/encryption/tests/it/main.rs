//! Encryption at rest through the public interface of the crate.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod conformance;
mod kms;
mod plugin;
mod reload;
