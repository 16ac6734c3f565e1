//! Calls to others over HTTPS: webhooks, aggregated servers, identity providers.
//!
//! Invariants:
//! - Nobody is believed without a certificate of the given authorities (or, without any, the machine's) for the name that
//!   was asked for; `insecure` is the only exception and has to be asked for.
//! - Whatever a stranger does is bounded: requests and connections to each of them, bytes of an answer, time until it is there. A
//!   stranger that hangs holds up those who wait for it and nobody else.
//! - Failures are worded as Go's HTTP client words them: users see them in messages about their webhooks.

mod client;
mod clients;
mod concurrency;
mod config;
mod connect;
mod error;
mod pool;
mod resolve;
mod tls;

pub use client::{Client, RequestBody, StreamedBody, body};
pub use clients::ClientCache;
pub use concurrency::{RequestClass, RequestPermit};
pub use config::{ClientConfig, Target};
pub use error::CallError;
pub use resolve::{Endpoint, resolve};
pub use tls::{check_bundle, check_identity};
