//! Real containers of the built-in runtime. They need root, overlayfs, and a static busybox.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "test code: a panic is a failure"
)]

mod common;
mod confinement;
mod devices;
mod escapes;
mod late_exec;
mod lifecycle;
mod recovery;
mod streams;
mod user_namespaces;
