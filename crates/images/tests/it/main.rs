//! Integration tests of images: the store, archives, pulls from a registry in this process.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod archives;
mod pulls;
mod registry_server;
mod samples;
