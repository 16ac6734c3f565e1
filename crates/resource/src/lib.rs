//! What a resource is: data (`ResourceDef`) plus the small traits of [`hooks`](Hooks).
//!
//! Invariants:
//! - The engine sees resources only through this crate; nothing here names a kind.
//! - A built-in kind and a custom resource are the same `ResourceDef`; only their hooks differ.
//! - Hooks see objects in the storage version, except `default` and `row`, which see the requested version (and of resources
//!   without a hub version to convert through, where all see the requested version).

mod api;
mod columns;
mod connect;
mod context;
mod conversion;
mod def;
mod hooks;
pub mod nested;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use api::{
    Api, Change, FieldManagement, Members, ObjectReader, ObjectVersion, ObjectWriter, TypeRegistry,
    UpdateOptions, unless_exists,
};
pub use columns::{Column, age_column, name_column};
pub use connect::{
    Carries, ConnectRequest, Connection, Host, Location, LocationQuery, Security, is_global_unicast,
};
pub use context::{Ctx, DeleteOptions, UserInfo};
pub use conversion::{Conversion, Converter};
pub use def::{
    ColumnSource, GarbageCollectionPolicy, Generation, MetadataCheck, MetadataChecks, ResourceDef, ScaleDef,
    Scope, SelectableField, SubresourceDef, SubresourceKind, Verb, VersionDef,
};
pub use hooks::{
    BoxFuture, CallHooks, CallRequest, DeletionHooks, Hooks, NoHooks, Normalizer, Reservation, status_only,
};
