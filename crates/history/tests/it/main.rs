//! Tests of the history: its files, and what is recorded of a store.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod archive;
mod changes;
mod idle;
mod recording;
