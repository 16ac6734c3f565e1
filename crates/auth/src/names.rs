//! Names that every cluster has. Source: Kubernetes, `apiserver/pkg/authentication/user` and `serviceaccount`.

/// Every authenticated user is in it.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of all requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of requests without any credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// May do everything; granted by certificate only.
pub const MASTERS: &str = "system:masters";
/// Every kubelet is in it.
pub const NODES: &str = "system:nodes";
/// What the user name of a kubelet starts with.
pub const NODE_PREFIX: &str = "system:node:";
/// What the user name of a service account starts with: `system:serviceaccount:NAMESPACE:NAME`.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// Every service account is in it.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
