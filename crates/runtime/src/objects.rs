//! Projections shared by the loops of every part: one file for a kind and those that go with it, only the fields that some loop reads.

mod amounts;
mod certificates;
mod daemonset;
mod deployment;
mod devices;
mod horizontal_pod_autoscaler;
mod job;
mod lease;
mod migration;
mod namespace;
mod node;
mod node_selector;
mod pod;
mod pod_group;
mod policy;
mod replicaset;
mod resource_claim;
mod selector;
mod service;
mod service_cidr;
mod statefulset;
mod storage;
mod volume;

#[cfg(test)]
mod tests;

pub use amounts::{Amounts, Demand};
pub use certificates::{
    CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
    ClusterTrustBundle, ClusterTrustBundleSpec, PodCertificateRequest,
};
pub use daemonset::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
pub use deployment::{Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, RollingUpdate};
pub use devices::{
    AllocatedDevices, CapacityPolicy, CapacityRange, CapacityRequests, CelSelector, Counter,
    CounterConsumption, CounterSet, Device, DeviceAllocation, DeviceAttribute, DeviceCapacity,
    DeviceClaimSpec, DeviceClass, DeviceClassSpec, DeviceCondition, DeviceConstraint, DeviceRequest,
    DeviceRequirements, DeviceResult, DeviceSelector, DeviceState, DeviceTaint, DeviceTaintRule,
    DeviceTaintRuleCondition, DeviceTaintRuleSpec, DeviceTaintRuleStatus, DeviceTaintSelector,
    DeviceToleration, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
pub use horizontal_pod_autoscaler::{
    Behavior, Fraction, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
    MetricIdentifier, MetricSource, MetricSpec, MetricTarget, Milli, ObjectReference, ScalingPolicy,
    ScalingRules,
};
pub use job::{
    CronJob, CronJobSpec, CronJobStatus, Job, JobCondition, JobSpec, JobStatus, OnExitCodes, OnPodCondition,
    PodFailurePolicy, PodFailureRule, SuccessPolicy, SuccessRule, UncountedTerminatedPods,
};
pub use lease::{Lease, LeaseSpec};
pub use migration::{StorageVersionMigration, StorageVersionMigrationSpec, StorageVersionMigrationStatus};
pub use namespace::{ConfigMap, Namespace, NamespaceSpec, NamespaceStatus, SecretReference, ServiceAccount};
pub use node::{AttachedVolume, Node, NodeAddress, NodeImage, Taint};
pub use node_selector::{NodeRequirement, NodeSelector, NodeSelectorTerm};
pub use pod::{
    ClaimVolume, Container, ContainerPort, ContainerState, ContainerStatus, DeviceClaim, DeviceClaimStatus,
    Pod, PodCondition, PodIp, PodSpec, ReadinessGate, SchedulingGroup, Terminated, Toleration,
};
pub use pod_group::{GangPolicy, GroupDisruption, GroupPolicy, PodGroup, PodGroupSpec, PodGroupStatus};
pub use policy::{
    BOOTSTRAP_TOKEN, MetaCondition, PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
    ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, ScopeRequirement, ScopeSelector, Secret,
    TokenSecret,
};
pub use replicaset::{
    ReplicaSet, ReplicaSetSpec, ReplicaStatus, ReplicationController, ReplicationControllerSpec,
};
pub use resource_claim::{
    ClaimConsumer, ResourceClaim, ResourceClaimSpec, ResourceClaimStatus, ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
};
pub use selector::{Condition, LabelSelector, MapSelector, Workload, WorkloadVisitor};
pub use service::{
    ClientIpConfig, Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Endpoints, HEADLESS_LABEL,
    LoadBalancerIngress, LoadBalancerStatus, SERVICE_NAME_LABEL, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig,
};
pub use service_cidr::{IpAddress, ServiceCidr, ServiceCidrSpec, ServiceCidrStatus};
pub use statefulset::{
    ClaimRetentionPolicy, Ordinals, Partition, StatefulSet, StatefulSetSpec, StatefulSetStatus,
    StatefulSetStrategy,
};
pub use storage::{
    AttachmentSource, CsiDriver, CsiDriverSpec, CsiNode, CsiNodeSpec, CsiStorageCapacity, NodeAllocatable,
    NodeDriver, StorageClass, TopologyRequirement, TopologyTerm, VolumeAttachment, VolumeAttachmentSpec,
    VolumeAttachmentStatus, default_class,
};
pub use volume::{
    ATTRIBUTES_CLASS, CLAIM_REF, ClaimCondition, ClaimRef, CsiSource, PathSource, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, PersistentVolumeSpec,
    PersistentVolumeStatus, UNBOUND, VOLUME, VolumeAttributesClass, VolumeNodeAffinity, csi_attachment_name,
    csi_volume_name, volume_mode,
};

/// Shows a visitor the kinds of workloads with pods that are alike: the scheduler spreads the pods of each.
pub fn visit_workloads(visitor: &mut impl WorkloadVisitor) {
    visitor.visit::<ReplicationController>();
    visitor.visit::<ReplicaSet>();
    visitor.visit::<StatefulSet>();
}
