//! What is sent to extenders and what they answer: `k8s.io/kube-scheduler/extender/v1`.
//!
//! The types have no JSON names upstream: members have the names of Go's fields when they are sent, and are found whatever
//! their case when they are read, as Go's decoder finds them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A list of objects.
#[derive(Serialize)]
pub struct Items<'a> {
    /// The objects.
    pub items: Vec<&'a RawValue>,
}

/// `ExtenderArgs`
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderArgs<'a> {
    /// The pod.
    pub pod: &'a RawValue,
    /// Nodes; for extenders that know none.
    pub nodes: Option<Items<'a>>,
    /// Names of nodes; for those that know them.
    pub node_names: Option<Vec<&'a str>>,
}

/// `MetaPod`
#[derive(Serialize)]
pub struct MetaPod<'a> {
    /// The pod's uid.
    #[serde(rename = "UID")]
    pub uid: &'a str,
}

/// `Victims` and `MetaVictims`
#[derive(Serialize)]
pub struct Victims<P> {
    /// Pods.
    #[serde(rename = "Pods")]
    pub pods: Vec<P>,
    /// How many of them violate a budget.
    #[serde(rename = "NumPDBViolations")]
    pub violations: usize,
}

/// `ExtenderPreemptionArgs`
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptionArgs<'a> {
    /// The pod that needs room.
    pub pod: &'a RawValue,
    /// Whole victims; for extenders that know no pods.
    pub node_name_to_victims: Option<BTreeMap<&'a str, Victims<&'a RawValue>>>,
    /// Uids of victims; for those that know them.
    pub node_name_to_meta_victims: Option<BTreeMap<&'a str, Victims<MetaPod<'a>>>>,
}

/// `ExtenderBindingArgs`
#[derive(Serialize)]
pub struct BindingArgs<'a> {
    /// The pod's name.
    #[serde(rename = "PodName")]
    pub name: &'a str,
    /// Its namespace.
    #[serde(rename = "PodNamespace")]
    pub namespace: &'a str,
    /// Its uid.
    #[serde(rename = "PodUID")]
    pub uid: &'a str,
    /// The chosen node.
    #[serde(rename = "Node")]
    pub node: &'a str,
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// An object's members; `null` has none.
fn members(text: &str) -> Result<Members<'_>, String> {
    let members: Option<Members<'_>> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(members.unwrap_or_default())
}

/// A member by its name, whatever its case; nothing for `null`.
fn member<'a, T: Deserialize<'a> + Default>(members: &Members<'a>, name: &str) -> Result<T, String> {
    let exact = members.get(name).copied();
    let any = || members.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
    let Some(value) = exact.or_else(any) else { return Ok(T::default()) };
    let value: Option<T> = serde_json::from_str(value.get()).map_err(|error| format!("{name}: {error}"))?;
    Ok(value.unwrap_or_default())
}

fn text(answer: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(answer).map_err(|error| error.to_string())
}

/// `ExtenderFilterResult`
#[derive(Debug, Default, PartialEq)]
pub struct FilterResult {
    /// The names of the nodes that are left, of a list of nodes.
    pub nodes: Option<Vec<String>>,
    /// The same, of a list of names.
    pub node_names: Option<Vec<String>>,
    /// Nodes that are rejected, with reasons.
    pub failed: BTreeMap<String, String>,
    /// Nodes that would be rejected whichever pods were removed.
    pub unresolvable: BTreeMap<String, String>,
    /// Why nothing is said.
    pub error: String,
}

impl FilterResult {
    /// # Errors
    /// For what is no result.
    pub fn parse(answer: &[u8]) -> Result<Self, String> {
        let all = members(text(answer)?)?;
        let nodes: Option<&RawValue> = member(&all, "Nodes")?;
        let names = nodes.map(|nodes| -> Result<Vec<String>, String> {
            let items: Vec<&RawValue> = member(&members(nodes.get())?, "items")?;
            items.into_iter().map(name_of).collect()
        });
        Ok(FilterResult {
            nodes: names.transpose()?,
            node_names: member(&all, "NodeNames")?,
            failed: member(&all, "FailedNodes")?,
            unresolvable: member(&all, "FailedAndUnresolvableNodes")?,
            error: member(&all, "Error")?,
        })
    }
}

fn name_of(object: &RawValue) -> Result<String, String> {
    let metadata: Option<&RawValue> = member(&members(object.get())?, "metadata")?;
    metadata.map_or_else(|| Ok(String::new()), |metadata| member(&members(metadata.get())?, "name"))
}

/// `HostPriorityList`: scores by the nodes' names.
///
/// # Errors
/// For what is none.
pub fn scores(answer: &[u8]) -> Result<Vec<(String, i64)>, String> {
    let list: Option<Vec<&RawValue>> = serde_json::from_str(text(answer)?).map_err(|e| e.to_string())?;
    let score = |entry: &RawValue| -> Result<(String, i64), String> {
        let entry = members(entry.get())?;
        Ok((member(&entry, "Host")?, member(&entry, "Score")?))
    };
    list.unwrap_or_default().into_iter().map(score).collect()
}

/// `ExtenderPreemptionResult`: for each node the uids of the victims, and how many of them violate a budget.
///
/// # Errors
/// For what is none.
pub fn victims(answer: &[u8]) -> Result<Vec<(String, Vec<String>, usize)>, String> {
    let nodes: BTreeMap<String, Option<&RawValue>> =
        member(&members(text(answer)?)?, "NodeNameToMetaVictims")?;
    type OfNode = (String, Vec<String>, usize);
    let of_node = |(node, victims): (String, Option<&RawValue>)| -> Result<OfNode, String> {
        let Some(victims) = victims else { return Ok((node, vec![], 0)) };
        let victims = members(victims.get())?;
        let pods: Vec<&RawValue> = member(&victims, "Pods")?;
        let uids = pods.into_iter().map(|pod| member(&members(pod.get())?, "UID"));
        let violations: i64 = member(&victims, "NumPDBViolations")?;
        let violations = usize::try_from(violations).unwrap_or_default();
        Ok((node, uids.collect::<Result<Vec<String>, String>>()?, violations))
    };
    nodes.into_iter().map(of_node).collect()
}

/// `ExtenderBindingResult`
///
/// # Errors
/// What the extender says, and what is no result.
pub fn bound(answer: &[u8]) -> Result<(), String> {
    let error: String = member(&members(text(answer)?)?, "Error")?;
    if error.is_empty() { Ok(()) } else { Err(error) }
}
