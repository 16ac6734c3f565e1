//! What the devices of a claim have in common, or not.
//!
//! Invariant: a constraint that forbids a device forbids it whichever devices are added later, so that the search may stop early.

use super::DeviceId;
use kaji_runtime::objects::{Device, DeviceAttribute, DeviceConstraint};

#[derive(Clone, Debug)]
enum Kind {
    /// All values are equal.
    Match,
    /// All values differ.
    Distinct,
}

/// A constraint, and the values of the devices that were chosen so far.
#[derive(Clone, Debug)]
pub struct Constraint<'a> {
    kind: Kind,
    requests: &'a [Box<str>],
    attribute: &'a str,
    values: Vec<&'a DeviceAttribute>,
}

/// The request that a device is for.
#[derive(Clone, Copy, Debug)]
pub struct RequestNames<'a> {
    /// Its name.
    pub request: &'a str,
    /// The request and the alternative, `request/alternative`; the request's name if it has none.
    pub full: &'a str,
}

impl<'a> Constraint<'a> {
    /// Of a claim's constraint; `None` if its kind is not known.
    pub fn of(constraint: &'a DeviceConstraint) -> Option<Self> {
        let (kind, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Kind::Match, attribute),
            (None, Some(attribute)) => (Kind::Distinct, attribute),
            (None, None) => return None,
        };
        Some(Constraint { kind, requests: &constraint.requests, attribute, values: vec![] })
    }

    fn concerns(&self, names: RequestNames<'_>) -> bool {
        let named = |name: &str| name == names.request || name == names.full;
        self.requests.is_empty() || self.requests.iter().any(|name| named(name))
    }

    /// Adds a device, unless it is forbidden.
    pub fn add(&mut self, names: RequestNames<'_>, id: &DeviceId, device: &'a Device) -> bool {
        if !self.concerns(names) {
            return true;
        }
        let Some(value) = attribute(self.attribute, id, device) else { return false };
        let known_type =
            value.string.is_some() || value.int.is_some() || value.bool.is_some() || value.version.is_some();
        let fits = match self.kind {
            Kind::Match => self.values.first().is_none_or(|first| known_type && *first == value),
            Kind::Distinct => self.values.is_empty() || (known_type && !self.values.contains(&value)),
        };
        if fits {
            self.values.push(value);
        }
        fits
    }

    /// Takes the device back that was added last for the same request.
    pub fn remove(&mut self, names: RequestNames<'_>) {
        if self.concerns(names) {
            self.values.pop();
        }
    }
}

/// A device's attribute by its full name; one of the driver's domain may be named without it.
fn attribute<'a>(name: &str, id: &DeviceId, device: &'a Device) -> Option<&'a DeviceAttribute> {
    let own = || name.split_once('/').filter(|(domain, _)| **domain == *id.driver).map(|(_, rest)| rest);
    device.attributes.get(name).or_else(|| device.attributes.get(own()?))
}
