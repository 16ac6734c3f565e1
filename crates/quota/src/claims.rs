//! What claims use: of storage and of devices.

use crate::{
    amounts::{Usage, add, compare, increase, number},
    evaluator::Context,
    names::STORAGE_REQUESTS,
};
use kaji_meta::{
    object,
    quantity::{Format, Quantity},
};
use serde_json::Value;
use std::cmp::Ordering;

/// What follows the name of a device class in the name of its limit.
pub(crate) const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// What precedes the name of a device class that is requested as an extended resource.
pub(crate) const CLASS_REQUESTS: &str = "requests.deviceclass.resource.kubernetes.io/";
/// More devices than one allocation has results.
const MOST_DEVICES: i64 = 32;

/// What a volume claim uses, in all and of its class.
pub(crate) fn storage(claim: &Value) -> Usage {
    let plain = "persistentvolumeclaims";
    let mut usage = Usage::from([(format!("count/{plain}"), number(1)), (plain.to_owned(), number(1))]);
    let class = object::annotation(claim, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| object::str_at(claim, &["spec", "storageClassName"]));
    let prefix = (!class.is_empty()).then(|| format!("{class}.storageclass.storage.k8s.io/"));
    if let Some(prefix) = &prefix {
        usage.insert(format!("{prefix}{plain}"), number(1));
    }
    let amount = |path: &[&str]| {
        let q = Quantity::from_value(object::at(claim, path)?).ok()?;
        Some(q.round_up(0).0)
    };
    let Some(mut storage) = amount(&["spec", "resources", "requests", "storage"]) else { return usage };
    // A volume that grew, or still grows, counts by what it takes.
    if let Some(allocated) = amount(&["status", "allocatedResources", "storage"])
        && compare(&allocated, &storage) == Ordering::Greater
    {
        storage = allocated;
    }
    if let Some(prefix) = prefix {
        usage.insert(format!("{prefix}{STORAGE_REQUESTS}"), storage.clone());
    }
    usage.insert(STORAGE_REQUESTS.into(), storage);
    usage
}

fn devices(request: &Value) -> i64 {
    match object::str_at(request, &["allocationMode"]) {
        "ExactCount" => object::i64_at(request, &["count"]).unwrap_or(0),
        "All" => MOST_DEVICES,
        _ => 0,
    }
}

fn class_of(request: &Value) -> &str {
    object::str_at(request, &["deviceClassName"])
}

/// What a resource claim uses: of alternatives, the most of each class.
pub(crate) fn resources(claim: &Value, cx: &Context<'_>) -> Usage {
    let mut classes = Usage::new();
    let count = |n: i64| Quantity::new(n, Format::DecimalSi);
    for request in object::arr_at(claim, &["spec", "devices", "requests"]) {
        let alternatives = object::arr_at(request, &["firstAvailable"]);
        let mut most = Usage::new();
        if let Some(exactly) = request.get("exactly").filter(|_| alternatives.is_empty()) {
            most.insert(class_of(exactly).to_owned(), count(devices(exactly)));
        }
        for one in alternatives {
            let n = count(devices(one));
            let more = most.get(class_of(one)).map_or(n.sign() > 0, |m| compare(&n, m) == Ordering::Greater);
            if more {
                most.insert(class_of(one).to_owned(), n);
            }
        }
        add(&mut classes, &most);
    }
    let mut usage = Usage::from([("count/resourceclaims.resource.k8s.io".to_owned(), number(1))]);
    let mut requested = Usage::new();
    for (class, n) in classes {
        if n.sign() > 0 && !class.is_empty() {
            requested.insert(format!("{CLASS_REQUESTS}{class}"), n.clone());
            if let Some(name) = cx.extended_resources.get(&class) {
                requested.insert(format!("requests.{name}"), n.clone());
            }
        }
        usage.insert(format!("{class}{DEVICES}"), n);
    }
    // What the claim was made for is charged already, where it is.
    if let Some(charged) = cx.charged_to_pods.get(object::name(claim)) {
        requested = increase(&requested, charged);
    }
    usage.extend(requested.into_iter().filter(|(_, n)| n.sign() > 0));
    usage
}
