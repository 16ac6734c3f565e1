//! Schemas of Kubernetes objects and everything that follows from them: decoding strictness, pruning, defaulting,
//! validation, patches, server-side apply, JSONPath and OpenAPI documents.
//!
//! Pure: no I/O, no clock. The only state of the process are the built-in type table, which is immutable, and the table
//! through which equal parts of custom schemas are shared, which has no observable effect.

mod at;
pub mod decode;
pub mod defaulting;
pub mod docs;
pub mod fieldset;
pub mod internal;
pub mod jsonpath;
pub mod managed;
pub mod openapi;
pub mod order;
pub mod patch;
pub mod probe;
pub mod protobuf;
pub mod prune;
pub mod schema;
pub mod structural;
pub mod types;
pub mod validate;
pub mod yaml;

pub use schema::{
    Constraints, Format, ListKind, MapKind, Omit, PatchStrategy, Property, Props, Schema, SchemaRef, Type,
};
