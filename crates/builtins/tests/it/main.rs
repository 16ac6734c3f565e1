//! What holds for every built-in kind.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod all;
