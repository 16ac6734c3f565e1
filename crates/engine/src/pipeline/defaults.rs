//! Defaults of what a client sends.
//!
//! Invariant: they are charged before they are filled in, and what is much is reserved until the request has ended.

use super::Op;
use crate::{decode, registry::Resource};
use kaji_meta::{SizeBudget, Status};
use kaji_resource::VersionDef;
use serde_json::Value;
use std::sync::atomic::Ordering;

/// Memory that defaults may take without being reserved.
const UNRESERVED: usize = 256 << 10;

impl Op<'_> {
    /// Applies the request version's defaults.
    ///
    /// # Errors
    /// 413 when they take more memory than a document may.
    pub fn default(&self, object: &mut Value) -> Result<(), Status> {
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        self.labelled.store(labels.is_some_and(|l| !l.is_empty()), Ordering::Relaxed);
        let added = default(self.target.res, self.target.version, object)?;
        self.reserve(added)
    }

    /// Reserves what defaults take, if that is much.
    fn reserve(&self, added: usize) -> Result<(), Status> {
        match &self.memory {
            Some(memory) if added > UNRESERVED => memory.grow(added),
            _ => Ok(()),
        }
    }

    /// The same for the outcome of an apply, in which nulls are values: those that must not be are refused with it.
    ///
    /// # Errors
    /// As [`Op::default`].
    pub fn default_applied(&self, object: &mut Value) -> Result<(), Status> {
        if !decode::is_custom(&self.target.version.schema) {
            return self.default(object);
        }
        let mut budget = SizeBudget::default();
        kaji_schema::defaulting::fill(self.target.version.schema.get(), object, &mut budget)?;
        self.target.res.def.hooks.default(&self.target.version.name, object);
        self.reserve(budget.used())
    }
}

/// Applies a version's defaults, and returns the memory that those of a custom resource take: they are whatever a definition
/// says. Those of built-in kinds are a few for each map that a client sent, and the number of these is bounded.
///
/// # Errors
/// 413 when they take more memory than a document may.
pub(crate) fn default(res: &Resource, version: &VersionDef, object: &mut Value) -> Result<usize, Status> {
    let mut budget = SizeBudget::default();
    if decode::is_custom(&version.schema) {
        kaji_schema::defaulting::apply_defaults(version.schema.get(), object, &mut budget)?;
    }
    res.def.hooks.default(&version.name, object);
    decode::canonicalize(&version.schema, object);
    Ok(budget.used())
}
