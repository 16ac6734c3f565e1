//! Messages of the pods API, `v1alpha1`. Numbers are on the wire: they never change. Pods are in Kubernetes' protobuf form, without the
//! envelope.
//!
//! Source: Kubernetes, `k8s.io/kubelet/pkg/apis/pods`.

// The fields are those of upstream's definition, which documents them.
#![allow(missing_docs)]

use bytes::Bytes;
use prost::{Enumeration, Message};

pub const LIST: &str = "/v1alpha1.Pods/ListPods";
pub const GET: &str = "/v1alpha1.Pods/GetPod";
pub const WATCH: &str = "/v1alpha1.Pods/WatchPods";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum EventType {
    Unspecified = 0,
    Added = 1,
    Modified = 2,
    Deleted = 3,
    InitialSyncComplete = 4,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchEvent {
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub pod: Bytes,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub pods: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetRequest {
    #[prost(string, tag = "1")]
    pub pod_uid: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub pod: Bytes,
}
