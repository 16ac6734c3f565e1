//! Allocation for a service that is written: cluster IPs and node ports, all or nothing.

use super::{
    EXTERNAL_NAME,
    addresses::{AddressError, Addresses},
    cluster_ips, families as families_of,
    families::{Configured, init, keeps_preferred, normalize},
    needs_health_check,
    ports::{Claim, NodePorts},
    service_type,
};
use crate::{
    Deps, SharedPorts,
    shared::value::{Fields, ensure_object, list_mut, put},
};
use kaji_meta::{
    GroupKind, Status,
    field::{Error, ErrorList, Path},
    object,
};
use kaji_resource::{Ctx, Reservation};
use serde_json::Value;
use std::sync::Arc;

/// The allocators of a cluster.
pub struct Allocators {
    /// Cluster IPs.
    pub addresses: Addresses,
    /// Node ports.
    pub ports: NodePorts,
    /// The families on offer.
    pub configured: Configured,
    /// The node ports of all servers of a store.
    shared: Option<Arc<dyn SharedPorts>>,
}

/// How often ports are chosen anew because another server was faster.
const CHOICES: usize = 16;

fn invalid(service: &Value, errors: ErrorList) -> Status {
    Status::invalid(&GroupKind::new("", "Service"), object::name(service), &errors)
}

/// What one write has allocated, and what it releases once it is committed.
struct Taken {
    ips: Vec<String>,
    dropped: Vec<String>,
    claim: Claim,
}

impl Allocators {
    /// The allocators over the cluster's ranges.
    pub fn new(deps: &Deps) -> Self {
        Allocators {
            addresses: Addresses::new(deps.clone()),
            ports: NodePorts::new(deps.node_port_range.clone()),
            configured: Configured::from_cidrs(&deps.service_cidrs),
            shared: deps.shared_ports.clone(),
        }
    }

    /// Takes what a new or changed service needs and writes it into the service.
    pub async fn reserve(
        self: &Arc<Self>,
        ctx: &Ctx<'_>,
        new: &mut Value,
        old: Option<&Value>,
    ) -> Result<Option<Reservation>, Status> {
        if old.is_some_and(|o| o.get("spec") == new.get("spec")) {
            return Ok(None);
        }
        self.addresses.flush(ctx.api).await;
        if ctx.api.has_other_writers() {
            ctx.api.sync().await?;
        }
        normalize(new, old);
        init(new, old, &self.configured).map_err(|e| invalid(new, e))?;
        let mut taken = Taken { ips: vec![], dropped: vec![], claim: Claim::new(new, ctx.dry_run) };
        let result = match self.update_ips(ctx, new, old, &mut taken).await {
            Ok(()) => self.choose_ports(ctx, new, old, &mut taken.claim).await,
            Err(e) => Err(e),
        };
        if let Err(status) = result {
            self.ports.rollback(&taken.claim);
            self.addresses.queue_taken(&taken.ips);
            self.addresses.flush(ctx.api).await;
            return Err(status);
        }
        Ok(Some(self.reservation(taken, new.clone())))
    }

    fn reservation(self: &Arc<Self>, taken: Taken, service: Value) -> Reservation {
        let taken = Arc::new(taken);
        let (me, t) = (self.clone(), taken.clone());
        let commit = Box::pin(async move {
            me.ports.commit(&t.claim);
            me.give_back(&t.claim.released).await;
            if !t.dropped.is_empty() {
                let dropped: Vec<&str> = t.dropped.iter().map(String::as_str).collect();
                me.addresses.queue_of(&service, &dropped);
                me.addresses.flush_alone().await;
            }
        });
        let me = self.clone();
        let rollback = Box::pin(async move {
            me.ports.rollback(&taken.claim);
            me.give_back(&taken.claim.taken).await;
            if !taken.ips.is_empty() {
                me.addresses.queue_taken(&taken.ips);
                me.addresses.flush_alone().await;
            }
        });
        Reservation { commit, rollback }
    }

    async fn update_ips(
        &self,
        ctx: &Ctx<'_>,
        new: &mut Value,
        old: Option<&Value>,
        taken: &mut Taken,
    ) -> Result<(), Status> {
        let named = |s: &Value| service_type(s) == EXTERNAL_NAME;
        let Some(old) = old else { return self.allocate_ips(ctx, new, 0, taken).await };
        if keeps_preferred(new, Some(old)) {
            return Ok(());
        }
        if named(old) {
            return self.allocate_ips(ctx, new, 0, taken).await;
        }
        let had: Vec<String> = cluster_ips(old).into_iter().map(str::to_owned).collect();
        if had.first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        if named(new) {
            if !ctx.dry_run {
                taken.dropped = had;
            }
            return Ok(());
        }
        match (families_of(old).len(), families_of(new).len()) {
            (1, 2) => self.allocate_ips(ctx, new, 1, taken).await,
            (2, 1) => {
                if !ctx.dry_run {
                    taken.dropped.extend(had.into_iter().nth(1));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes an address for every family from the index `from` on: the requested one, or any.
    async fn allocate_ips(
        &self,
        ctx: &Ctx<'_>,
        service: &mut Value,
        from: usize,
        taken: &mut Taken,
    ) -> Result<(), Status> {
        if service_type(service) == EXTERNAL_NAME || cluster_ips(service).first() == Some(&"None") {
            return Ok(());
        }
        let families: Vec<String> = families_of(service).into_iter().map(str::to_owned).collect();
        let mut ips: Vec<String> = cluster_ips(service).into_iter().map(str::to_owned).collect();
        ips.resize(ips.len().max(families.len()), String::new());
        for (i, family) in families.iter().enumerate().skip(from) {
            let requested = ips[i].clone();
            let got = if requested.is_empty() {
                self.addresses.take_next(ctx, service, family).await
            } else {
                self.addresses.take(ctx, service, &requested).await.map(|()| requested.clone())
            };
            match got {
                Ok(ip) => {
                    if !ctx.dry_run {
                        taken.ips.push(
                            crate::shared::net::parse_ip_sloppy(&ip).map_or(ip.clone(), |p| p.to_string()),
                        );
                    }
                    ips[i] = ip;
                }
                Err(e) => return Err(ip_error(service, &ips, &requested, &e)),
            }
        }
        let spec = ensure_object(service, "spec");
        if let Some(first) = ips.first() {
            put(spec, "clusterIP", first.clone());
        }
        put(spec, "clusterIPs", ips);
        Ok(())
    }

    /// Chooses node ports, and takes them in the record that the servers of a store share.
    async fn choose_ports(
        &self,
        ctx: &Ctx<'_>,
        new: &mut Value,
        old: Option<&Value>,
        claim: &mut Claim,
    ) -> Result<(), Status> {
        for _ in 0..CHOICES {
            let mut chosen = new.clone();
            self.update_ports(ctx, &mut chosen, old, claim)?;
            let shared = self.shared.as_ref().filter(|_| !ctx.dry_run && !claim.taken.is_empty());
            let busy = match shared {
                None => vec![],
                Some(shared) => {
                    let held = self.ports.held(ctx.api);
                    shared.take(self.ports.range(), &claim.taken, &held).await.inspect_err(|_| {
                        // Nothing was taken there.
                        self.ports.rollback(claim);
                        claim.restart([]);
                    })?
                }
            };
            if busy.is_empty() {
                *new = chosen;
                return Ok(());
            }
            self.ports.rollback(claim);
            claim.restart(busy);
        }
        Err(Status::internal("failed to allocate a nodePort: other servers allocated the chosen ones"))
    }

    /// Gives back ports that no service has any more.
    pub async fn give_back(&self, ports: &[u16]) {
        if let Some(shared) = self.shared.as_ref().filter(|_| !ports.is_empty()) {
            shared.give_back(ports).await;
        }
    }

    fn update_ports(
        &self,
        ctx: &Ctx<'_>,
        new: &mut Value,
        old: Option<&Value>,
        claim: &mut Claim,
    ) -> Result<(), Status> {
        let exposes = |s: &Value| ["NodePort", "LoadBalancer"].contains(&service_type(s));
        let had = old.map(node_ports).unwrap_or_default();
        if exposes(new) {
            match old {
                None => self.create_ports(ctx, new, claim)?,
                Some(_) => self.change_ports(ctx, new, &had, claim)?,
            }
            let keeps = node_ports(new);
            claim
                .released
                .extend(had.iter().filter(|p| !keeps.contains(p)).filter_map(|p| u16::try_from(*p).ok()));
        } else if old.is_some_and(exposes) {
            claim.released.extend(had.iter().filter_map(|p| u16::try_from(*p).ok()));
        }
        let needed = old.is_some_and(needs_health_check);
        if needs_health_check(new) && !needed {
            self.health_check_port(ctx, new, claim)?;
        } else if needed && !needs_health_check(new) {
            let port = old.map_or(0, |o| o.at("spec").int("healthCheckNodePort"));
            claim.released.extend(u16::try_from(port).ok());
        }
        Ok(())
    }

    /// Ports of a new service. The same port number under several protocols shares one node port.
    fn create_ports(&self, ctx: &Ctx<'_>, service: &mut Value, claim: &mut Claim) -> Result<(), Status> {
        let allocates = allocates_ports(service);
        let ports = service.at("spec").list("ports").to_vec();
        let mut chosen: Vec<(i64, i64)> = vec![];
        let mut result = Vec::with_capacity(ports.len());
        for (i, p) in ports.iter().enumerate() {
            let (port, requested) = (p.int("port"), p.int("nodePort"));
            if requested == 0 && !allocates {
                result.push(0);
                continue;
            }
            let shared = chosen.iter().find(|(known, _)| *known == port).map(|(_, n)| *n);
            let node_port = match shared {
                None => {
                    let explicit = ports.iter().find(|o| o.int("port") == port && o.int("nodePort") != 0);
                    let got = match explicit.map(|o| o.int("nodePort")) {
                        Some(n) => self.take_port(ctx, service, claim, i, n)?,
                        None => self.next_port(ctx, claim)?,
                    };
                    chosen.push((port, got));
                    got
                }
                Some(n) if requested == 0 || requested == n => n,
                Some(_) => self.take_port(ctx, service, claim, i, requested)?,
            };
            result.push(node_port);
        }
        write_ports(service, &result);
        Ok(())
    }

    fn change_ports(
        &self,
        ctx: &Ctx<'_>,
        service: &mut Value,
        had: &[i64],
        claim: &mut Claim,
    ) -> Result<(), Status> {
        let allocates = allocates_ports(service);
        let ports = service.at("spec").list("ports").to_vec();
        let mut result: Vec<i64> = Vec::with_capacity(ports.len());
        let mut seen: Vec<(&str, i64)> = vec![];
        for (i, p) in ports.iter().enumerate() {
            let requested = p.int("nodePort");
            let node_port = if requested == 0 {
                if allocates { self.next_port(ctx, claim)? } else { 0 }
            } else if had.contains(&requested) || result.contains(&requested) {
                requested
            } else {
                self.take_port(ctx, service, claim, i, requested)?
            };
            if node_port != 0 {
                let key = (p.text("protocol"), node_port);
                if seen.contains(&key) {
                    return Err(Status::internal(format!("duplicate nodePort: {{{} {}}}", key.0, key.1)));
                }
                seen.push(key);
            }
            result.push(node_port);
        }
        write_ports(service, &result);
        Ok(())
    }

    fn take_port(
        &self,
        ctx: &Ctx<'_>,
        service: &Value,
        claim: &mut Claim,
        index: usize,
        port: i64,
    ) -> Result<i64, Status> {
        self.ports.take(ctx.api, claim, port).map(|()| port).map_err(|e| {
            let path = Path::new("spec").child("ports").index(index).child("nodePort");
            invalid(service, vec![Error::invalid(&path, port, e.to_string())])
        })
    }

    fn next_port(&self, ctx: &Ctx<'_>, claim: &mut Claim) -> Result<i64, Status> {
        let got = self.ports.take_next(ctx.api, claim, ctx.random);
        got.map(i64::from).map_err(|e| Status::internal(format!("failed to allocate a nodePort: {e}")))
    }

    fn health_check_port(&self, ctx: &Ctx<'_>, service: &mut Value, claim: &mut Claim) -> Result<(), Status> {
        let requested = service.at("spec").int("healthCheckNodePort");
        if requested != 0 {
            return self.ports.take(ctx.api, claim, requested).map_err(|e| {
                Status::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {requested}: {e}"
                ))
            });
        }
        let got = self
            .ports
            .take_next(ctx.api, claim, ctx.random)
            .map_err(|e| Status::internal(format!("failed to allocate a HealthCheck NodePort 0: {e}")))?;
        put(ensure_object(service, "spec"), "healthCheckNodePort", got);
        Ok(())
    }
}

fn ip_error(service: &Value, ips: &[String], requested: &str, error: &AddressError) -> Status {
    let text = match (error, requested) {
        (AddressError::Full, "") => {
            let name = object::name(service);
            return Status::internal(format!("failed to allocate a serviceIP for Service {name:?}: {error}"));
        }
        (AddressError::Malformed(_), _) => return Status::internal(error),
        (_, "") => format!("failed to allocate IP: {error}"),
        _ => format!("failed to allocate IP {requested}: {error}"),
    };
    let path = Path::new("spec").child("clusterIPs");
    invalid(service, vec![Error::invalid(&path, ips.to_vec(), text)])
}

fn allocates_ports(service: &Value) -> bool {
    match service_type(service) {
        "NodePort" => true,
        "LoadBalancer" => service.at("spec").opt_flag("allocateLoadBalancerNodePorts").unwrap_or(true),
        _ => false,
    }
}

/// The node ports of a service's ports.
pub fn node_ports(service: &Value) -> Vec<i64> {
    service.at("spec").list("ports").iter().map(|p| p.int("nodePort")).filter(|p| *p != 0).collect()
}

fn write_ports(service: &mut Value, node_ports: &[i64]) {
    let spec = ensure_object(service, "spec");
    for (p, n) in list_mut(spec, "ports").iter_mut().zip(node_ports) {
        if *n != 0 {
            put(p, "nodePort", *n);
        }
    }
}
