//! The store against a real etcd, which the tests start on the loopback; without `etcd` in the PATH they are skipped.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod lost_answers;
mod suite;
