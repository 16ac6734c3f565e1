//! Devices of dynamic resource allocation: what drivers publish (ResourceSlice), how it is asked for (DeviceClass, the spec of a
//! claim), what was allocated, and taints that are added by rules (DeviceTaintRule). Projected; drivers' parameters stay raw.
//!
//! Invariant: a quantity that cannot be parsed counts as zero: validation has rejected it before.
//!
//! Source: API reference, `resource.k8s.io/v1`.

use crate::{Meta, Projection};
use kaji_meta::Quantity;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

fn quantity<'de, D: Deserializer<'de>>(d: D) -> Result<Quantity, D::Error> {
    Ok(Quantity::from_value(&Value::deserialize(d)?).unwrap_or_default())
}

fn optional_quantity<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Quantity>, D::Error> {
    Ok(Option::<Value>::deserialize(d)?.map(|v| Quantity::from_value(&v).unwrap_or_default()))
}

fn quantities<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Quantity>, D::Error> {
    let all = Vec::<Value>::deserialize(d)?;
    Ok(all.iter().map(|v| Quantity::from_value(v).unwrap_or_default()).collect())
}

fn quantities_by_name<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<Box<str>, Quantity>, D::Error> {
    let all = BTreeMap::<Box<str>, Value>::deserialize(d)?;
    Ok(all.into_iter().map(|(name, v)| (name, Quantity::from_value(&v).unwrap_or_default())).collect())
}

/// A condition on devices; only CEL is known.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceSelector {
    /// The expression; absent in selectors of a kind that is not known.
    pub cel: Option<CelSelector>,
}

/// A CEL expression over `device`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CelSelector {
    /// The text.
    pub expression: Box<str>,
}

/// A toleration of taints of devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceToleration {
    /// `""` for all.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub key: Box<str>,
    /// `Exists` or `Equal` (also when empty).
    #[serde(skip_serializing_if = "str::is_empty")]
    pub operator: Box<str>,
    /// For `Equal`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub value: Box<str>,
    /// `""` for all.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub effect: Box<str>,
    /// For `NoExecute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// How much of a device's capacity is asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CapacityRequests {
    /// Amounts by the capacity's name.
    #[serde(deserialize_with = "quantities_by_name")]
    pub requests: BTreeMap<Box<str>, Quantity>,
}

/// What devices must be like: the one alternative of a request, or one of several.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequirements {
    /// The name of an alternative; empty if there is one only.
    pub name: Box<str>,
    /// The class.
    pub device_class_name: Box<str>,
    /// Conditions beside those of the class.
    pub selectors: Vec<DeviceSelector>,
    /// `ExactCount` or `All`.
    pub allocation_mode: Box<str>,
    /// For `ExactCount`.
    pub count: i64,
    /// Devices that are in use may be allocated as well.
    pub admin_access: bool,
    /// Tolerations.
    pub tolerations: Vec<DeviceToleration>,
    /// Amounts of capacity.
    pub capacity: CapacityRequests,
}

/// A request: either one kind of devices, or alternatives in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    /// The name.
    pub name: Box<str>,
    /// The only alternative.
    pub exactly: Option<Box<DeviceRequirements>>,
    /// Alternatives.
    pub first_available: Vec<DeviceRequirements>,
}

/// What the devices of several requests have in common, or not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceConstraint {
    /// Names of requests and of alternatives (`request/alternative`); all if empty.
    pub requests: Vec<Box<str>>,
    /// Their devices have the same value of this attribute.
    pub match_attribute: Option<Box<str>>,
    /// Their devices have different values of this attribute.
    pub distinct_attribute: Option<Box<str>>,
}

/// The devices that a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClaimSpec {
    /// Requests.
    pub requests: Vec<DeviceRequest>,
    /// Constraints.
    pub constraints: Vec<DeviceConstraint>,
    /// Parameters for drivers, raw.
    pub config: Vec<Value>,
}

/// A device that was allocated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceResult {
    /// The request, or `request/alternative`.
    pub request: Box<str>,
    /// The driver.
    pub driver: Box<str>,
    /// The pool.
    pub pool: Box<str>,
    /// The device's name.
    pub device: Box<str>,
    /// Allocated whatever else uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// The request's tolerations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<DeviceToleration>,
    /// Conditions that must be true before a pod is bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<Box<str>>,
    /// Conditions that end the wait for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<Box<str>>,
    /// Tells allocations of a device apart that may be allocated several times.
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<Box<str>>,
    /// What it takes of such a device: quantities, raw.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub consumed_capacity: BTreeMap<Box<str>, Value>,
}

/// The devices of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    /// One each.
    pub results: Vec<DeviceResult>,
    /// Parameters for drivers, raw. Not read back.
    #[serde(skip_serializing_if = "Vec::is_empty", skip_deserializing)]
    pub config: Vec<Value>,
}

/// What was allocated for a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceAllocation {
    /// The devices.
    pub devices: AllocatedDevices,
    /// The nodes that reach them, raw; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<Value>,
    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timestamp: Option<jiff::Timestamp>,
}

/// A condition of an allocated device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False`, `Unknown`
    pub status: Box<str>,
    /// Reason.
    pub reason: Box<str>,
    /// Text.
    pub message: Box<str>,
}

/// What a driver reports of an allocated device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceState {
    /// The driver.
    pub driver: Box<str>,
    /// The pool.
    pub pool: Box<str>,
    /// The device's name.
    pub device: Box<str>,
    /// Conditions. A driver that reports none has `null`.
    pub conditions: Vec<DeviceCondition>,
}

/// A property of a device: one of the values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct DeviceAttribute {
    /// A number.
    pub int: Option<i64>,
    /// A truth value.
    pub bool: Option<bool>,
    /// Text.
    pub string: Option<Box<str>>,
    /// A semantic version.
    pub version: Option<Box<str>>,
}

/// The amounts that may be requested of a capacity, in steps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CapacityRange {
    /// The least.
    #[serde(deserialize_with = "optional_quantity")]
    pub min: Option<Quantity>,
    /// The most.
    #[serde(deserialize_with = "optional_quantity")]
    pub max: Option<Quantity>,
    /// Multiples of it, from the least on.
    #[serde(deserialize_with = "optional_quantity")]
    pub step: Option<Quantity>,
}

/// How a capacity of a device may be requested.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityPolicy {
    /// What a request without an amount takes.
    #[serde(deserialize_with = "optional_quantity")]
    pub default: Option<Quantity>,
    /// The amounts that it is rounded up to, ascending.
    #[serde(deserialize_with = "quantities")]
    pub valid_values: Vec<Quantity>,
    /// The amounts that it is rounded up to.
    pub valid_range: Option<CapacityRange>,
}

/// A capacity of a device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCapacity {
    /// How much there is.
    #[serde(deserialize_with = "quantity")]
    pub value: Quantity,
    /// How it may be requested.
    pub request_policy: Option<CapacityPolicy>,
}

/// A taint of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct DeviceTaint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    pub value: Box<str>,
    /// `None`, `NoSchedule` or `NoExecute`.
    pub effect: Box<str>,
    /// Since when it has the effect; the server sets it.
    #[serde(rename = "timeAdded")]
    pub time_added: Option<jiff::Timestamp>,
}

/// A counter of a set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Counter {
    /// Its value.
    #[serde(deserialize_with = "quantity")]
    pub value: Quantity,
}

/// Counters that devices of a pool share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CounterSet {
    /// The name.
    pub name: Box<str>,
    /// What there is.
    pub counters: BTreeMap<Box<str>, Counter>,
}

/// What a device takes of a counter set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CounterConsumption {
    /// The set's name.
    pub counter_set: Box<str>,
    /// How much.
    pub counters: BTreeMap<Box<str>, Counter>,
}

/// A device of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// The name, unique in its pool.
    pub name: Box<str>,
    /// Attributes by name, with a domain or without.
    pub attributes: BTreeMap<Box<str>, DeviceAttribute>,
    /// Capacities by name, with a domain or without.
    pub capacity: BTreeMap<Box<str>, DeviceCapacity>,
    /// What it takes of its pool's counters while it is allocated.
    pub consumes_counters: Vec<CounterConsumption>,
    /// The only node that reaches it.
    pub node_name: Option<Box<str>>,
    /// The nodes that reach it, raw.
    pub node_selector: Option<Value>,
    /// Every node reaches it.
    pub all_nodes: bool,
    /// Taints.
    pub taints: Vec<DeviceTaint>,
    /// Its allocation is for the chosen node alone.
    pub binds_to_node: bool,
    /// Conditions that must be true before a pod is bound.
    pub binding_conditions: Vec<Box<str>>,
    /// Conditions that end the wait for them.
    pub binding_failure_conditions: Vec<Box<str>>,
    /// Several claims may have a part of it each.
    pub allow_multiple_allocations: bool,
}

/// The pool of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePool {
    /// The name.
    pub name: Box<str>,
    /// Slices of a lower generation are out of date.
    pub generation: i64,
    /// How many slices this generation has.
    pub resource_slice_count: i64,
}

/// A slice's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpec {
    /// The driver.
    pub driver: Box<str>,
    /// The pool.
    pub pool: ResourcePool,
    /// The only node that reaches its devices.
    pub node_name: Option<Box<str>>,
    /// The nodes that reach its devices, raw.
    pub node_selector: Option<Value>,
    /// Every node reaches its devices.
    pub all_nodes: bool,
    /// The devices say which nodes reach them.
    pub per_device_node_selection: bool,
    /// Devices.
    pub devices: Vec<Device>,
    /// Counters of the pool; a slice has these or devices.
    pub shared_counters: Vec<CounterSet>,
}

/// Devices of one pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: ResourceSliceSpec,
}

/// A class's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpec {
    /// Conditions on its devices.
    pub selectors: Vec<DeviceSelector>,
    /// Parameters for drivers, raw.
    pub config: Vec<Value>,
    /// The extended resource that its devices stand for.
    pub extended_resource_name: Option<Box<str>>,
}

/// A class of devices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: DeviceClassSpec,
}

/// The devices that a rule taints: all that match every given field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct DeviceTaintSelector {
    /// Of this driver.
    pub driver: Option<Box<str>>,
    /// Of this pool.
    pub pool: Option<Box<str>>,
    /// Of this name.
    pub device: Option<Box<str>>,
}

impl DeviceTaintSelector {
    /// Whether a device matches every given field.
    pub fn matches(&self, driver: &str, pool: &str, device: &str) -> bool {
        let is =
            |wanted: &Option<Box<str>>, name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        is(&self.driver, driver) && is(&self.pool, pool) && is(&self.device, device)
    }
}

/// A rule's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintRuleSpec {
    /// Which devices: all that match an empty one, none without.
    pub device_selector: Option<DeviceTaintSelector>,
    /// The taint.
    pub taint: DeviceTaint,
}

impl DeviceTaintRuleSpec {
    /// Whether the rule is about a device.
    pub fn selects(&self, driver: &str, pool: &str, device: &str) -> bool {
        self.device_selector.as_ref().is_some_and(|selector| selector.matches(driver, pool, device))
    }
}

/// A condition of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceTaintRuleCondition {
    /// Type.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False`, `Unknown`
    pub status: Box<str>,
    /// Reason.
    pub reason: Box<str>,
    /// Text.
    pub message: Box<str>,
    /// The generation of the spec that it is about.
    pub observed_generation: i64,
    /// When it was written last.
    pub last_transition_time: Option<jiff::Timestamp>,
}

/// A rule's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRuleStatus {
    /// Conditions.
    pub conditions: Vec<DeviceTaintRuleCondition>,
}

/// A taint that devices get beside those of their drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRule {
    /// ObjectMeta.
    pub metadata: Meta,
    /// Spec.
    pub spec: DeviceTaintRuleSpec,
    /// Status.
    pub status: DeviceTaintRuleStatus,
}

impl ResourceSlice {
    /// The index of slices by their pools.
    pub const POOL: &'static str = "pool";

    /// The term of a pool in the index: names of drivers have no slash.
    pub fn pool_term(driver: &str, pool: &str) -> String {
        format!("{driver}/{pool}")
    }
}

macro_rules! projection {
    ($($ty:ident: $resource:literal, $index:expr;)*) => {$(
        impl Projection for $ty {
            const GROUP: &'static str = "resource.k8s.io";
            const VERSION: &'static str = "v1";
            const RESOURCE: &'static str = $resource;
            const KIND: &'static str = stringify!($ty);

            crate::compile_informer!();

            fn meta(&self) -> &Meta {
                &self.metadata
            }

            fn index(&self) -> Vec<(&'static str, String)> {
                $index(self)
            }
        }
    )*};
}

projection! {
    ResourceSlice: "resourceslices", |slice: &ResourceSlice| {
        vec![(ResourceSlice::POOL, ResourceSlice::pool_term(&slice.spec.driver, &slice.spec.pool.name))]
    };
    DeviceClass: "deviceclasses", |_| vec![];
    DeviceTaintRule: "devicetaintrules", |_| vec![];
}
