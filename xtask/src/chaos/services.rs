//! Clients that make and delete services, and what must hold of these: at no time do two have the same cluster IP or the same node
//! port, and none has another one than what it was given.
//!
//! Invariants: a service counts from when its creation was acknowledged until its deletion was asked for, when it certainly was there;
//! names are not used twice, so that an uncertain creation concerns no other one.

use super::{actors::Shared, history::Time, random::Random};
use crate::bench::{
    Error,
    client::{Call, Client, Target},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::sleep;

/// The collection.
const PATH: &str = "/api/v1/namespaces/chaos/services";
/// Services of one client at a time.
const MOST: usize = 15;
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(8);
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(40);
/// How often the last list is asked for.
const TRIES: usize = 100;

/// What a service was given: of these each is some service's alone.
type Given = BTreeSet<String>;

/// A service, as the client that made it knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    name: String,
    given: Given,
    /// When its creation was acknowledged.
    from: Time,
    /// When its deletion was asked for.
    to: Option<Time>,
}

/// Makes and deletes services.
pub struct ServiceActor {
    shared: Arc<Shared>,
    user: u64,
    random: Random,
    clients: Vec<Client>,
    /// Those that are there, certainly.
    there: Vec<Life>,
    gone: Vec<Life>,
}

/// The addresses and ports of a service; `None` for something else.
fn given(service: &Value) -> Option<Given> {
    let ips = service["spec"]["clusterIPs"].as_array()?;
    let ports = service["spec"]["ports"].as_array()?;
    let ips = ips.iter().filter_map(Value::as_str).map(str::to_owned);
    let ports = ports.iter().filter_map(|port| port["nodePort"].as_u64()).map(|port| format!("port {port}"));
    Some(ips.chain(ports).collect())
}

impl ServiceActor {
    /// A client with names and random numbers of its own.
    pub fn new(shared: &Arc<Shared>, user: u64, random: Random) -> ServiceActor {
        let clients = shared.targets.iter().map(|target| Client::new(target).limited(LIMIT)).collect();
        ServiceActor { shared: shared.clone(), user, random, clients, there: vec![], gone: vec![] }
    }

    /// Works until the clients are to end. Answers with all services that it certainly made.
    pub async fn run(mut self) -> Vec<Life> {
        let mut number = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            number += 1;
            let server = self.random.below(self.clients.len() as u64) as usize;
            if self.there.len() >= MOST || (!self.there.is_empty() && self.random.below(5) < 2) {
                self.delete(server).await;
            } else {
                self.create(server, format!("v{}-{number}", self.user)).await;
            }
            sleep(PAUSE).await;
        }
        self.gone.extend(self.there);
        self.gone
    }

    async fn create(&mut self, server: usize, name: String) {
        let ports: Vec<Value> = (0..self.random.between(1, 3))
            .map(|i| json!({"name": format!("p{i}"), "port": 80 + i, "protocol": "TCP"}))
            .collect();
        let kind = if self.random.below(3) > 0 { "NodePort" } else { "ClusterIP" };
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": kind, "ports": ports}});
        // What is not acknowledged may be there or not.
        if let Ok(created) = self.clients[server].json(&Call::post(PATH, service.to_string())).await
            && let Some(given) = given(&created)
        {
            self.there.push(Life { name, given, from: self.shared.recorder.now(), to: None });
        }
    }

    async fn delete(&mut self, server: usize) {
        let at = self.random.below(self.there.len() as u64) as usize;
        let mut life = self.there.swap_remove(at);
        life.to = Some(self.shared.recorder.now());
        // It may be there for longer; that is not claimed.
        let _uncertain =
            self.clients[server].json(&Call::delete_with(format!("{PATH}/{}", life.name), "{}")).await;
        self.gone.push(life);
    }
}

/// What was given to two services at a time.
pub fn check(lives: &[Life]) -> Vec<String> {
    let mut users = BTreeMap::<&str, Vec<&Life>>::new();
    for life in lives {
        life.given.iter().for_each(|given| users.entry(given).or_default().push(life));
    }
    let mut complaints = vec![];
    for (given, mut lives) in users {
        lives.sort_by_key(|life| life.from);
        // The one that ends last of those before.
        let mut former: Option<&Life> = None;
        let end = |life: &Life| life.to.unwrap_or(Time::MAX);
        for life in lives {
            if let Some(former) = former.filter(|former| life.from < end(former)) {
                complaints.push(format!("{given} belongs to two services: {former:?} and {life:?}"));
            }
            if former.is_none_or(|former| end(former) < end(life)) {
                former = Some(life);
            }
        }
    }
    complaints
}

/// Compares what is left with what each server shows.
///
/// # Errors
/// When a server does not answer.
pub async fn check_rest(lives: &[Life], targets: &[Arc<Target>]) -> Result<Vec<String>, Error> {
    let mut complaints = vec![];
    for target in targets {
        let list = list(target).await?;
        let empty = vec![];
        let items = list["items"].as_array().unwrap_or(&empty);
        let found: BTreeMap<&str, Given> = items
            .iter()
            .filter_map(|item| Some((item["metadata"]["name"].as_str()?, given(item)?)))
            .collect();
        for life in lives.iter().filter(|life| life.to.is_none()) {
            if found.get(life.name.as_str()) != Some(&life.given) {
                complaints.push(format!("{life:?} is {:?} in the end", found.get(life.name.as_str())));
            }
        }
        let mut seen = BTreeMap::new();
        for (name, given) in &found {
            for given in given {
                if let Some(other) = seen.insert(given, name) {
                    complaints.push(format!("{given} belongs to {other} and {name} in the end"));
                }
            }
        }
    }
    Ok(complaints)
}

async fn list(target: &Arc<Target>) -> Result<Value, Error> {
    let mut client = Client::new(target).limited(LIMIT);
    for _ in 1..TRIES {
        if let Ok(list) = client.json(&Call::get(PATH)).await {
            return Ok(list);
        }
        sleep(PAUSE).await;
    }
    client.json(&Call::get(PATH)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(name: &str, given: &[&str], from: Time, to: Option<Time>) -> Life {
        let given = given.iter().map(|text| (*text).to_owned()).collect();
        Life { name: name.into(), given, from, to }
    }

    #[test]
    fn an_address_belongs_to_one_service_at_a_time() {
        let one = life("a", &["10.96.0.7", "port 30001"], 1, Some(5));
        let after = life("b", &["10.96.0.7"], 6, None);
        assert_eq!(check(&[one.clone(), after.clone()]), Vec::<String>::new());
        let within = life("c", &["port 30001"], 2, Some(3));
        let text = check(&[within, one.clone(), after]).join("; ");
        assert!(text.starts_with("port 30001 belongs to two services") && !text.contains(';'), "{text}");
        // Not only neighbours are compared.
        let (short, late) = (life("d", &["10.96.0.7"], 2, Some(3)), life("e", &["10.96.0.7"], 4, Some(9)));
        assert_eq!(check(&[one, short, late]).len(), 2);
    }

    #[test]
    fn what_a_service_was_given() {
        let service = json!({"spec": {"clusterIPs": ["10.96.0.7"], "ports": [{"port": 80, "nodePort": 30001}, {"port": 81}]}});
        assert_eq!(given(&service), Some(life("", &["10.96.0.7", "port 30001"], 0, None).given));
        assert_eq!(given(&json!({"kind": "Status"})), None);
    }
}
