//! Ranges of service addresses: ready while they stand, and kept while addresses would be left without a range.
//!
//! Invariants:
//! - A range that is deleted goes only when every address in it, of services, is in another range too; or when another range
//!   covers it as a whole.
//! - It goes [`GRACE`] after its deletion at the earliest: allocators may not have seen that yet.
//!
//! Source: upstream's `pkg/controller/servicecidrs`.

use crate::{Descriptor, Start, shared::conditions::seconds};
use jiff::SignedDuration;
use kaji_runtime::{
    Change, Controller, Cx, Informers, Key, ObjectSnapshot, PatchKind, Plan, Projection, Reconciler, View,
    Write,
    client::Target,
    objects::{IpAddress, MetaCondition, ServiceCidr},
};
use serde_json::json;
use std::{net::IpAddr, sync::Arc, time::Duration};

const COMPONENT: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// How long after the deletion of a range addresses may still be allocated from it.
const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// The label of addresses that are services', with its value.
const OF_SERVICES: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
const STILL_USED: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "service-cidr-controller",
    components: &[COMPONENT],
    service_account: Some("service-cidrs-controller"),
    workers: None,
    start: Start::Reconcilers(|informers, _| vec![controller(informers)]),
};

fn controller(informers: &Arc<Informers>) -> Controller {
    let ranges = informers.get::<ServiceCidr>();
    Controller::new(Ranges, informers)
        .reads::<ServiceCidr>(move |change, _| {
            // A range that comes may set others free.
            let mut keys = waiting(&ranges.snapshot());
            keys.push(change.any().metadata.key());
            keys
        })
        .reads::<IpAddress>(|change: &Change<IpAddress>, view| match (&change.old, &change.new) {
            (Some(_), Some(_)) => vec![],
            _ => waiting(&view.get::<ServiceCidr>()),
        })
}

/// The ranges that are being deleted.
fn waiting(ranges: &ObjectSnapshot<ServiceCidr>) -> Vec<Key> {
    ranges.iter().filter(|r| r.metadata.deleting()).map(|r| r.metadata.key()).collect()
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prefix {
    address: u128,
    bits: u32,
    v6: bool,
}

impl Prefix {
    fn of(address: IpAddr, bits: u32) -> Option<Prefix> {
        let (number, width) = match address {
            IpAddr::V4(a) => (u128::from(u32::from(a)) << 96, 32),
            IpAddr::V6(a) => (u128::from(a), 128),
        };
        (bits <= width).then_some(Prefix { address: number, bits, v6: address.is_ipv6() })
    }

    fn parse(text: &str) -> Option<Prefix> {
        let (address, bits) = text.split_once('/')?;
        Prefix::of(address.parse().ok()?, bits.parse().ok()?)
    }

    fn single(text: &str) -> Option<Prefix> {
        let address: IpAddr = text.parse().ok()?;
        Prefix::of(address, if address.is_ipv4() { 32 } else { 128 })
    }

    /// Whether all of the other's addresses are in this one.
    fn covers(self, other: Prefix) -> bool {
        let high = |address: u128| address.checked_shr(128 - self.bits).unwrap_or(0);
        self.v6 == other.v6 && self.bits <= other.bits && high(self.address) == high(other.address)
    }
}

fn prefixes(range: &ServiceCidr) -> impl Iterator<Item = Prefix> {
    range.spec.cidrs.iter().filter_map(|text| Prefix::parse(text))
}

/// Whether another range has what this one has.
fn covered_by_others(range: &ServiceCidr, all: &ObjectSnapshot<ServiceCidr>, wanted: Prefix) -> bool {
    let others = all.iter().filter(|other| other.metadata.name != range.metadata.name);
    others.flat_map(|other| prefixes(other)).any(|prefix| prefix.covers(wanted))
}

/// Whether addresses of services would be left without a range.
fn used(range: &ServiceCidr, view: &View) -> bool {
    let all = view.get::<ServiceCidr>();
    if prefixes(range).all(|prefix| covered_by_others(range, &all, prefix)) {
        return false;
    }
    let addresses = view.get::<IpAddress>();
    let (label, value) = OF_SERVICES;
    let of_services =
        addresses.iter().filter(|a| a.metadata.labels.get(label).map(String::as_str) == Some(value));
    of_services.filter_map(|address| Prefix::single(&address.metadata.name)).any(|address| {
        prefixes(range).any(|prefix| prefix.covers(address)) && !covered_by_others(range, &all, address)
    })
}

struct Ranges;

impl Reconciler for Ranges {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "ipaddresses"
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let ranges = view.get::<ServiceCidr>();
        let Some(range) = ranges.by_key(key) else { return Plan::nothing() };
        let has = range.metadata.finalizers.iter().any(|f| f == FINALIZER);
        let Some(since) = range.metadata.deletion_timestamp else {
            let plan = if has { Plan::nothing() } else { Plan::nothing().then(finalizers(range, true)) };
            return condition(plan, range, "True", "", "Kubernetes Service CIDR is ready", cx);
        };
        if !has {
            return Plan::nothing();
        }
        if used(range, view) {
            return condition(Plan::nothing(), range, "False", "Terminating", STILL_USED, cx);
        }
        let left = GRACE.saturating_sub(cx.now.duration_since(since));
        match Duration::try_from(left).ok().filter(|left| !left.is_zero()) {
            Some(left) => Plan::nothing().again_after(left),
            None => Plan::nothing().then(finalizers(range, false)),
        }
    }
}

/// Adds or removes the finalizer.
fn finalizers(range: &ServiceCidr, add: bool) -> Write {
    let meta = &range.metadata;
    let field = if add { "finalizers" } else { "$deleteFromPrimitiveList/finalizers" };
    let mut metadata = json!({"uid": meta.uid});
    metadata[field] = json!([FINALIZER]);
    Write::Patch {
        target: Target::of::<ServiceCidr>("", &meta.name),
        kind: PatchKind::Strategic,
        body: json!({"metadata": metadata}),
    }
}

/// Says in the status what is, unless it says so already.
fn condition(
    plan: Plan,
    range: &ServiceCidr,
    status: &str,
    reason: &str,
    message: &str,
    cx: &Cx<'_>,
) -> Plan {
    let current: Option<&MetaCondition> = range.status.conditions.iter().find(|c| c.kind == READY);
    if current.is_some_and(|c| c.status == status && c.reason == reason && c.message == message) {
        return plan;
    }
    let condition = json!({"type": READY, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": seconds(cx.now)});
    plan.then(Write::Patch {
        target: Target::of::<ServiceCidr>("", &range.metadata.name).subresource("status"),
        kind: PatchKind::Apply,
        body: json!({"apiVersion": ServiceCidr::api_version(), "kind": ServiceCidr::KIND,
            "metadata": {"name": range.metadata.name, "uid": range.metadata.uid},
            "status": {"conditions": [condition]}}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, reconcile, snapshot, text};
    use serde_json::Value;

    fn range(name: &str, cidrs: &[&str], deleted: Option<i64>) -> Value {
        let mut range = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "finalizers": [FINALIZER]},
            "spec": {"cidrs": cidrs}});
        if let Some(seconds) = deleted {
            range["metadata"]["deletionTimestamp"] = ago(seconds).into();
        }
        range
    }

    fn address(ip: &str) -> Value {
        json!({"metadata": {"name": ip, "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}}})
    }

    fn plan(ranges: Vec<Value>, addresses: &[&str]) -> String {
        let view = View::default()
            .with(snapshot::<ServiceCidr>(ranges))
            .with(snapshot::<IpAddress>(addresses.iter().map(|ip| address(ip))));
        text(&reconcile(&Ranges, &view, "", "r", &[]))
    }

    #[test]
    fn a_range_becomes_ready_with_its_finalizer() {
        let mut new = range("r", &["10.0.0.0/16"], None);
        new["metadata"]["finalizers"] = json!([]);
        expect_test::expect![[r#"
            strategic /apis/networking.k8s.io/v1/servicecidrs/r {"metadata":{"finalizers":["networking.k8s.io/service-cidr-finalizer"],"uid":"r"}}
            --
            apply /apis/networking.k8s.io/v1/servicecidrs/r/status {"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR","metadata":{"name":"r","uid":"r"},"status":{"conditions":[{"lastTransitionTime":"2025-01-01T12:00:00Z","message":"Kubernetes Service CIDR is ready","reason":"","status":"True","type":"Ready"}]}}
        "#]]
        .assert_eq(&plan(vec![new], &[]));
        let mut ready = range("r", &["10.0.0.0/16"], None);
        ready["status"] = json!({"conditions": [{"type": "Ready", "status": "True", "message": "Kubernetes Service CIDR is ready"}]});
        assert_eq!(plan(vec![ready], &[]), "");
    }

    #[test]
    fn a_range_stays_while_addresses_need_it() {
        let gone = || range("r", &["10.0.0.0/16", "fd00::/112"], Some(60));
        let used = plan(vec![gone()], &["10.0.3.4"]);
        assert!(used.contains("Terminating") && used.contains(STILL_USED), "{used}");
        let used = plan(vec![gone(), range("small", &["10.0.9.0/24"], None)], &["10.0.9.4", "fd00::9"]);
        assert!(used.contains("Terminating"), "{used}");
        let free = [
            plan(vec![gone()], &["10.1.3.4", "fd00::1:0:1"]),
            plan(vec![gone(), range("small", &["10.0.9.0/24"], None)], &["10.0.9.4"]),
            plan(
                vec![gone(), range("large", &["10.0.0.0/8"], None), range("same", &["fd00::/112"], None)],
                &["10.0.3.4", "fd00::9"],
            ),
        ];
        for plan in free {
            assert_eq!(
                plan,
                "strategic /apis/networking.k8s.io/v1/servicecidrs/r {\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"networking.k8s.io/service-cidr-finalizer\"],\"uid\":\"r\"}}\n"
            );
        }
        assert_eq!(plan(vec![range("r", &["10.0.0.0/16"], Some(4))], &[]), "again after 6s\n");
    }

    #[test]
    fn prefixes_cover_what_is_in_them() {
        let covers = |a: &str, b: &str| Prefix::parse(a).unwrap().covers(Prefix::parse(b).unwrap());
        assert!(
            covers("10.0.0.0/8", "10.255.0.0/16")
                && covers("0.0.0.0/0", "10.0.0.0/8")
                && covers("::/0", "fd00::/8")
        );
        assert!(
            !covers("10.0.0.0/16", "10.0.0.0/8")
                && !covers("10.0.0.0/8", "11.0.0.0/16")
                && !covers("::/0", "10.0.0.0/8")
        );
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8"] {
            assert_eq!(Prefix::parse(bad), None, "{bad}");
        }
    }
}
