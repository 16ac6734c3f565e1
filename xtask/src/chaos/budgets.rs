//! Clients that evict pods which a disruption budget protects, and one that makes new ones; what must hold: evictions leave as many
//! healthy pods as the budget asks for.
//!
//! The pods have no node: their status is written by the client that makes them. Invariant: a pod counts as healthy from when its
//! status was asked for until it was seen to be gone, when it may have been; so fewer than the budget's is certain.

use super::{actors::Shared, history::Time, random::Random};
use crate::bench::{
    Error,
    client::{Call, Client, Target},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::time::sleep;

/// The collection.
const PATH: &str = "/api/v1/namespaces/budget/pods";
/// Healthy pods that the budget asks for.
const LEAST: usize = 4;
/// Pods that there are to be.
const WANTED: usize = 7;
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(8);
/// How old a pod is when it is evicted, at least, in nanoseconds. The controller takes the eviction of a pod that it has not seen yet for done,
/// as upstream's, and counts the pod once it sees it: so evictions wait for longer than a server is paused.
const SEEN: Time = 30_000_000_000;
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// When a pod may have been healthy.
pub type Life = (Time, Option<Time>);

/// All pods, by name.
pub type Pods = Arc<Mutex<BTreeMap<String, Life>>>;

fn lock(pods: &Pods) -> MutexGuard<'_, BTreeMap<String, Life>> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the namespace, the account of its pods, the budget and the first pods.
///
/// # Errors
/// When that does not succeed.
pub async fn prepare(shared: &Arc<Shared>) -> Result<ReplicaMaintainer, Error> {
    let mut client = Client::new(&shared.targets[0]).limited(LIMIT);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "budget"}});
    client.call(&Call::post("/api/v1/namespaces", namespace.to_string())).await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    client.call(&Call::post("/api/v1/namespaces/budget/serviceaccounts", account.to_string())).await?;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "most"},
        "spec": {"minAvailable": LEAST, "selector": {"matchLabels": {"app": "kept"}}}});
    let budgets = "/apis/policy/v1/namespaces/budget/poddisruptionbudgets";
    client.call(&Call::post(budgets, budget.to_string())).await?;
    let mut maintainer = ReplicaMaintainer { shared: shared.clone(), client, pods: Pods::default(), made: 0 };
    for _ in 0..WANTED {
        maintainer.make().await?;
    }
    Ok(maintainer)
}

/// Makes a pod for each that is gone.
pub struct ReplicaMaintainer {
    shared: Arc<Shared>,
    client: Client,
    /// What it has made.
    pub pods: Pods,
    made: usize,
}

impl ReplicaMaintainer {
    async fn make(&mut self) -> Result<(), Error> {
        self.made += 1;
        let name = format!("p{}", self.made);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "kept"}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "example.com/c"}]}});
        self.client.call(&Call::post(PATH, pod.to_string())).await?;
        lock(&self.pods).insert(name.clone(), (self.shared.recorder.now(), None));
        let status =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.client.call(&Call::merge(format!("{PATH}/{name}/status"), &status)).await?;
        Ok(())
    }

    /// Works until the clients are to end.
    pub async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            // A server that does not answer is asked again.
            if let Ok(list) = self.client.json(&Call::get(PATH)).await {
                let now = self.shared.recorder.now();
                let items = || list["items"].as_array().into_iter().flatten();
                let is_there = |name: &str| items().any(|pod| pod["metadata"]["name"] == name);
                for (name, life) in lock(&self.pods).iter_mut().filter(|(_, life)| life.1.is_none()) {
                    if life.0 < now && !is_there(name) {
                        life.1 = Some(now);
                    }
                }
                let healthy = items().filter(|pod| is_healthy(pod)).count();
                if healthy < WANTED && self.make().await.is_err() {
                    sleep(PAUSE).await;
                }
            }
            let target = &self.shared.targets[self.made % self.shared.targets.len()];
            self.client = Client::new(target).limited(LIMIT);
            sleep(PAUSE).await;
        }
    }
}

fn is_healthy(pod: &Value) -> bool {
    pod["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Evicts pods until the clients are to end.
pub async fn evict(shared: Arc<Shared>, pods: Pods, mut random: Random) {
    let mut clients: Vec<Client> =
        shared.targets.iter().map(|target| Client::new(target).limited(LIMIT)).collect();
    while !shared.stop.load(Ordering::Relaxed) {
        sleep(PAUSE).await;
        let there: Vec<String> = {
            let (pods, now) = (lock(&pods), shared.recorder.now());
            let old = pods.iter().filter(|(_, life)| life.1.is_none() && life.0 + SEEN < now);
            old.map(|(name, _)| name.clone()).collect()
        };
        if there.is_empty() {
            continue;
        }
        let name = &there[random.below(there.len() as u64) as usize];
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        let server = random.below(clients.len() as u64) as usize;
        let call = Call::post(format!("{PATH}/{name}/eviction"), eviction.to_string());
        // Without an answer the list shows whether it is gone.
        if clients[server].call(&call).await.is_ok()
            && let Some(life) = lock(&pods).get_mut(name)
        {
            let now = shared.recorder.now();
            life.1 = Some(life.1.map_or(now, |gone| gone.min(now)));
        }
    }
}

/// Whether there were too few at a time. The first time is reported.
pub fn check<'a>(lives: impl Iterator<Item = &'a Life>) -> Option<String> {
    let mut changes: Vec<(Time, i64)> = vec![];
    for (from, to) in lives {
        changes.push((*from, 1));
        changes.extend(to.map(|to| (to, -1)));
    }
    // At one time, what begins comes before what ends.
    changes.sort_unstable_by_key(|(at, change)| (*at, -change));
    let (mut count, mut filled) = (0, false);
    changes.into_iter().find_map(|(at, change)| {
        count += change;
        filled |= count >= LEAST as i64;
        (filled && count < LEAST as i64)
            .then(|| format!("{count} healthy pods at {at} ns, where the budget asks for {LEAST}"))
    })
}

/// Where the pods can be read in the end.
///
/// # Errors
/// When the server does not answer.
pub async fn check_rest(target: &Arc<Target>) -> Result<Option<String>, Error> {
    let list = Client::new(target).limited(LIMIT).json(&Call::get(PATH)).await?;
    let healthy = list["items"].as_array().into_iter().flatten().filter(|pod| is_healthy(pod)).count();
    Ok((healthy < LEAST)
        .then(|| format!("{healthy} healthy pods in the end, where the budget asks for {LEAST}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_healthy_pods_than_the_budget_asks_for() {
        let mut lives: Vec<Life> = (0..LEAST as Time).map(|n| (n, None)).collect();
        lives.push((10, Some(50)));
        assert_eq!(check(lives.iter()), None);
        // Replaced before it is gone.
        lives.push((40, Some(60)));
        lives[0].1 = Some(45);
        assert_eq!(
            check(lives.iter()).as_deref(),
            Some("3 healthy pods at 60 ns, where the budget asks for 4")
        );
        lives.push((60, None));
        assert_eq!(check(lives.iter()), None);
    }
}
