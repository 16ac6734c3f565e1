//! The HTTP face of a cluster: TLS, authentication, authorization, discovery, OpenAPI, health, metrics, and the way of a
//! request to the engine. The stack reads in one file, `stack.rs`.

mod api;
mod attempts;
pub mod audit;
mod authorize;
mod body;
mod deadline;
mod decisions;
mod discovery;
pub mod flow;
mod health;
mod identity;
mod impersonate;
mod listen;
mod local;
mod metrics;
mod negotiate;
mod openapi;
pub mod pki;
mod plain;
mod reloads;
mod renewal;
mod route;
mod stack;
mod tls;
mod version;

pub use audit::Audit;
pub use body::ResponseBody;
pub use deadline::{duration as parse_duration, flag as parse_timeout};
pub use decisions::{Counter, Decisions};
pub use discovery::Discovery;
pub use flow::Flow;
pub use health::{Check, Health, SlowCheck};
pub use identity::{Authentication, Authorities, Peer, from_certificate};
pub use impersonate::Impersonation;
pub use listen::{Front, Listener, MAX_CONNECTIONS, MAX_STREAMS};
pub use local::{Identities, LocalService};
pub use metrics::Metrics;
pub use openapi::{Docs, OpenApi};
pub use reloads::Reloads;
pub use renewal::Certificates;
pub use route::{RequestInfo, Target, query, unescape};
pub use stack::{MAX_BODY, Stack, StackError};
pub use tls::{TlsCurve, TlsOptions, TlsSuite, TlsVersion, tls};
pub use tokio_rustls::TlsAcceptor;
pub use version::git_version as version;
