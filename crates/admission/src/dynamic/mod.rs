//! Admission that objects of the cluster configure: what webhooks and policies share.
//!
//! Invariant: a configuration counts from the moment that its write is acknowledged.

#![allow(dead_code, reason = "webhooks and policies follow")]

pub(crate) mod matching;
#[cfg(test)]
pub(crate) mod testing;
