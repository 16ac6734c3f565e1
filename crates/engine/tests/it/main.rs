//! Writes through `Engine::handle`, against the memory store: one test for each promise of the pipeline.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "test code: a panic is a failure, a table is long"
)]

mod admission;
mod create;
mod delete;
mod env;
mod expiry;
mod late;
mod patch;
mod scale;
mod update;
mod webhook_conversion;

use env::Env;
