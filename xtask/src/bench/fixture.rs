//! Making room for a phase and clearing up after it. Everything is bounded: what does not vanish in time is an error.

use super::{
    Error,
    client::{Call, Client},
    objects::{self, Template},
};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long a namespace's default service account may take to appear. Pods cannot be created before.
const ACCOUNT: Duration = Duration::from_secs(5);
/// How long a collection may take to become empty, once it is deleted.
const EMPTY: Duration = Duration::from_secs(600);
/// How long the next phase waits for namespaces to vanish.
const GONE: Duration = Duration::from_secs(10);

/// The path of a namespaced collection of the core group.
pub fn collection(namespace: &str, plural: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}")
}

/// Makes a namespace in which pods can be created. Where no controller provides the default service account, it is
/// created here.
pub async fn namespace(client: &mut Client, name: &str) -> Result<(), Error> {
    client.call(&Call::post("/api/v1/namespaces", objects::namespace(name).to_string())).await?;
    let accounts = collection(name, "serviceaccounts");
    let account = Call::get(format!("{accounts}/default"));
    let deadline = Instant::now() + ACCOUNT;
    while client.find(&account).await?.is_none() {
        if Instant::now() >= deadline {
            let body = r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}"#;
            match client.call(&Call::post(&accounts, body)).await {
                Ok(_) | Err(Error::Status { code: 409, .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    // The other object that every namespace gets; servers without controllers never make it.
    let certificates = Call::get(format!("{}/kube-root-ca.crt", collection(name, "configmaps")));
    while client.find(&certificates).await?.is_none() && Instant::now() < deadline {
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Makes the ConfigMap that owns a namespace's pods; gives its uid.
pub async fn owner(client: &mut Client, namespace: &str, template: &Template) -> Result<String, Error> {
    let owner = client.json(&template.create(&collection(namespace, "configmaps"), "owner")).await?;
    match owner["metadata"]["uid"].as_str() {
        Some(uid) => Ok(uid.to_owned()),
        None => Err(Error::Answer("a created ConfigMap has no uid".into())),
    }
}

/// The revision of a collection's list.
pub async fn revision(client: &mut Client, path: &str) -> Result<String, Error> {
    let list = client.json(&Call::get(path)).await?;
    match list["metadata"]["resourceVersion"].as_str() {
        Some(revision) => Ok(revision.to_owned()),
        None => Err(Error::Answer(format!("the list {path} has no resourceVersion"))),
    }
}

/// Deletes everything in a collection (`path` may carry a selector) and waits until it is empty. Large collections may
/// take several goes: servers give up on a request that takes too long.
pub async fn empty(client: &mut Client, path: &str) -> Result<(), Error> {
    let and = if path.contains('?') { '&' } else { '?' };
    let rest = Call::get(format!("{path}{and}limit=1"));
    let deadline = Instant::now() + EMPTY;
    loop {
        match client.call(&Call::delete(path)).await {
            Ok(_) | Err(Error::Timeout(..) | Error::Status { code: 404 | 409 | 429 | 500.., .. }) => {}
            Err(error) => return Err(error),
        }
        for pause in [0, 20, 100, 500, 2_000] {
            sleep(Duration::from_millis(pause)).await;
            let list = client.json(&rest).await?;
            if list["items"].as_array().is_none_or(Vec::is_empty) {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout(format!("emptying {path}"), EMPTY));
        }
    }
}

/// Deletes namespaces, emptied before, and waits a while for them to be gone: that they end is the server's business
/// (one without controllers keeps them), and only what they held disturbs later phases.
pub async fn remove_namespaces(client: &mut Client, names: &[String]) -> Result<(), Error> {
    for name in names {
        match client.call(&Call::delete(format!("/api/v1/namespaces/{name}"))).await {
            Ok(_) | Err(Error::Status { code: 404 | 409, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let deadline = Instant::now() + GONE;
    for name in names {
        let namespace = Call::get(format!("/api/v1/namespaces/{name}"));
        while client.find(&namespace).await?.is_some() && Instant::now() < deadline {
            sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// How many namespaces there are with names that begin with `prefix`.
pub async fn namespaces_left(client: &mut Client, prefix: &str) -> Result<usize, Error> {
    let list = client.json(&Call::get("/api/v1/namespaces")).await?;
    let names = list["items"].as_array().into_iter().flatten().filter_map(|n| n["metadata"]["name"].as_str());
    Ok(names.filter(|n| n.starts_with(prefix)).count())
}

/// Empties a collection of a namespace, then removes the namespace.
pub async fn clear(client: &mut Client, names: &[String], plurals: &[&str]) -> Result<(), Error> {
    for name in names {
        for plural in plurals {
            // What a controller puts back at once would keep the namespace from ever being empty.
            let ours = format!("{}?fieldSelector=metadata.name!=kube-root-ca.crt", collection(name, plural));
            empty(client, &ours).await?;
        }
    }
    remove_namespaces(client, names).await
}

/// The outcome of a phase and of clearing up after it: the phase's own failure matters more.
pub fn both(outcome: Result<(), Error>, cleared: Result<(), Error>) -> Result<(), Error> {
    match (outcome, cleared) {
        (Ok(()), Err(error)) => Err(Error::Clearing(Box::new(error))),
        (outcome, _) => outcome,
    }
}
