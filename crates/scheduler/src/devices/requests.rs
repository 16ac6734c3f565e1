//! What claims ask for, as the search uses it: requests with their alternatives, of all claims in order.
//!
//! Invariant: every alternative has a class that exists.

use super::{
    constraints::{Constraint, RequestNames},
    selectors::{Compiled, Selectors},
    usage::Amounts,
};
use kaji_runtime::{
    ObjectSnapshot,
    objects::{
        DeviceClaimSpec, DeviceClass, DeviceRequest, DeviceRequirements, DeviceTaint, DeviceToleration,
    },
};
use std::sync::Arc;

/// A claim for which devices are to be found.
#[derive(Clone, Debug)]
pub struct Claim {
    /// `NAMESPACE/NAME`
    pub name: String,
    /// What it asks for.
    pub spec: Arc<DeviceClaimSpec>,
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many.
    Count(usize),
    /// All that there are, one at least.
    All,
}

/// One of the ways to satisfy a request.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The request and the alternative, `request/alternative`; the request's name if it has none.
    pub full: Box<str>,
    /// What texts call it.
    pub name: Box<str>,
    /// Its class.
    pub class: Arc<DeviceClass>,
    /// How many devices.
    pub wanted: Wanted,
    /// Devices that are in use will do.
    pub admin_access: bool,
    /// Tolerations of taints.
    pub tolerations: Vec<DeviceToleration>,
    /// Amounts of capacity.
    pub capacity: Amounts,
    /// The class's selectors, then its own, each with what errors call it.
    pub selectors: Vec<(Box<str>, Compiled)>,
}

impl Alternative {
    /// Whether it tolerates all of these taints.
    pub fn tolerates(&self, taints: &[DeviceTaint]) -> bool {
        taints.iter().all(|taint| self.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    }
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let is = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
    is(&toleration.effect, &taint.effect)
        && is(&toleration.key, &taint.key)
        && match &*toleration.operator {
            "" | "Equal" => toleration.value == taint.value,
            operator => operator == "Exists",
        }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The index of its claim.
    pub claim: usize,
    /// Its name.
    pub name: Box<str>,
    /// The ways to satisfy it, the best first.
    pub alternatives: Vec<Alternative>,
}

impl Request {
    /// What constraints know the devices of an alternative by.
    pub fn names(&self, alternative: usize) -> RequestNames<'_> {
        RequestNames { request: &self.name, full: &self.alternatives[alternative].full }
    }
}

/// What all claims of a pod ask for.
#[derive(Clone, Debug)]
pub struct DeviceRequests {
    /// The claims.
    pub claims: Vec<Claim>,
    /// The requests of all of them, in order.
    pub requests: Vec<Request>,
}

impl DeviceRequests {
    /// Of claims, with the classes that there are.
    ///
    /// # Errors
    /// Something is not understood, or a class does not exist. Texts are upstream's.
    pub fn new(
        claims: Vec<Claim>,
        classes: &ObjectSnapshot<DeviceClass>,
        selectors: &Selectors,
    ) -> Result<Self, String> {
        let mut requests = vec![];
        for (place, claim) in claims.iter().enumerate() {
            for request in &claim.spec.requests {
                let of: Vec<(&DeviceRequirements, bool)> = match &request.exactly {
                    Some(exactly) => vec![(exactly, false)],
                    None => request.first_available.iter().map(|alternative| (alternative, true)).collect(),
                };
                if of.is_empty() {
                    return Err(format!(
                        "claim {}, request {}: unknown request type",
                        claim.name, request.name
                    ));
                }
                let alternatives = of.into_iter().map(|(requirements, named)| {
                    alternative(claim, request, requirements, named, classes, selectors)
                });
                let alternatives = alternatives.collect::<Result<_, _>>()?;
                requests.push(Request { claim: place, name: request.name.clone(), alternatives });
            }
            let unknown = claim.spec.constraints.iter().position(|c| Constraint::of(c).is_none());
            if let Some(place) = unknown {
                return Err(format!(
                    "claim {}, constraint #{place}: empty constraint (unsupported constraint type?)",
                    claim.name
                ));
            }
        }
        Ok(DeviceRequests { claims, requests })
    }
}

fn alternative(
    claim: &Claim,
    request: &DeviceRequest,
    requirements: &DeviceRequirements,
    named: bool,
    classes: &ObjectSnapshot<DeviceClass>,
    selectors: &Selectors,
) -> Result<Alternative, String> {
    let name = if named { &requirements.name } else { &request.name };
    let failed = |text: String| Err(format!("claim {}, request {name}: {text}", claim.name));
    let class_name = &*requirements.device_class_name;
    if class_name.is_empty() {
        return failed("missing device class name (unsupported request type?)".to_owned());
    }
    let Some(class) = classes.get("", class_name) else {
        return failed(format!(
            "could not retrieve device class {class_name}: deviceclass.resource.k8s.io \"{class_name}\" not found"
        ));
    };
    if let Some(place) = requirements.selectors.iter().position(|selector| selector.cel.is_none()) {
        return failed(format!("selector #{place}: CEL expression empty (unsupported selector type?)"));
    }
    let wanted = match &*requirements.allocation_mode {
        "ExactCount" => Wanted::Count(usize::try_from(requirements.count).unwrap_or_default().max(1)),
        "All" => Wanted::All,
        mode => return failed(format!("unsupported count mode {mode}")),
    };
    let of_class =
        class.spec.selectors.iter().enumerate().map(|(i, s)| (format!("class {class_name}"), i, s));
    let own = requirements.selectors.iter().enumerate().map(|(i, s)| (format!("claim {}", claim.name), i, s));
    let compiled = of_class.chain(own).map(|(of, place, selector)| {
        let text = selector.cel.as_ref().map_or("", |cel| &*cel.expression);
        (format!("{of}: selector #{place}").into(), selectors.get(text))
    });
    let full = if named { format!("{}/{name}", request.name).into() } else { request.name.clone() };
    Ok(Alternative {
        full,
        name: name.clone(),
        class: class.clone(),
        wanted,
        admin_access: requirements.admin_access && !named,
        tolerations: requirements.tolerations.clone(),
        capacity: requirements.capacity.requests.clone(),
        selectors: compiled.collect(),
    })
}
