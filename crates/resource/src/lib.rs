//! What a resource is: data (`ResourceDef`) plus a small `Hooks` trait.
//!
//! Invariants:
//! - The engine knows resources only through this crate; nothing here names a kind.
//! - A built-in kind and a custom resource are the same `ResourceDef`; only their hooks differ.
//! - Hooks see objects in the storage version, except `default` and `row`, which see the requested version (and of resources
//!   whose conversion is not that of a hub, where all see the requested version).

mod columns;
mod context;
mod conversion;
mod def;
mod hooks;
pub mod nested;

pub use columns::{Column, age_column, name_column};
pub use context::{Api, Ctx, DeleteOptions, UserInfo};
pub use conversion::{Conversion, Converter};
pub use def::{
    ColumnSource, Generation, MetadataCheck, MetadataChecks, ResourceDef, ScaleDef, Scope, SelectableField,
    SubresourceDef, SubresourceKind, Verb, VersionDef,
};
pub use hooks::{BoxFuture, CallRequest, Hooks, NoHooks, Reservation, status_only};
