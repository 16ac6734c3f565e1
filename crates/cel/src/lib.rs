//! The Common Expression Language as Kubernetes uses it: parser, type checker, cost estimation and evaluation.
//! Sources: the CEL language definition, cel-go, and the libraries of k8s.io/apiserver (KEP-2876, KEP-3488).
//!
//! ```
//! use kaji_cel::{Decl, Env, Value};
//! use serde_json::json;
//!
//! let decl = Decl::object([("replicas".to_owned(), Decl::int(), true)]);
//! let env = Env::new().variable("self", decl.clone());
//! let program = env.compile("self.replicas <= 10").unwrap();
//! let object = json!({"replicas": 11});
//! let (result, cost) = program.eval(&[Some(Value::of_json(&object, &decl).unwrap())], 1_000);
//! assert!(matches!(result, Ok(Value::Bool(false))));
//! assert_eq!(cost, 3);
//! ```
//!
//! Invariants:
//! - Pure: no clock, no I/O, no state.
//! - Whatever the text or the data, nothing panics, recursion is bounded ([`MAX_DEPTH`]), and the work of an evaluation is
//!   bounded by its cost limit.
//! - Data is borrowed: lists and objects are looked into, not converted.
//! - Texts of errors are upstream's, for clients show and match them.

pub mod admission;
mod ast;
mod check;
mod compare;
mod constructed;
mod cost;
mod decl;
pub mod devices;
mod error;
pub mod escape;
mod estimate;
mod eval;
mod functions;
mod json;
mod lexer;
mod literals;
mod macros;
mod overloads;
mod parser;
mod plan;
mod program;
mod selects;
mod source;
mod types;
mod unify;
mod value;

#[cfg(test)]
mod tests;

pub use constructed::Struct;
pub use decl::{Decl, DeclKind, Field, ListKind, MAX_REQUEST_BYTES};
pub use error::Error;
pub use functions::authz::{Authority, Check, Decision, Question};
pub use program::{CompileError, Env, NamedExpressions, Program, Session};
pub use source::{Issue, Issues};
pub use types::{Named, Type};
pub use value::{Ext, List, Map, Text, TypeValue, Value};

/// How deep expressions may nest, macros expanded. cel-go's limit, which it applies to each rule of its grammar.
pub const MAX_DEPTH: u16 = 250;
/// How long expressions may be, in characters; cel-go's limit.
pub const MAX_LENGTH: usize = 100_000;
/// What one evaluation may cost (upstream's `PerCallLimit`).
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What the rules of a definition are each allowed to cost by their estimate (upstream's `StaticEstimatedCostLimit`).
pub const ESTIMATE_LIMIT: u64 = 10_000_000;
/// What all evaluations for one request may cost (upstream's `RuntimeCELCostBudget`).
pub const REQUEST_BUDGET: u64 = 10_000_000;
