//! Every store backend: its laws, and what is left after faults and kills.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: a panic is a failure")]

mod compaction;
mod conformance;
mod crash;
mod faults;
mod format_content;
mod formats;
mod journal;
mod model;
mod model_based;
mod restore;
mod salvage;
mod scrub;
