//! Projections shared by the loops of every part: one file a kind, only the fields that some loop reads.

mod deployment;
mod namespace;
mod node;
mod pod;
mod replicaset;
mod selector;
mod service;

pub use deployment::{Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, RollingUpdate};
pub use namespace::{ConfigMap, Namespace, NamespaceSpec, NamespaceStatus, ServiceAccount};
pub use node::{Node, Taint};
pub use pod::{ContainerStatus, Pod, PodCondition, PodIp, Toleration};
pub use replicaset::{
    ReplicaSet, ReplicaSetSpec, ReplicaStatus, ReplicationController, ReplicationControllerSpec,
};
pub use selector::{Condition, LabelSelector, MapSelector};
pub use service::{
    Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Endpoints, SERVICE_NAME_LABEL, Service,
    ServicePort, ServiceSpec,
};
