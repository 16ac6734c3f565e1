//! Node ports: the service that holds each.
//!
//! Invariants: a port has at most one holder; the table is built from the stored services at first use and kept by
//! every write from then on, under one lock. Where other servers write too, it is brought up to date with the stored services
//! before each use, and what it chooses is taken in the record that the servers share ([`SharedPorts`](crate::SharedPorts)).

use kaji_meta::{GroupResource, object, random::Random};
use kaji_resource::Api;
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::shared::value::Fields;

/// Why a port was not given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Another service holds it.
    #[error("provided port is already allocated")]
    Allocated,
    /// It is no node port.
    #[error("provided port is not in the valid range. The range of valid ports is {0}-{1}")]
    OutOfRange(u16, u16),
    /// None is left.
    #[error("range is full")]
    Full,
}

/// The node ports in use, by port; the value names the service.
pub struct NodePorts {
    range: RangeInclusive<u16>,
    table: Mutex<Option<Table>>,
}

/// The ports in use.
#[derive(Default)]
struct Table {
    holders: HashMap<u16, String>,
    /// Those that writes of this server have taken, as far as the stored services did not show them when they were read.
    fresh: HashSet<u16>,
    /// What [`Api::changed`] was for the services that `holders` is of.
    seen: u64,
}

impl Table {
    /// Takes over the stored services, with what they do not show yet.
    fn read(&mut self, api: &dyn Api) {
        let services = GroupResource::new("", SERVICES);
        // Before the services are read: what changes meanwhile is read again.
        self.seen = api.changed(&services);
        let mut stored = HashMap::new();
        for service in api.list(&services, None) {
            let owner = owner(&service);
            stored.extend(ports_of(&service).into_iter().map(|port| (port, owner.clone())));
        }
        self.fresh.retain(|port| !stored.contains_key(port));
        for port in &self.fresh {
            if let Some(owner) = self.holders.get(port) {
                stored.insert(*port, owner.clone());
            }
        }
        self.holders = stored;
    }

    fn take(&mut self, port: u16, owner: &str) {
        self.holders.insert(port, owner.to_owned());
        self.fresh.insert(port);
    }
}

/// The resource that node ports belong to.
const SERVICES: &str = "services";

/// Ports taken and given up by one write.
pub struct Claim {
    owner: String,
    dry_run: bool,
    /// Ports that this write holds.
    pub taken: Vec<u16>,
    /// Ports that other servers hold, as their common record says.
    busy: HashSet<u16>,
    /// Ports to release once the write is committed.
    pub released: Vec<u16>,
}

impl Claim {
    /// A write to a service; a dry run keeps nothing.
    pub fn new(service: &Value, dry_run: bool) -> Self {
        Claim { owner: owner(service), dry_run, taken: vec![], busy: HashSet::new(), released: vec![] }
    }
}

impl Claim {
    /// Whether the port cannot be taken a second time.
    fn holds(&self, port: u16) -> bool {
        self.taken.contains(&port) || self.busy.contains(&port)
    }

    /// Begins anew, without ports that turned out to be others'.
    pub fn restart(&mut self, busy: impl IntoIterator<Item = u16>) {
        self.taken.clear();
        self.released.clear();
        self.busy.extend(busy);
    }
}

fn owner(service: &Value) -> String {
    format!("{}/{}/{}", object::namespace(service), object::name(service), object::uid(service))
}

/// Every node port of a service, the health check's included.
pub fn ports_of(service: &Value) -> Vec<u16> {
    let spec = service.at("spec");
    let ports = spec.list("ports").iter().map(|p| p.int("nodePort"));
    let all = ports.chain([spec.int("healthCheckNodePort")]);
    all.filter(|p| *p != 0).filter_map(|p| u16::try_from(p).ok()).collect()
}

impl NodePorts {
    /// No ports known yet.
    pub fn new(range: RangeInclusive<u16>) -> Self {
        NodePorts { range, table: Mutex::new(None) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Table>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, api: &dyn Api, f: impl FnOnce(&mut Table) -> R) -> R {
        let mut guard = self.lock();
        let others = api.has_other_writers();
        let table = match &mut *guard {
            Some(table) => {
                if others && table.seen != api.changed(&GroupResource::new("", SERVICES)) {
                    table.read(api);
                }
                table
            }
            none => {
                let table = none.insert(Table::default());
                table.read(api);
                table
            }
        };
        f(table)
    }

    /// The ports in use, as far as this server knows.
    pub fn held(&self, api: &dyn Api) -> Vec<u16> {
        self.with(api, |table| table.holders.keys().copied().collect())
    }

    /// The ports that services may have.
    pub fn range(&self) -> RangeInclusive<u16> {
        self.range.clone()
    }

    /// Takes a certain port.
    pub fn take(&self, api: &dyn Api, claim: &mut Claim, port: i64) -> Result<(), PortError> {
        let out = || PortError::OutOfRange(*self.range.start(), *self.range.end());
        let port = u16::try_from(port).map_err(|_| out())?;
        if !self.range.contains(&port) {
            return Err(out());
        }
        self.with(api, |table| {
            if table.holders.contains_key(&port) || claim.holds(port) {
                return Err(PortError::Allocated);
            }
            if !claim.dry_run {
                table.take(port, &claim.owner);
            }
            claim.taken.push(port);
            Ok(())
        })
    }

    /// Takes any port: at random from the upper band, so that chosen ports in the lower one rarely collide (KEP-3668).
    pub fn take_next(&self, api: &dyn Api, claim: &mut Claim, random: &dyn Random) -> Result<u16, PortError> {
        let (first, last) = (u64::from(*self.range.start()), u64::from(*self.range.end()));
        let size = (last + 1).saturating_sub(first);
        let offset = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        self.with(api, |table| {
            let bands = [(first + offset, size - offset.min(size)), (first, offset)];
            for (start, len) in bands.into_iter().filter(|(_, len)| *len > 0) {
                let shift = random.u64() % len;
                let free = (0..len)
                    .filter_map(|i| u16::try_from(start + (i + shift) % len).ok())
                    .find(|p| !table.holders.contains_key(p) && !claim.holds(*p));
                if let Some(port) = free {
                    if !claim.dry_run {
                        table.take(port, &claim.owner);
                    }
                    claim.taken.push(port);
                    return Ok(port);
                }
            }
            Err(PortError::Full)
        })
    }

    /// Gives back what the service still holds of `ports`. Ports that passed to others meanwhile stay theirs.
    fn free(&self, owner: &str, ports: &[u16]) {
        if let Some(table) = self.lock().as_mut() {
            for p in ports {
                if table.holders.get(p).is_some_and(|o| o == owner) {
                    table.holders.remove(p);
                    table.fresh.remove(p);
                }
            }
        }
    }

    /// The write holds.
    pub fn commit(&self, claim: &Claim) {
        if claim.dry_run {
            return;
        }
        self.free(&claim.owner, &claim.released);
        // From now on the stored services show them, until another server removes them.
        if let Some(table) = self.lock().as_mut() {
            for port in &claim.taken {
                table.fresh.remove(port);
            }
        }
    }

    /// The write failed.
    pub fn rollback(&self, claim: &Claim) {
        if !claim.dry_run {
            self.free(&claim.owner, &claim.taken);
        }
    }

    /// Releases the ports of a deleted service.
    pub fn release(&self, service: &Value) {
        self.free(&owner(service), &ports_of(service));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::FakeApi;
    use kaji_meta::SeededRandom;
    use serde_json::json;

    fn service(name: &str, port: u16) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"ports": [{"nodePort": port}]}})
    }

    #[test]
    fn allocates_no_port_twice() {
        let api = FakeApi::default();
        api.put(&GroupResource::new("", "services"), service("old", 30001));
        let ports = NodePorts::new(30000..=30003);
        let mut claim = Claim::new(&service("a", 0), false);
        assert_eq!(ports.take(&api, &mut claim, 30001), Err(PortError::Allocated));
        assert_eq!(
            ports.take(&api, &mut claim, 80).unwrap_err().to_string(),
            "provided port is not in the valid range. The range of valid ports is 30000-30003"
        );
        let random = SeededRandom::new(1);
        let mut got: Vec<u16> = (0..3).map(|_| ports.take_next(&api, &mut claim, &random).unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [30000, 30002, 30003]);
        assert_eq!(ports.take_next(&api, &mut claim, &random), Err(PortError::Full));
        ports.rollback(&claim);
        let mut other = Claim::new(&service("b", 0), false);
        assert_eq!(ports.take(&api, &mut other, 30000), Ok(()));
        // A late second release by the former holder must not take the port from the new one.
        ports.release(&service("a", 30000));
        assert_eq!(
            ports.take(&api, &mut Claim::new(&service("c", 0), false), 30000),
            Err(PortError::Allocated)
        );
    }

    #[test]
    fn services_of_other_servers_count() {
        let services = GroupResource::new("", SERVICES);
        let mut api = FakeApi::default();
        api.others = true;
        let ports = NodePorts::new(30000..=30003);
        let mut claim = Claim::new(&service("a", 0), false);
        assert_eq!(ports.take(&api, &mut claim, 30000), Ok(()));
        api.put(&services, service("theirs", 30001));
        // What is on its way here still counts.
        let mut other = Claim::new(&service("b", 0), false);
        assert_eq!(ports.take(&api, &mut other, 30000), Err(PortError::Allocated));
        assert_eq!(ports.take(&api, &mut other, 30001), Err(PortError::Allocated));
        api.put(&services, service("a", 30000));
        ports.commit(&claim);
        assert_eq!(ports.take(&api, &mut other, 30000), Err(PortError::Allocated));
        // Another server changes both.
        api.put(&services, service("a", 30002));
        api.put(&services, service("theirs", 30003));
        assert_eq!(ports.take(&api, &mut other, 30000), Ok(()));
        assert_eq!(ports.take(&api, &mut other, 30001), Ok(()));
        assert_eq!(ports.take(&api, &mut other, 30002), Err(PortError::Allocated));
    }

    #[test]
    fn a_port_that_another_server_has_released_is_free() {
        let services = GroupResource::new("", SERVICES);
        let mut api = FakeApi::default();
        api.others = true;
        let ports = NodePorts::new(30000..=30003);
        let mut claim = Claim::new(&service("a", 0), false);
        assert_eq!(ports.take(&api, &mut claim, 30000), Ok(()));
        ports.commit(&claim);
        // It was deleted before this server looked again.
        api.put(&services, service("theirs", 30001));
        assert_eq!(ports.take(&api, &mut Claim::new(&service("b", 0), false), 30000), Ok(()));
    }

    #[test]
    fn dry_runs_keep_nothing() {
        let api = FakeApi::default();
        let ports = NodePorts::new(30000..=32767);
        let mut dry = Claim::new(&service("a", 0), true);
        assert_eq!(ports.take(&api, &mut dry, 30500), Ok(()));
        assert_eq!(ports.take(&api, &mut dry, 30500), Err(PortError::Allocated));
        assert_eq!(ports.take(&api, &mut Claim::new(&service("b", 0), false), 30500), Ok(()));
    }
}
