//! Why a node does not join, or stops being one. Texts follow kubeadm's where it has the same reason.

use kaji_runtime::Error;
use kaji_server::pki::PkiError;
use std::{path::PathBuf, time::Duration};

/// Why a node does not join, or stops being one.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// `cluster-info` could not be requested.
    #[error("failed to request the cluster-info ConfigMap from {endpoint}: {reason}")]
    Unreachable {
        /// `host:port`
        endpoint: String,
        /// Why, the last time.
        reason: String,
    },
    /// `cluster-info` is not signed with the token.
    #[error(
        "could not find a JWS signature in the cluster-info ConfigMap for token ID {0:?}: the token is unknown to this \
         cluster, has expired or may not sign. Use \"kaji token create --print-join-command\" to create a new one"
    )]
    Unsigned(String),
    /// It is signed with another secret.
    #[error("failed to verify JWS signature of received cluster info object, can't trust this API Server")]
    Signature,
    /// The authority is not the pinned one.
    #[error("cluster CA found in cluster-info ConfigMap is invalid: {0}")]
    Authority(String),
    /// What is signed makes no sense.
    #[error("malformed kubeconfig in the cluster-info ConfigMap: {0}")]
    ClusterInfo(String),
    /// Over the verified connection the server says something else.
    #[error(
        "the second kubeconfig from the cluster-info ConfigMap (using validated TLS) was different from the first"
    )]
    Changed,
    /// The token is no login.
    #[error(
        "the cluster does not accept the bootstrap token with ID {0:?}: it has expired, was deleted or is not for \
         authentication"
    )]
    Token(String),
    /// There is such a node already.
    #[error(
        "a Node with name {0:?} and status \"Ready\" already exists in the cluster. You must delete the existing Node or \
         change the name of this new joining Node"
    )]
    Taken(String),
    /// The data directory is another node's.
    #[error("{path} holds the identity of node {held:?}: use --node-name {held} or another --data-dir")]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// The node that the identity was issued to.
        held: String,
    },
    /// The kept certificate is no login.
    #[error("the cluster does not accept the certificate in {0}; remove the file to join again")]
    Stale(PathBuf),
    /// The request for a certificate was refused.
    #[error("certificate signing request {name:?} is {verdict}, reason: {reason}, message: {message}")]
    Refused {
        /// Its name.
        name: String,
        /// `denied` or `failed`
        verdict: &'static str,
        /// The condition's.
        reason: String,
        /// The condition's.
        message: String,
    },
    /// The request for a certificate is gone.
    #[error("certificate signing request {0:?} was deleted or replaced before it was signed")]
    Gone(String),
    /// No signer has signed in time.
    #[error("certificate signing request {name:?} was not approved and signed within {wait:?}")]
    Unsettled {
        /// Its name.
        name: String,
        /// How long was waited.
        wait: Duration,
    },
    /// A certificate that does not fit.
    #[error("the certificate of node {node:?}: {reason}")]
    Certificate {
        /// The node.
        node: String,
        /// What is wrong.
        reason: String,
    },
    /// It ran out, and could not be renewed before.
    #[error("the certificate of node {0:?} has expired; start the agent again with a token that is good")]
    Expired(String),
    /// The machine cannot be a node.
    #[error("node {node:?}: {reason}")]
    Node {
        /// The node.
        node: String,
        /// Why.
        reason: String,
    },
    /// A file.
    #[error(transparent)]
    File(#[from] PkiError),
    /// The server.
    #[error("{what}: {error}")]
    Api {
        /// What was tried.
        what: String,
        /// Why it did not work.
        error: Error,
    },
}

impl AgentError {
    /// An error of the API at something.
    pub(super) fn api(what: impl Into<String>) -> impl FnOnce(Error) -> AgentError {
        let what = what.into();
        move |error| AgentError::Api { what, error }
    }
}
