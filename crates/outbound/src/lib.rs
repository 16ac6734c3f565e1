//! HTTPS clients for webhooks, extension servers and identity providers.
//!
//! Invariants:
//! - A server is trusted only with a certificate for the requested name by the given authorities (or, without any, the
//!   machine's); `insecure` is the only exception and has to be configured.
//! - Requests and connections to each server, bytes of a response and the time until it arrives are bounded. A server that
//!   hangs delays its callers alone.
//! - Errors have the texts of Go's HTTP client: users see them in messages about their webhooks.

mod client;
mod clients;
mod concurrency;
mod config;
mod connect;
mod error;
pub mod networks;
mod pool;
mod resolve;
pub mod reverse_proxy;
pub mod spans;
mod tls;

pub use client::{Client, RequestBody, StreamedBody, body};
pub use clients::ClientCache;
pub use concurrency::{RequestClass, RequestPermit};
pub use config::{ClientConfig, Target};
pub use error::CallError;
pub use resolve::{Endpoint, resolve};
pub use tls::{check_bundle, check_identity};
