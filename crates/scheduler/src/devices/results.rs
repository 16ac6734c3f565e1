//! What is written of an allocation: its devices, the parameters for their drivers, and the nodes that reach them.
//!
//! Invariant: parameters of a class come before those of the claim, which override them.

use super::{
    allocator::{Candidate, Chosen},
    requests::{DeviceRequests, Request},
    usage::Amounts,
};
use kaji_meta::random::{Random, uid};
use kaji_runtime::objects::{AllocatedDevices, DeviceAllocation, DeviceResult, Node};
use serde_json::{Value, json};

/// The allocations of all claims.
///
/// # Errors
/// A slice has a node selector that is not understood.
pub fn of(
    requested: &DeviceRequests,
    candidates: &[Candidate<'_>],
    chosen: &[Vec<Chosen>],
    selected: &[usize],
    node: &Node,
    random: &dyn Random,
) -> Result<Vec<DeviceAllocation>, String> {
    let requests: Vec<(&Request, usize)> =
        requested.requests.iter().zip(selected).map(|(r, alternative)| (r, *alternative)).collect();
    let of_claim = |(place, chosen): (usize, &Vec<Chosen>)| {
        let results = chosen.iter().map(|chosen| result(chosen, &requests, candidates, random));
        let own = requests.iter().copied().filter(|(request, _)| request.claim == place);
        let claim = &requested.claims[place];
        let mut config = class_config(own.clone());
        config.extend(claim.spec.config.iter().flat_map(|config| claim_config(config, own.clone())));
        let node_selector = node_selector(chosen, candidates, node)
            .map_err(|error| format!("create NodeSelector for claim {}: {error}", claim.name))?;
        let devices = AllocatedDevices { results: results.collect(), config };
        Ok(DeviceAllocation { devices, node_selector, allocation_timestamp: None })
    };
    chosen.iter().enumerate().map(of_claim).collect()
}

fn result(
    chosen: &Chosen,
    requests: &[(&Request, usize)],
    candidates: &[Candidate<'_>],
    random: &dyn Random,
) -> DeviceResult {
    let (request, alternative) = requests[chosen.request];
    let alternative = &request.alternatives[alternative];
    let entry = candidates[chosen.candidate].entry;
    let (id, device) = (&entry.id, entry.device());
    let amounts =
        |amounts: &Amounts| amounts.iter().map(|(name, q)| (name.clone(), Value::from(q))).collect();
    DeviceResult {
        request: alternative.full.clone(),
        driver: id.driver.clone(),
        pool: id.pool.clone(),
        device: id.device.clone(),
        admin_access: alternative.admin_access.then_some(true),
        tolerations: alternative.tolerations.clone(),
        binding_conditions: device.binding_conditions.clone(),
        binding_failure_conditions: device.binding_failure_conditions.clone(),
        share_id: chosen.shared.as_ref().map(|_| uid(random).into()),
        consumed_capacity: chosen.shared.as_ref().map(amounts).unwrap_or_default(),
    }
}

/// The parameters of classes, once each, with the requests that they are for.
fn class_config<'a>(requests: impl Iterator<Item = (&'a Request, usize)>) -> Vec<Value> {
    let mut classes: Vec<(&str, Vec<&str>, &[Value])> = vec![];
    for (request, alternative) in requests {
        let alternative = &request.alternatives[alternative];
        let class = &alternative.class;
        match classes.iter_mut().find(|(name, ..)| *name == class.metadata.name) {
            Some((_, requests, _)) => requests.push(&alternative.full),
            None => {
                let config = class.spec.config.as_slice();
                classes.push((&class.metadata.name, vec![&alternative.full], config));
            }
        }
    }
    let of_class = |(_, requests, config): (&str, Vec<&str>, &[Value])| -> Vec<Value> {
        let entry =
            |raw: &Value| json!({"source": "FromClass", "requests": requests, "opaque": raw["opaque"]});
        config.iter().map(entry).collect()
    };
    classes.into_iter().flat_map(of_class).collect()
}

/// The parameters of a claim's entry: for all requests, or as often as one of its requests was allocated.
fn claim_config<'a>(raw: &Value, requests: impl Iterator<Item = (&'a Request, usize)>) -> Vec<Value> {
    let names = raw["requests"].as_array().map_or(&[][..], Vec::as_slice);
    if names.is_empty() {
        return vec![json!({"source": "FromClaim", "opaque": raw["opaque"]})];
    }
    let named = |(request, alternative): &(&Request, usize)| {
        let full = &*request.alternatives[*alternative].full;
        names.iter().filter_map(Value::as_str).any(|name| name == &*request.name || name == full)
    };
    let entry = |_| json!({"source": "FromClaim", "requests": names, "opaque": raw["opaque"]});
    requests.filter(named).map(entry).collect()
}

/// The nodes that reach all the devices; `None` if all nodes do.
fn node_selector(
    chosen: &[Chosen],
    candidates: &[Candidate<'_>],
    node: &Node,
) -> Result<Option<Value>, String> {
    let (mut fields, mut expressions) = (vec![], vec![]);
    for chosen in chosen {
        let entry = candidates[chosen.candidate].entry;
        let (name, selector) = entry.nodes();
        if name.is_some_and(|name| !name.is_empty()) || entry.device().binds_to_node {
            let only = json!({"key": "metadata.name", "operator": "In", "values": [node.metadata.name]});
            return Ok(Some(json!({"nodeSelectorTerms": [{"matchFields": [only]}]})));
        }
        let terms = selector.and_then(|selector| selector["nodeSelectorTerms"].as_array());
        match terms.map_or(&[][..], Vec::as_slice) {
            [] => {}
            [term] => {
                add_new(&mut fields, &term["matchFields"]);
                add_new(&mut expressions, &term["matchExpressions"]);
            }
            terms => {
                return Err(format!("unsupported ResourceSlice.NodeSelector with {} terms", terms.len()));
            }
        }
    }
    let mut term = json!({});
    for (key, list) in [("matchFields", fields), ("matchExpressions", expressions)] {
        if !list.is_empty() {
            term[key] = list.into();
        }
    }
    let any = term.as_object().is_some_and(|term| !term.is_empty());
    Ok(any.then(|| json!({"nodeSelectorTerms": [term]})))
}

fn add_new(all: &mut Vec<Value>, more: &Value) {
    let values = |requirement: &Value| -> std::collections::BTreeSet<String> {
        let values = requirement["values"].as_array().into_iter().flatten();
        values.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for new in more.as_array().into_iter().flatten() {
        let same = |known: &Value| {
            known["key"] == new["key"] && known["operator"] == new["operator"] && values(known) == values(new)
        };
        if !all.iter().any(same) {
            all.push(new.clone());
        }
    }
}
