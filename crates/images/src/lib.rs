//! Images of containers: references, manifests, the store of unpacked layers, archives, registries.
//!
//! [`Images`] is what a node uses: it implements [`kaji_containers::ImageService`] for the kubelet and
//! [`kaji_containers::ImageRootfs`] for the runtime. Everything that touches files blocks, and runs on threads for that.
//!
//! Invariants:
//! - Content is used only after its digest was verified; what is unpacked while it streams becomes visible after that.
//! - An archive changes nothing outside the directory that it is unpacked into (`unpack`).
//! - Documents, entries, bytes, ratios, downloads at a time and attempts are bounded.

pub mod archive;
pub mod cli;
pub mod digest;
mod error;
mod install;
pub mod layer;
pub mod manifest;
mod pull;
pub mod reference;
pub mod registry;
mod service;
pub mod store;
pub mod tar;
pub mod tar_writer;
pub mod unpack;

pub use error::ImageError;
pub use service::Images;
