//! Encryption at rest: a [`Store`](kaji_store::Store) around a store, which keeps the values of chosen resources
//! encrypted. Driven by Kubernetes' `EncryptionConfiguration` file; the bytes in the store are laid out as upstream's.
//!
//! Invariants:
//! - What a configured resource's value says is never handed to the inner store in the clear (unless the first provider
//!   is `identity`, which is what a way out of encryption looks like).
//! - The first provider's first key writes; every configured key reads. A value that none of them reads is an error
//!   which names the storage key, never the data.
//! - AES-GCM authenticates the storage key: a value that was copied to another key does not decrypt.
//! - Keys appear in no error and in no `Debug` output.
//!
//! Source: Kubernetes, "Encrypting Confidential Data at Rest"; KEP-3299 (KMS v2).

mod cipher;
mod config;
mod kms;
mod metrics;
mod replaced;
mod rules;
mod scrub;
pub mod sealed;
mod store;
mod transform;
mod validation;

pub use config::{Config, ConfigError, Key, Kms, Provider, Resources};
pub use kms::{Deps, StoredKeys};
pub use metrics::Metrics;
pub use replaced::Replaced;
pub use scrub::{Fingerprint, ScrubError, Scrubbing, scrub};
pub use store::{EncryptedStore, InForce};
pub use transform::{TransformError, Transformers};
