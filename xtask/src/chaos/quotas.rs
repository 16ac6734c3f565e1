//! Clients that fill a namespace with a quota, and what must hold: at no time are there more objects than it allows.
//!
//! Invariant: an object counts from when its creation was acknowledged until its deletion was asked for, when it certainly was there.

use super::{actors::Shared, history::Time, random::Random};
use crate::bench::{
    Error,
    client::{Call, Client, Target},
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// The namespace.
const NAMESPACE: &str = "quota";
/// Objects that may be there.
const HARD: usize = 10;
/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(8);
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(40);
/// How long the controller may take to begin.
const START: Duration = Duration::from_secs(60);

/// When an object certainly was there.
pub type Life = (Time, Option<Time>);

fn objects() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/secrets")
}

/// Makes the namespace and its quota, and waits until the controller has seen it.
///
/// # Errors
/// When that does not happen.
pub async fn prepare(target: &Arc<Target>) -> Result<(), Error> {
    let mut client = Client::new(target).limited(LIMIT);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    client.call(&Call::post("/api/v1/namespaces", namespace.to_string())).await?;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
        "spec": {"hard": {"secrets": HARD.to_string()}}});
    let quotas = format!("/api/v1/namespaces/{NAMESPACE}/resourcequotas");
    client.call(&Call::post(quotas.clone(), quota.to_string())).await?;
    let begun = Instant::now();
    while client.json(&Call::get(format!("{quotas}/few"))).await?["status"]["hard"]["secrets"].is_null() {
        if begun.elapsed() > START {
            return Err(Error::Server("no controller looks after the quota".into()));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Makes and deletes objects.
pub struct QuotaActor {
    shared: Arc<Shared>,
    user: u64,
    random: Random,
    clients: Vec<Client>,
    /// Those that are there, certainly.
    there: Vec<(String, Time)>,
    gone: Vec<Life>,
}

impl QuotaActor {
    /// A client with names and random numbers of its own.
    pub fn new(shared: &Arc<Shared>, user: u64, random: Random) -> QuotaActor {
        let clients = shared.targets.iter().map(|target| Client::new(target).limited(LIMIT)).collect();
        QuotaActor { shared: shared.clone(), user, random, clients, there: vec![], gone: vec![] }
    }

    /// Works until the clients are to end. Answers with when each object was there.
    pub async fn run(mut self) -> Vec<Life> {
        let mut number = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            number += 1;
            let server = self.random.below(self.clients.len() as u64) as usize;
            if !self.there.is_empty() && self.random.below(5) < 2 {
                let at = self.random.below(self.there.len() as u64) as usize;
                let (name, from) = self.there.swap_remove(at);
                self.gone.push((from, Some(self.shared.recorder.now())));
                let call = Call::delete_with(format!("{}/{name}", objects()), "{}");
                // It may be there for longer; that is not claimed.
                let _uncertain = self.clients[server].json(&call).await;
            } else {
                let name = format!("q{}-{number}", self.user);
                let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}});
                let created = self.clients[server].json(&Call::post(objects(), object.to_string())).await;
                if created.is_ok() {
                    self.there.push((name, self.shared.recorder.now()));
                }
            }
            sleep(PAUSE).await;
        }
        self.gone.extend(self.there.into_iter().map(|(_, from)| (from, None)));
        self.gone
    }
}

/// Whether there were too many at a time. The first time is reported.
pub fn check(lives: &[Life]) -> Option<String> {
    let begins = lives.iter().map(|(from, _)| (*from, 1));
    let ends = lives.iter().filter_map(|(_, to)| Some(((*to)?, -1)));
    let mut changes: Vec<(Time, i64)> = begins.chain(ends).collect();
    // What ends when another begins has ended before.
    changes.sort_unstable();
    let mut count = 0;
    changes.into_iter().find_map(|(at, change)| {
        count += change;
        (count > HARD as i64).then(|| format!("{count} objects at {at} ns, where the quota allows {HARD}"))
    })
}

/// Counts what is there in the end.
///
/// # Errors
/// When the server does not answer.
pub async fn check_rest(target: &Arc<Target>) -> Result<Option<String>, Error> {
    let list = Client::new(target).limited(LIMIT).json(&Call::get(objects())).await?;
    let count = list["items"].as_array().map_or(0, Vec::len);
    let names = || list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["name"]);
    Ok((count > HARD).then(|| {
        format!("{:?} are there in the end, where the quota allows {HARD}", names().collect::<Vec<&Value>>())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_counted_while_they_are_certainly_there() {
        let mut lives: Vec<Life> = (0..HARD as Time).map(|n| (n, Some(100 + n))).collect();
        lives.push((100, None));
        assert_eq!(check(&lives), None);
        lives.push((100, Some(101)));
        assert_eq!(check(&lives).as_deref(), Some("11 objects at 100 ns, where the quota allows 10"));
    }
}
