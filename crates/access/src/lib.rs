//! Authentication, authorization and audit of a cluster, put together from its options: the chain of authenticators (`authn`),
//! the authorizers in their order (`authz`), the certificates that connections are verified with (`tls`) and that extension servers
//! see (`front_proxy`), how kubelets are reached (`kubelet_client`), HTTPS clients for issuers and webhooks (`fetch`, `audit`), reloads of the configuration files, the users of
//! the cluster's own components (`identities`), the default roles (`default_roles`), and the connection of commands that are clients
//! (`client_connection`).
//!
//! The authenticators and authorizers themselves are in `kaji-auth`, which has no HTTP and no engine.

pub mod audit;
mod authn;
mod authz;
pub mod client_connection;
pub mod default_roles;
mod fetch;
pub mod front_proxy;
pub mod identities;
pub mod kubeconfig_file;
pub mod kubelet_client;
pub mod tls;
pub mod webhook_config;

pub use authn::{Authn, TokenService, without_anonymous_administrators};
pub use authz::Authz;
