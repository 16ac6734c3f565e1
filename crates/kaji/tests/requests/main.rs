//! What a request means: its path, query and headers are read once, so that what is authorized is what is carried out.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

#[path = "../common/mod.rs"]
mod common;
mod queries;
