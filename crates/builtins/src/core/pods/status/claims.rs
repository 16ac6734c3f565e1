//! What a pod's status says of resource claims. Sources: `validatePodResourceClaimStatuses` and
//! `validatePodExtendedResourceClaimStatus` of `pkg/apis/core/validation`.

use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use serde_json::Value;
use std::collections::HashSet;

/// The claims that were made from templates for `spec.resourceClaims`.
pub(super) fn of_the_pod(errs: &mut ErrorList, path: &Path, status: &Value, spec: &Value) {
    let mut seen = HashSet::new();
    for (i, s) in status.list("resourceClaimStatuses").iter().enumerate() {
        let path = path.index(i);
        let name = s.text("name");
        if !spec.list("resourceClaims").iter().any(|c| c.text("name") == name) {
            let text = "must match the name of an entry in `spec.resourceClaims`";
            errs.push(Error::invalid(&path.child("name"), name, text));
        }
        if !seen.insert(name) {
            errs.push(Error::duplicate(&path.child("name"), name));
        }
        if let Some(claim) = s.opt_text("resourceClaimName") {
            check::dns_subdomain(errs, &path.child("resourceClaimName"), claim);
        }
    }
}

/// The claim that the scheduler made for extended resources. Source: `validatePodExtendedResourceClaimStatus`.
pub(super) fn of_extended_resources(errs: &mut ErrorList, path: &Path, status: &Value, spec: &Value) {
    let Some(claim) = status.get_field("extendedResourceClaimStatus") else { return };
    let path = path.child("extendedResourceClaimStatus");
    let (at, mappings) = (path.child("requestMappings"), claim.list("requestMappings"));
    if mappings.is_empty() {
        errs.push(Error::required(&at, "at least one request mapping is required"));
    }
    let containers = || ["initContainers", "containers"].iter().flat_map(|list| spec.list(list));
    let mut seen = HashSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let at = at.index(i);
        let names @ [container, resource, request] =
            ["containerName", "resourceName", "requestName"].map(|field| mapping.text(field));
        match containers().rfind(|c| c.text("name") == container) {
            Some(c) if c.at("resources").at("requests").has(resource) => {}
            Some(_) => {
                let text = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                errs.push(Error::invalid(&at.child("resourceName"), resource, text));
            }
            None => {
                let text =
                    "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errs.push(Error::invalid(&at.child("containerName"), container, text));
            }
        }
        check::dns_label(errs, &path.child("requestName"), request);
        if !seen.insert(names) {
            errs.push(Error::duplicate(&at.child("containerName"), container));
            errs.push(Error::duplicate(&at.child("resourceName"), resource));
            errs.push(Error::duplicate(&at.child("requestName"), request));
        }
    }
    match claim.text("resourceClaimName") {
        "" => errs.push(Error::required(&path.child("resourceClaimName"), "")),
        name => check::dns_subdomain(errs, &path.child("resourceClaimName"), name),
    }
}
