//! Cluster IPs: one `IPAddress` object each, so that the store itself keeps them unique (KEP-1880).
//!
//! Invariants: an address is taken by creating its object, which only one writer can; it is given back by deleting it.
//! Addresses that could not be released at once (without an engine) are kept in a bounded list and released by the next write.

use super::families::{V4, V6};
use crate::{
    Deps,
    shared::{
        conditions,
        net::{Cidr, number_ip, parse_ip_sloppy},
        value::Fields,
    },
};
use kaji_meta::{GroupResource, Status, object};
use kaji_resource::{Api, Ctx, DeleteOptions};
use serde_json::{Value, json};
use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

const MAX_PENDING: usize = 10_000;

/// Why no address was given.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No block contains it.
    #[error("the provided network does not match the current range")]
    Mismatched,
    /// It is a block's network or broadcast address.
    #[error("the provided IP ({0}) is not in the valid range. The range of valid IPs is {1}")]
    OutOfRange(IpAddr, String),
    /// Another service holds it.
    #[error("provided IP is already allocated")]
    Allocated,
    /// None is left.
    #[error("range is full")]
    Full,
    /// It is no address.
    #[error("failed to parse service IP {0:?}")]
    Malformed(String),
    /// The object could not be written.
    #[error("{0}")]
    Api(Status),
}

/// An address to release.
#[derive(Clone, Debug)]
struct Release {
    ip: String,
    /// Namespace and name of the service that must still be its parent.
    parent: Option<(String, String)>,
}

/// The allocator of cluster IPs.
pub struct Addresses {
    deps: Deps,
    pending: Mutex<Vec<Release>>,
}

/// The resource of the objects that stand for addresses.
pub fn resource() -> GroupResource {
    GroupResource::new("networking.k8s.io", "ipaddresses")
}

fn address_object(ip: IpAddr, service: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": ip.to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": if ip.is_ipv4() { V4 } else { V6 },
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {
            "parentRef": {
                "group": "",
                "resource": "services",
                "namespace": object::namespace(service),
                "name": object::name(service),
            },
        },
    })
}

/// First and last usable address of a block, and how many addresses at its start are left for clients to choose.
fn usable(block: &Cidr) -> (u128, u128, u128) {
    let v4 = block.address.is_ipv4();
    let first = block.base().saturating_add(1);
    let last = if v4 { block.last().saturating_sub(1) } else { block.last() };
    let size = (last + 1).saturating_sub(first);
    let offset = if size <= 16 { 0 } else { (size / 16).clamp(16, 256) };
    (first, last, offset)
}

impl Addresses {
    /// An allocator over the ServiceCIDR objects, or the configured CIDRs before there are any.
    pub fn new(deps: Deps) -> Self {
        Addresses { deps, pending: Mutex::default() }
    }

    fn blocks(&self, api: &dyn Api, v4: bool) -> Vec<Cidr> {
        let objects = api.list(&GroupResource::new("networking.k8s.io", "servicecidrs"), None);
        let ready = |o: &Value| {
            let known = conditions::find(o.at("status"), "Ready").is_some();
            object::deletion_timestamp(o).is_none()
                && (!known || conditions::is_true(o.at("status"), "Ready"))
        };
        let texts: Vec<String> = if objects.is_empty() {
            self.deps.service_cidrs.clone()
        } else {
            let usable = objects.iter().filter(|o| ready(o));
            usable
                .flat_map(|o| o.at("spec").strings("cidrs").map(str::to_owned).collect::<Vec<_>>())
                .collect()
        };
        let all = texts.iter().filter_map(|t| Cidr::parse_sloppy(t));
        all.filter(|c| c.address.is_ipv4() == v4).collect()
    }

    async fn create(&self, ctx: &Ctx<'_>, ip: IpAddr, service: &Value) -> Result<(), AddressError> {
        match ctx.api.create(&resource(), "", address_object(ip, service), false).await {
            Ok(_) => Ok(()),
            Err(s) if s.is_already_exists() => Err(AddressError::Allocated),
            Err(s) => Err(AddressError::Api(s)),
        }
    }

    /// Takes a certain address.
    pub async fn take(&self, ctx: &Ctx<'_>, service: &Value, text: &str) -> Result<(), AddressError> {
        let ip = parse_ip_sloppy(text).ok_or_else(|| AddressError::Malformed(text.to_owned()))?;
        let blocks = self.blocks(ctx.api, ip.is_ipv4());
        let block = blocks.iter().find(|b| b.contains(ip)).ok_or(AddressError::Mismatched)?;
        let (first, last, _) = usable(block);
        let n = crate::shared::net::ip_number(ip);
        if n < first || n > last {
            return Err(AddressError::OutOfRange(ip, block.canonical()));
        }
        if ctx.dry_run { Ok(()) } else { self.create(ctx, ip, service).await }
    }

    /// Takes any address of a family: at random from a block's upper band, then from its lower one (KEP-3070).
    pub async fn take_next(
        &self,
        ctx: &Ctx<'_>,
        service: &Value,
        family: &str,
    ) -> Result<String, AddressError> {
        for block in self.blocks(ctx.api, family == V4) {
            if ctx.dry_run {
                return Ok(number_ip(block.base(), family == V4).to_string());
            }
            let (first, last, offset) = usable(&block);
            let size = (last + 1).saturating_sub(first);
            for (start, len) in [(first + offset, size.saturating_sub(offset)), (first, offset)] {
                if let Some(ip) = self.scan(ctx, service, start, len, family == V4).await? {
                    return Ok(ip);
                }
            }
        }
        Err(AddressError::Full)
    }

    async fn scan(
        &self,
        ctx: &Ctx<'_>,
        service: &Value,
        start: u128,
        len: u128,
        v4: bool,
    ) -> Result<Option<String>, AddressError> {
        if len == 0 {
            return Ok(None);
        }
        let shift = u128::from(ctx.random.u64()) % len;
        for i in 0..len {
            let ip = number_ip(start + (i + shift) % len, v4);
            let name = ip.to_string();
            if ctx.api.get(&resource(), "", &name).is_some() {
                continue;
            }
            match self.create(ctx, ip, service).await {
                Ok(()) => return Ok(Some(name)),
                Err(AddressError::Allocated) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn queue(&self, releases: impl IntoIterator<Item = Release>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.extend(releases);
        let excess = pending.len().saturating_sub(MAX_PENDING);
        pending.drain(..excess);
    }

    /// Releases addresses that this process allocated for a write that failed.
    pub fn queue_taken(&self, ips: &[String]) {
        self.queue(ips.iter().map(|ip| Release { ip: ip.clone(), parent: None }));
    }

    /// Releases those of a service's addresses that it still holds.
    pub fn queue_of(&self, service: &Value, ips: &[&str]) {
        let parent = (object::namespace(service).to_owned(), object::name(service).to_owned());
        let known = ips.iter().filter_map(|ip| parse_ip_sloppy(ip));
        self.queue(known.map(|ip| Release { ip: ip.to_string(), parent: Some(parent.clone()) }));
    }

    /// Releases what is queued, through the engine if it is set.
    pub async fn flush_alone(&self) {
        if let Some(api) = self.deps.api.get() {
            self.flush(api.as_ref()).await;
        }
    }

    /// Releases what is queued.
    pub async fn flush(&self, api: &dyn Api) {
        let waiting = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let mut again = vec![];
        for release in waiting {
            if let Some((namespace, name)) = &release.parent {
                let Some(found) = api.get(&resource(), "", &release.ip) else { continue };
                let parent = found.at("spec").at("parentRef");
                if parent.text("namespace") != namespace || parent.text("name") != name {
                    continue;
                }
            }
            match api.delete(&resource(), "", &release.ip, DeleteOptions::default()).await {
                Err(s) if !s.is_not_found() => again.push(release),
                _ => {}
            }
        }
        if !again.is_empty() {
            self.queue(again);
        }
    }
}
