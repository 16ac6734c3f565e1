//! Messages of DRA drivers: `dra/v1`, which `dra/v1beta1` has but for the share, and `dra-health/v1alpha1`. Numbers are on the wire: they
//! never change.
//!
//! Source: Kubernetes, `k8s.io/kubelet/pkg/apis/dra` and `dra-health`.

// The fields are those of upstream's definition, which documents them.
#![allow(missing_docs)]

use prost::Message;
use std::collections::BTreeMap;

/// Of a driver that serves v1.
pub const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
/// Of a driver that serves v1.
pub const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
/// Of a driver that serves v1beta1.
pub const PREPARE_BETA: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
/// Of a driver that serves v1beta1.
pub const UNPREPARE_BETA: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources";
/// Of a driver that knows the health of its devices.
pub const WATCH_HEALTH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Of both calls.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreparedDevice {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<PreparedDevice>,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// By the claims' uids.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PrepareResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// By the claims' uids.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnprepareResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, UnpreparedClaim>,
}

/// What a driver says of a device's health.
pub const HEALTHY: i32 = 1;
/// What a driver says of a device's health.
pub const UNHEALTHY: i32 = 2;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthReport {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}
