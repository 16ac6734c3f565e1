//! Writes through the engine's front door, against the memory store: one test for each promise of the pipeline.

#![allow(clippy::unwrap_used)]

mod admission;
mod create;
mod delete;
mod env;
mod expiry;
mod foreign;
mod late;
mod patch;
mod scale;
mod update;

use env::Env;
