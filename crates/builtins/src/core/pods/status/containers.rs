//! What a pod's status says of single containers: users and the resources that they were given. Sources:
//! `validateContainerStatusUsers` and `validateContainerStatusAllocatedResourcesStatus` of `pkg/apis/core/validation`.

use super::LISTS;
use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    validation,
};
use serde_json::Value;
use std::collections::HashSet;

/// The longest message about a resource's health, in bytes.
const LONGEST_MESSAGE: usize = 1024;

/// Users and allocated resources in all lists of statuses.
pub(super) fn validate(errs: &mut ErrorList, path: &Path, status: &Value, spec: &Value) {
    let windows = spec.at("os").text("name") == "windows";
    for (list, _) in LISTS {
        for (i, container) in status.list(list).iter().enumerate() {
            if let Some(linux) = container.at("user").get_field("linux") {
                user(errs, &path.child(list).index(i).child("user").child("linux"), linux, windows);
            }
        }
    }
    for (list, containers) in LISTS {
        for (i, container) in status.list(list).iter().enumerate() {
            let at = path.child(list).index(i).child("allocatedResourcesStatus");
            match containers {
                Some(containers) => {
                    let named = |c: &&Value| c.text("name") == container.text("name");
                    allocated(errs, &at, container, spec.list(containers).iter().find(named));
                }
                None if container.list("allocatedResourcesStatus").is_empty() => {}
                None => errs.push(Error::forbidden(&at, "must not be specified in container status")),
            }
        }
    }
}

fn user(errs: &mut ErrorList, path: &Path, linux: &Value, windows: bool) {
    if windows {
        errs.push(Error::forbidden(path, "cannot be set for a windows pod"));
        return;
    }
    let (uid, gid) = (linux.int("uid"), linux.int("gid"));
    check::each(errs, &path.child("uid"), uid, validation::is_valid_user_id(uid));
    check::each(errs, &path.child("gid"), gid, validation::is_valid_group_id(gid));
    for (i, id) in linux.list("supplementalGroups").iter().enumerate() {
        let id = id.as_i64().unwrap_or(0);
        let at = path.child("supplementalGroups").index(i);
        check::each(errs, &at, id, validation::is_valid_group_id(id));
    }
}

/// `container` is that of the spec; a status may be about one that is not there.
fn allocated(errs: &mut ErrorList, path: &Path, status: &Value, container: Option<&Value>) {
    for (i, resource) in status.list("allocatedResourcesStatus").iter().enumerate() {
        let (at, name) = (path.index(i), resource.text("name"));
        if let Some(container) = container
            && let Err(text) = is_asked_for(container.at("resources"), name)
        {
            errs.push(Error::invalid(&at.child("name"), name, text));
        }
        let mut ids = HashSet::new();
        for (j, health) in resource.list("resources").iter().enumerate() {
            let at = at.child("resources").index(j);
            check::one_of(
                errs,
                &at.child("health"),
                health.text("health"),
                &["Healthy", "Unhealthy", "Unknown"],
            );
            match health.opt_text("message") {
                Some("") => {
                    errs.push(Error::required(&at.child("message"), "must be non-empty if specified"))
                }
                Some(text) if text.len() > LONGEST_MESSAGE => {
                    errs.push(Error::too_long(&at.child("message"), text, LONGEST_MESSAGE));
                }
                _ => {}
            }
            let id = health.text("resourceID");
            if !ids.insert(id) {
                errs.push(Error::duplicate(&at.child("resourceID"), id));
            }
        }
    }
}

/// Whether a container asks for the resource: a claim (`claim:NAME` or `claim:NAME/REQUEST`), or by name.
fn is_asked_for(resources: &Value, name: &str) -> Result<(), &'static str> {
    let Some(claim) = name.strip_prefix("claim:") else {
        let asked = resources.at("requests").has(name);
        return if asked { Ok(()) } else { Err("must match one of the container's resource requests") };
    };
    let named = |c: &Value| match c.text("request") {
        "" => c.text("name") == claim,
        request => claim.split_once('/') == Some((c.text("name"), request)),
    };
    if resources.list("claims").iter().any(named) {
        return Ok(());
    }
    Err(
        "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
    )
}
