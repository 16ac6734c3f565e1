//! PodDisruptionBudget, ResourceQuota and Secret, projected. Of a secret only its metadata is kept, unless it is a
//! bootstrap token.

use super::selector::LabelSelector;
use crate::{Meta, Projection};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A condition as `metav1.Condition` has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetaCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`
    pub status: String,
    /// Generation that the condition reflects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When status last changed.
    pub last_transition_time: Option<jiff::Timestamp>,
    /// Reason.
    pub reason: String,
    /// Text.
    pub message: String,
}

/// A budget's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetSpec {
    /// Number or percentage, raw.
    pub min_available: Value,
    /// Number or percentage, raw.
    pub max_unavailable: Value,
    /// Which pods.
    pub selector: LabelSelector,
}

/// A budget's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDisruptionBudgetStatus {
    /// Generation that the status reflects.
    pub observed_generation: i64,
    /// Pods that the API server has allowed to evict, and when, until their deletion is observed.
    pub disrupted_pods: BTreeMap<String, jiff::Timestamp>,
    /// Pods that may go.
    pub disruptions_allowed: i64,
    /// Healthy pods.
    pub current_healthy: i64,
    /// Healthy pods wanted.
    pub desired_healthy: i64,
    /// Pods in all.
    pub expected_pods: i64,
    /// Conditions.
    pub conditions: Vec<MetaCondition>,
}

/// A budget.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: PodDisruptionBudgetSpec,
    /// Status.
    pub status: PodDisruptionBudgetStatus,
}

impl Projection for PodDisruptionBudget {
    const GROUP: &'static str = "policy";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "poddisruptionbudgets";
    const KIND: &'static str = "PodDisruptionBudget";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// One requirement of a scope selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeRequirement {
    /// `PriorityClass`, `Terminating`, …
    pub scope_name: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`
    pub operator: String,
    /// Values.
    pub values: Vec<String>,
}

/// `spec.scopeSelector`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeSelector {
    /// All of them.
    pub match_expressions: Vec<ScopeRequirement>,
}

/// A quota's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaSpec {
    /// Limits, quantities by resource name.
    pub hard: BTreeMap<String, Value>,
    /// Which objects count.
    pub scopes: Vec<String>,
    /// Which objects count.
    pub scope_selector: Option<ScopeSelector>,
}

/// A quota's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuotaStatus {
    /// Limits.
    pub hard: BTreeMap<String, Value>,
    /// Usage.
    pub used: BTreeMap<String, Value>,
}

/// A quota.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ResourceQuotaSpec,
    /// Status.
    pub status: ResourceQuotaStatus,
}

impl Projection for ResourceQuota {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "resourcequotas";
    const KIND: &'static str = "ResourceQuota";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}

/// The type of secrets that are bootstrap tokens.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap.kubernetes.io/token";
/// The type of secrets that are tokens of service accounts.
const TOKEN: &str = "kubernetes.io/service-account-token";

/// A secret. Its content is kept of tokens only: nothing reads that of the others.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(from = "WholeSecret")]
pub struct Secret {
    /// ObjectMeta.
    pub metadata: Meta,
    /// `Opaque`
    pub kind: String,
    /// Base64 by key, of bootstrap tokens.
    pub data: BTreeMap<String, String>,
    /// What it holds, if it is a service account's token.
    pub token: Option<TokenSecret>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("metadata", &self.metadata)
            .field("kind", &self.kind)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// What a service account's token secret holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenSecret {
    /// Whether there is a token.
    pub token: bool,
    /// Whether there is a namespace.
    pub namespace: bool,
    /// The certificates of the server, base64.
    pub root_ca: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WholeSecret {
    metadata: Meta,
    #[serde(rename = "type")]
    kind: String,
    data: Option<BTreeMap<String, String>>,
}

impl From<WholeSecret> for Secret {
    fn from(whole: WholeSecret) -> Self {
        let data = whole.data.unwrap_or_default();
        let text = |key: &str| data.get(key).map(String::as_str).unwrap_or_default();
        let token = (whole.kind == TOKEN).then(|| TokenSecret {
            token: !text("token").is_empty(),
            namespace: !text("namespace").is_empty(),
            root_ca: text("ca.crt").to_owned(),
        });
        let kept = whole.kind == BOOTSTRAP_TOKEN;
        Secret {
            data: if kept { data } else { BTreeMap::new() },
            kind: whole.kind,
            metadata: whole.metadata,
            token,
        }
    }
}

impl Projection for Secret {
    const GROUP: &'static str = "";
    const VERSION: &'static str = "v1";
    const RESOURCE: &'static str = "secrets";
    const KIND: &'static str = "Secret";

    crate::compile_informer!();

    fn meta(&self) -> &Meta {
        &self.metadata
    }
}
