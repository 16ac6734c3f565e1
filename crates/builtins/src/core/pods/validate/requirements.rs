//! Resource requests, limits and claims, of containers and of pods as a whole.

use super::Cx;
use crate::{
    core::pods::resources::{self, is_overcommit_allowed, is_pod_level},
    shared::{
        Fields,
        check::{self, quantity},
        rules,
    },
};
use kaji_meta::{
    Path, Quantity,
    field::{Error, ErrorList},
    validation,
};
use kaji_quota::names;
use serde_json::Value;
use std::collections::BTreeSet;

fn pod_resource_name(errs: &mut ErrorList, path: &Path, name: &str) {
    if rules::resource_name(errs, path, name) && !is_pod_level(name) {
        errs.push(Error::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
}

fn amount(errs: &mut ErrorList, path: &Path, name: &str, value: &Value, q: &Quantity) {
    check::not_negative_quantity(errs, path, value);
    if names::is_integer(name) && q.milli_value() % 1000 != 0 {
        errs.push(Error::invalid(path, q.to_string(), "must be an integer"));
    }
    if names::is_hugepages(name) {
        let page = name.strip_prefix("hugepages-").and_then(|s| Quantity::parse(s).ok());
        let whole = page.is_some_and(|p| {
            p.sign() > 0 && p.milli_value() % 1000 == 0 && p.value() != 0 && q.value() % p.value() == 0
        });
        if !whole {
            let text = format!("{q} is not positive integer multiple of {name}");
            errs.push(Error::invalid(path, q.to_string(), text));
        }
    }
}

/// `resources` of a container.
pub fn requirements(errs: &mut ErrorList, path: &Path, r: &Value, claims: &BTreeSet<&str>) {
    check_requirements(errs, path, r, claims, rules::container_resource_name);
}

fn check_requirements(
    errs: &mut ErrorList,
    path: &Path,
    r: &Value,
    claims: &BTreeSet<&str>,
    check_name: fn(&mut ErrorList, &Path, &str),
) {
    let (mut huge, mut compute) = (false, false);
    let mut note = |name: &str| {
        huge |= names::is_hugepages(name);
        compute |= matches!(name, "cpu" | "memory");
    };
    if let Some(limits) = r.map("limits") {
        let path = path.child("limits");
        for (name, v) in limits {
            let path = path.key(name);
            check_name(errs, &path, name);
            if let Some(q) = quantity(v) {
                amount(errs, &path, name, v, &q);
            }
            note(name);
        }
    }
    if let Some(requests) = r.map("requests") {
        let list = path.child("requests");
        for (name, v) in requests {
            let own = list.key(name);
            check_name(errs, &own, name);
            note(name);
            let Some(q) = quantity(v) else { continue };
            amount(errs, &own, name, v, &q);
            match r.at("limits").get_field(name).and_then(quantity) {
                Some(limit) if q != limit && !is_overcommit_allowed(name) => {
                    let text = format!("must be equal to {name} limit of {limit}");
                    errs.push(Error::invalid(&list, q.to_string(), text));
                }
                Some(limit) if q > limit => {
                    let text = format!("must be less than or equal to {name} limit of {limit}");
                    errs.push(Error::invalid(&list, q.to_string(), text));
                }
                None if !is_overcommit_allowed(name) => {
                    let text = "Limit must be set for non overcommitable resources";
                    errs.push(Error::required(&path.child("limits"), text));
                }
                _ => {}
            }
        }
    }
    if huge && !compute {
        errs.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
    claim_names(errs, &path.child("claims"), r.list("claims"), claims);
}

fn claim_names(errs: &mut ErrorList, path: &Path, list: &[Value], known: &BTreeSet<&str>) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (i, claim) in list.iter().enumerate() {
        let path = path.index(i);
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            errs.push(Error::required(&path, ""));
            continue;
        }
        if seen.contains(name) {
            errs.push(Error::duplicate(&path, name));
        } else {
            let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
            if !request.is_empty() {
                check::each(errs, &path.child("request"), request, validation::is_dns1123_label(request));
            }
            if seen.contains(&key) {
                errs.push(Error::duplicate(&path, key.as_str()));
            } else if request.is_empty() {
                let overlaps =
                    seen.iter().filter(|k| k.split_once('/').is_some_and(|(n, _)| n == name)).count();
                errs.extend((0..overlaps).map(|_| Error::duplicate(&path, name)));
            }
            seen.insert(key);
        }
        if !known.contains(name) {
            let mut e = Error::not_found(&path, name);
            e.detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if known.is_empty() {
                e.detail.push_str(" which is empty");
            } else {
                e.detail.push_str(": ");
                e.detail.push_str(&known.iter().copied().collect::<Vec<_>>().join(", "));
            }
            errs.push(e);
        }
    }
}

/// `spec.resources`: what the pod as a whole has (KEP-2837).
pub(super) fn pod_level(errs: &mut ErrorList, cx: &Cx<'_>, path: &Path) {
    let Some(r) = cx.spec.get_field("resources") else { return };
    let path = path.child("resources");
    if cx.os == Some("windows") {
        errs.push(Error::forbidden(&path, "may not be set for a windows pod"));
        return;
    }
    if r.has("claims") {
        errs.push(Error::forbidden(
            &path.child("claims"),
            "claims may not be set for Resources at pod-level",
        ));
    }
    check_requirements(errs, &path, r, &cx.claims, pod_resource_name);
    for (name, sum) in resources::aggregate(cx.spec.value(), "requests") {
        if let Some(q) = r.at("requests").get_field(&name).and_then(quantity).filter(|q| sum > *q) {
            let text = format!("must be greater than or equal to aggregate container requests of {sum}");
            errs.push(Error::invalid(&path.child("requests").key(&name), q.to_string(), text));
        }
    }
    for (name, sum) in
        resources::aggregate(cx.spec.value(), "limits").into_iter().filter(|(n, _)| names::is_hugepages(n))
    {
        if let Some(q) = r.at("limits").get_field(&name).and_then(quantity).filter(|q| sum > *q) {
            let text = format!("must be greater than or equal to aggregate container limits of {sum}");
            errs.push(Error::invalid(&path.child("limits").key(&name), q.to_string(), text));
        }
    }
    for (i, c) in cx.spec.list("containers").iter().enumerate() {
        for (name, v) in c.at("resources").map("limits").into_iter().flatten() {
            let (Some(own), Some(whole)) = (quantity(v), r.at("limits").get_field(name).and_then(quantity))
            else {
                continue;
            };
            if own > whole {
                let path = path.child("containers").index(i).key(name).child("limits");
                let text = format!("must be less than or equal to pod limits of {whole}");
                errs.push(Error::invalid(&path, own.to_string(), text));
            }
        }
    }
}
