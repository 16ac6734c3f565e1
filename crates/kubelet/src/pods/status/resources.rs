//! What a pod as a whole was granted and runs with: `status.allocatedResources` and `status.resources` (KEP-5419). Upstream's
//! `convertToAPIPodLevelResourcesStatus`.
//!
//! Invariant: of a pod that runs, processors and the limit of memory are those of its cgroup, as thousandths that its shares and
//! quota stand for; the request of memory is not in the cgroup and is the one that was last put into effect.

use super::Inputs;
use crate::pods::core::{PodStatus, ResourceRequirements};
use crate::pods::model::{self, Amounts};
use crate::pods::resources;
use kaji_meta::quantity::{Format, Quantity};

/// Shares and thousandths of a limit that stand for nothing at all.
const LEAST: (i64, i64) = (2, 10);

/// Fills both fields.
pub(super) fn fill(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let pod = inputs.pod;
    let requests = resources::requests_of_pod(pod);
    let runs = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
    let shown = if runs { in_effect(inputs, &requests) } else { granted(inputs, requests.clone()) };
    status.resources = Some(shown);
    status.allocated_resources = Some(requests).filter(|requests| !requests.is_empty());
}

fn some(amounts: Amounts) -> Option<Amounts> {
    Some(amounts).filter(|amounts| !amounts.is_empty())
}

fn granted(inputs: &Inputs<'_>, requests: Amounts) -> ResourceRequirements {
    let claims = model::spec(inputs.pod).resources.as_ref().and_then(|own| own.claims.clone());
    let limits = resources::limits_of_pod(inputs.pod);
    ResourceRequirements { claims, requests: some(requests), limits: some(limits) }
}

fn in_effect(inputs: &Inputs<'_>, requests_in_all: &Amounts) -> ResourceRequirements {
    let own = model::spec(inputs.pod).resources.clone().unwrap_or_default();
    let (mut requests, mut limits) = (own.requests.unwrap_or_default(), own.limits.unwrap_or_default());
    let of_grant;
    let cgroup = match &inputs.resizing.cgroup {
        Some(cgroup) => cgroup,
        None => {
            of_grant = resources::of_pod(inputs.pod);
            &of_grant
        }
    };
    let processors = |amounts: &mut Amounts, milli: i64, least: i64| {
        let before = model::milli(Some(amounts), "cpu").unwrap_or(0);
        if milli > 0 && (milli > least || before > least) && before != milli {
            let amount = model::api_quantity(&Quantity::milli(milli, Format::DecimalSi));
            amounts.insert("cpu".to_owned(), amount);
        }
    };
    let bytes = |amounts: &mut Amounts, bytes: i64| {
        if bytes > 0 && model::whole(Some(amounts), "memory") != Some(bytes) {
            let amount = model::api_quantity(&Quantity::new(bytes, Format::BinarySi));
            amounts.insert("memory".to_owned(), amount);
        }
    };
    processors(&mut requests, resources::milli_of_shares(cgroup.cpu_shares), LEAST.0);
    processors(&mut limits, resources::milli_of_quota(cgroup.cpu_quota, cgroup.cpu_period), LEAST.1);
    bytes(&mut limits, cgroup.memory_limit_bytes);
    match (requests.contains_key("memory"), requests_in_all.get("memory")) {
        (true, _) => bytes(&mut requests, inputs.resizing.pod.map_or(0, |pod| pod.memory_request)),
        (false, Some(amount)) => drop(requests.insert("memory".to_owned(), amount.clone())),
        (false, None) => {}
    }
    ResourceRequirements { claims: own.claims, requests: some(requests), limits: some(limits) }
}
