//! Admission that objects of the cluster configure: what webhooks and policies share.
//!
//! Invariant: a configuration counts from the moment that its write is acknowledged.

#[allow(dead_code, reason = "mutating policies follow")]
pub(crate) mod conditions;
pub(crate) mod matching;
pub(crate) mod policies;
#[cfg(test)]
pub(crate) mod testing;
