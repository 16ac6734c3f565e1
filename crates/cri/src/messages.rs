//! Messages of CRI v1 as far as this crate uses them; names and field numbers are those of upstream's `api.proto`, which documents
//! them. What exists for Windows only, and what is deprecated there, is left out; enumerations are numbers, named in
//! `crate::convert`.

#![allow(missing_docs)]

pub mod container;
pub mod image;
pub mod runtime;
pub mod sandbox;
pub mod security;
pub mod stats;

pub use container::*;
pub use image::*;
pub use runtime::*;
pub use sandbox::*;
pub use security::*;
pub use stats::*;
