//! What holds for every built-in kind.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "test code: a panic is a failure, a table is long"
)]

mod all;
mod any;
