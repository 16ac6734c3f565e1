//! The request context that hooks receive: user, request attributes, clock, randomness and the [`Api`].
//!
//! Invariant: a context belongs to one request and holds only references into it.

use crate::Api;
use kaji_meta::{Features, random::Random};
use std::{collections::BTreeMap, sync::Mutex};

/// The user of a request. Source: `k8s.io/apiserver/pkg/authentication/user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// `system:admin`
    pub name: String,
    /// Unique id, where the authenticator has one.
    pub uid: String,
    /// `system:masters`, `system:authenticated`, …
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// `DeleteOptions` (meta/v1) once decoded, from body and query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`
    pub grace_period_seconds: Option<i64>,
    /// `preconditions.uid`
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`
    pub resource_version: Option<String>,
    /// `propagationPolicy`: `Orphan`, `Background`, `Foreground`.
    pub propagation_policy: Option<String>,
    /// The deprecated `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// `dryRun: [All]`
    pub dry_run: bool,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`
    pub ignore_store_read_error: bool,
    /// The deletion is part of DELETE of a collection: what upstream's registries add to DELETE does not apply.
    pub of_collection: bool,
}

/// The context of one request.
pub struct Ctx<'a> {
    /// The user of the request.
    pub user: &'a UserInfo,
    /// Namespace of the request, `""` for cluster-scoped.
    pub namespace: &'a str,
    /// Name in the request's path, or of the object.
    pub name: &'a str,
    /// `""` for the main resource, else `status`, `approval`, ….
    pub subresource: &'a str,
    /// The requested API version (`v1`).
    pub version: &'a str,
    /// The object in the request had labels, before defaults were applied to it.
    pub labelled: bool,
    /// Nothing is to be persisted.
    pub dry_run: bool,
    /// The time of the request.
    pub now: jiff::Timestamp,
    /// The feature gates.
    pub features: Features,
    /// Randomness.
    pub random: &'a dyn Random,
    /// Other objects.
    pub api: &'a dyn Api,
    /// Texts for the `Warning` header; bounded by the engine when sent.
    pub warnings: &'a Mutex<Vec<String>>,
}

impl Ctx<'_> {
    /// Adds a text for the `Warning` header, once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        if let Ok(mut w) = self.warnings.lock()
            && !w.contains(&text)
        {
            w.push(text);
        }
    }
}
