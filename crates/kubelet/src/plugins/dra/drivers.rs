//! DRA drivers that have registered, and their calls. Upstream's `dra/plugin`.
//!
//! Invariant: while a driver is replaced by another instance of it, the newest one that is connected is called.

use super::messages as m;
use crate::metrics::{KubeletMetrics, families};
use kaji_grpc::{CallError, Client, Messages};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A call's deadline: upstream's `defaultClientCallTimeout`.
const TIMEOUT: Duration = Duration::from_secs(45);
/// Instances of a driver at a time.
const MOST: usize = 16;

/// The API that is spoken with a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `v1.DRAPlugin`
    V1,
    /// `v1beta1.DRAPlugin`
    V1Beta1,
}

/// An instance of a driver.
pub struct Driver {
    name: String,
    endpoint: String,
    service: Service,
    pub(super) client: Client,
}

impl Driver {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its socket.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    async fn call<R: Message + Default + Send + Sync + 'static>(
        &self,
        method: &'static str,
        request: m::ClaimsRequest,
        metrics: &KubeletMetrics,
    ) -> Result<R, CallError> {
        let began = tokio::time::Instant::now();
        let answer = self.client.unary(method, request, TIMEOUT).await;
        let code = answer.as_ref().err().map_or("OK", CallError::code_name);
        let labels =
            [("driver_name", self.name.as_str()), ("method_name", method), ("grpc_status_code", code)];
        metrics.observe(&families::DRA_CALLS, &labels, began.elapsed());
        answer
    }

    pub(super) async fn prepare(
        &self,
        request: m::ClaimsRequest,
        metrics: &KubeletMetrics,
    ) -> Result<m::PrepareResponse, CallError> {
        let method = match self.service {
            Service::V1 => m::PREPARE,
            Service::V1Beta1 => m::PREPARE_BETA,
        };
        self.call(method, request, metrics).await
    }

    pub(super) async fn unprepare(
        &self,
        request: m::ClaimsRequest,
        metrics: &KubeletMetrics,
    ) -> Result<m::UnprepareResponse, CallError> {
        let method = match self.service {
            Service::V1 => m::UNPREPARE,
            Service::V1Beta1 => m::UNPREPARE_BETA,
        };
        self.call(method, request, metrics).await
    }

    pub(super) async fn health(&self) -> Result<Messages<m::HealthReport>, CallError> {
        self.client.server_streaming(m::WATCH_HEALTH, m::Empty {}, TIMEOUT).await
    }
}

/// The API to speak with a driver: the first of those that it offers and that is understood.
///
/// # Errors
/// Upstream's text.
pub fn choose_service(name: &str, endpoint: &str, offered: &[String]) -> Result<Service, String> {
    let known = [("v1.DRAPlugin", Service::V1), ("v1beta1.DRAPlugin", Service::V1Beta1)];
    let quoted = |names: &mut dyn Iterator<Item = &str>| {
        names.map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" ")
    };
    let of = |offer: &String| known.iter().find(|(name, _)| offer == name).map(|(_, service)| *service);
    let problem = match offered.iter().find_map(of) {
        Some(service) => return Ok(service),
        None if offered.is_empty() => {
            "empty list of supported gRPC services (aka supported versions)".to_owned()
        }
        None => format!(
            "none of services supported by the plugin ([{}]) are supported by the kubelet ([{}])",
            quoted(&mut offered.iter().map(String::as_str)),
            quoted(&mut known.iter().map(|(name, _)| *name))
        ),
    };
    Err(format!(
        "invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {problem}"
    ))
}

struct Instance {
    driver: Arc<Driver>,
    connected: bool,
}

/// All drivers by name, the newest instance of each last.
#[derive(Default)]
pub struct Drivers(BTreeMap<String, Vec<Instance>>);

impl Drivers {
    /// Adds an instance.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn add(&mut self, name: &str, endpoint: &str, service: Service) -> Result<Arc<Driver>, String> {
        let client = Client::of_endpoint(endpoint).ok_or_else(|| {
            format!("create gRPC connection to DRA driver {name} plugin at endpoint {endpoint}: no path of a socket")
        })?;
        let instances = self.0.entry(name.to_owned()).or_default();
        if instances.iter().any(|instance| instance.driver.endpoint == endpoint) {
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {name}"));
        }
        if instances.len() >= MOST {
            return Err(format!("DRA driver plugin {name} has too many endpoints"));
        }
        let (name, endpoint) = (name.to_owned(), endpoint.to_owned());
        let driver = Arc::new(Driver { name, endpoint, service, client });
        instances.push(Instance { driver: driver.clone(), connected: false });
        Ok(driver)
    }

    /// Forgets an instance. Whether there was one.
    pub fn remove(&mut self, name: &str, endpoint: &str) -> bool {
        let Some(instances) = self.0.get_mut(name) else { return false };
        let before = instances.len();
        instances.retain(|instance| instance.driver.endpoint != endpoint);
        let removed = instances.len() < before;
        if instances.is_empty() {
            self.0.remove(name);
        }
        removed
    }

    /// Notes whether an instance is connected.
    pub fn set_connected(&mut self, driver: &Driver, connected: bool) {
        let instances = self.0.get_mut(&driver.name);
        let of = |i: &&mut Instance| i.driver.endpoint == driver.endpoint;
        if let Some(instance) = instances.and_then(|instances| instances.iter_mut().find(of)) {
            instance.connected = connected;
        }
    }

    /// Whether some instance of a driver is connected.
    #[must_use]
    pub fn usable(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|instances| instances.iter().any(|instance| instance.connected))
    }

    /// The instance to call.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn get(&self, name: &str) -> Result<Arc<Driver>, String> {
        if name.is_empty() {
            return Err("DRA driver name is empty".to_owned());
        }
        let instances = self.0.get(name).map(Vec::as_slice).unwrap_or_default();
        let newest = instances.iter().rev().find(|instance| instance.connected).or(instances.last());
        newest.map(|i| i.driver.clone()).ok_or_else(|| format!("DRA driver {name} is not registered"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_connected_instance_is_called() {
        let mut drivers = Drivers::default();
        assert_eq!(drivers.get("d").err().as_deref(), Some("DRA driver d is not registered"));
        let old = drivers.add("d", "/old.sock", Service::V1).unwrap();
        let new = drivers.add("d", "/new.sock", Service::V1).unwrap();
        assert!(drivers.add("d", "/new.sock", Service::V1).is_err());
        let called = |drivers: &Drivers| drivers.get("d").unwrap().endpoint().to_owned();
        assert_eq!((called(&drivers).as_str(), drivers.usable("d")), ("/new.sock", false));
        drivers.set_connected(&old, true);
        assert_eq!((called(&drivers).as_str(), drivers.usable("d")), ("/old.sock", true));
        drivers.set_connected(&new, true);
        assert_eq!(called(&drivers), "/new.sock");
        assert!(drivers.remove("d", "/new.sock") && !drivers.remove("d", "/new.sock"));
        assert_eq!(called(&drivers), "/old.sock");
    }

    #[test]
    fn a_service_is_chosen_in_the_drivers_order() {
        let choose = |offered: &[&str]| {
            let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
            choose_service("d", "/s", &offered)
        };
        assert_eq!(choose(&["v2.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(Service::V1Beta1));
        expect_test::expect![[r#"invalid supported gRPC versions of DRA driver plugin d at endpoint /s: none of services supported by the plugin (["v2.DRAPlugin" "x"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])"#]]
            .assert_eq(&choose(&["v2.DRAPlugin", "x"]).unwrap_err());
        assert!(
            choose(&[])
                .unwrap_err()
                .ends_with("empty list of supported gRPC services (aka supported versions)")
        );
    }
}
