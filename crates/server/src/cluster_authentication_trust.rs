//! The ConfigMap `kube-system/extension-apiserver-authentication`, by which extension API servers authenticate requests: the
//! certificate authorities of clients and of front proxies, and the headers in which front proxies name users. And the client
//! certificate that the aggregator presents to extension API servers.
//!
//! Invariants:
//! - Entries of other servers stay, since several servers may share the map; expired certificates are removed.
//! - The map is written only when something is missing, and created again after it was deleted; it has the authorities of the
//!   current files.
//!
//! Source: upstream's `clusterauthenticationtrust` controller.

use crate::{
    Certificates,
    pki::{self, Pki},
};
use futures_util::StreamExt;
use kaji_aggregator::{Aggregator, Identity};
use kaji_auth::authn::{ClusterAuthenticationInfo, RequestHeader};
use kaji_engine::{ApiRequest, Body, Engine};
use kaji_meta::{Clock, GroupResource, Status, text};
use kaji_resource::{Api, FieldManagement, UpdateOptions, Verb, unless_exists};
use serde_json::{Map, Value, json};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::sync::watch;

/// The name of the ConfigMap.
pub const NAME: &str = "extension-apiserver-authentication";
/// Its namespace.
pub const NAMESPACE: &str = "kube-system";
/// How often it is reconciled without changes, because certificates expire.
const RESYNC: Duration = Duration::from_secs(60);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Seconds for which expired certificates are kept, for clients with slow clocks.
const CLOCK_SKEW: i64 = 300;

/// Why the existing map cannot be completed.
#[derive(Debug, thiserror::Error)]
#[error("{NAMESPACE}/{NAME}: {key}: {why}")]
pub struct TrustError {
    key: &'static str,
    why: String,
}

impl From<TrustError> for Status {
    fn from(error: TrustError) -> Status {
        Status::internal(error.to_string())
    }
}

/// Creates or completes the map.
///
/// # Errors
/// When the existing map cannot be parsed, or a write is rejected.
pub async fn ensure(
    api: &dyn Api,
    info: &ClusterAuthenticationInfo,
    now: jiff::Timestamp,
) -> Result<(), Status> {
    let maps = GroupResource::new("", "configmaps");
    let Some(found) = api.get(&maps, NAMESPACE, NAME) else {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": combined(&Value::Null, info, now)?,
        });
        return unless_exists(api.create(&maps, NAMESPACE, map, false).await);
    };
    if combined(&found["data"], info, now)? == found["data"] {
        return Ok(());
    }
    let change = |map: &mut Value| {
        map["data"] = combined(&map["data"], info, now)?;
        Ok(())
    };
    match api.update(&maps, NAMESPACE, NAME, UpdateOptions::new("", FieldManagement::Record), &change).await {
        Err(status) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// The data of the existing map, completed with this server's.
fn combined(
    data: &Value,
    info: &ClusterAuthenticationInfo,
    now: jiff::Timestamp,
) -> Result<Value, TrustError> {
    let mut out = Map::new();
    let clients = certificates(data, "client-ca-file", &info.client_ca, now)?;
    if !clients.is_empty() {
        out.insert("client-ca-file".into(), clients.into());
    }
    let proxies = certificates(data, "requestheader-client-ca-file", &info.request_header_ca, now)?;
    if proxies.is_empty() {
        return Ok(out.into());
    }
    out.insert("requestheader-client-ca-file".into(), proxies.into());
    let RequestHeader { allowed, user, uid, groups, extra } = &info.request_header;
    for (key, own) in [
        ("requestheader-allowed-names", allowed),
        ("requestheader-username-headers", user),
        ("requestheader-uid-headers", uid),
        ("requestheader-group-headers", groups),
        ("requestheader-extra-headers-prefix", extra),
    ] {
        let mut all: Vec<String> = vec![];
        for text in list(data, key)?.into_iter().chain(own.iter().cloned()) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        // Servers that do not have UIDs do not expect the key.
        if key != "requestheader-uid-headers" || !all.is_empty() {
            out.insert(key.into(), json!(all).to_string().into());
        }
    }
    Ok(out.into())
}

fn list(data: &Value, key: &'static str) -> Result<Vec<String>, TrustError> {
    match data[key].as_str() {
        None | Some("") => Ok(vec![]),
        Some(text) => serde_json::from_str(text).map_err(|e| TrustError { key, why: e.to_string() }),
    }
}

/// The union of the unexpired certificates, PEM.
fn certificates(
    data: &Value,
    key: &'static str,
    own: &str,
    now: jiff::Timestamp,
) -> Result<String, TrustError> {
    let error = |why: String| TrustError { key, why };
    let mut all: Vec<Vec<u8>> = vec![];
    for pem in [data[key].as_str().unwrap_or_default(), own] {
        for der in pki::certificates(pem).map_err(|e| error(e.to_string()))? {
            let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|e| error(e.to_string()))?;
            let ends = parsed.validity().not_after.timestamp();
            if ends > now.as_second() - CLOCK_SKEW && !all.contains(&der) {
                all.push(der);
            }
        }
    }
    Ok(all.iter().map(|der| text::pem("CERTIFICATE", der)).collect())
}

/// Keeps the map up to date until `stop` turns true or the engine has ended.
pub async fn follow(
    engine: Weak<Engine>,
    mut info: watch::Receiver<ClusterAuthenticationInfo>,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
) {
    let work = async {
        while let Some(strong) = engine.upgrade() {
            let Body::Watch(mut changes) = strong.handle(request()).await.body else { return };
            drop(strong);
            loop {
                let Some(strong) = engine.upgrade() else { return };
                let now = info.borrow_and_update().clone();
                let outcome = ensure(&*strong, &now, clock.now()).await;
                drop(strong);
                let pause = if outcome.is_ok() { RESYNC } else { RETRY };
                if let Err(error) = outcome {
                    tracing::warn!(%error, "kube-system/extension-apiserver-authentication could not be written");
                }
                tokio::select! {
                    biased;
                    piece = changes.next() => if piece.is_none() { break },
                    Ok(()) = info.changed() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = work => {}
        _ = stop.wait_for(|s| *s) => {}
    }
}

/// The client certificate that the aggregator presents to extension API servers.
pub fn identity(pki: &Pki) -> Identity {
    let client = &pki.front_proxy_client;
    (client.certificate.clone().into_bytes(), client.key.clone().into_bytes())
}

/// Gives renewed client certificates to the aggregator.
pub async fn identify(
    aggregator: Arc<Aggregator>,
    certificates: Arc<Certificates>,
    mut stop: watch::Receiver<bool>,
) {
    let mut renewals = certificates.subscribe();
    loop {
        tokio::select! {
            biased;
            renewed = renewals.changed() => if renewed.is_err() { return },
            _ = stop.wait_for(|s| *s) => return,
        }
        let pki = renewals.borrow_and_update().clone();
        aggregator.identify(identity(&pki));
    }
}

/// A watch of the one map.
fn request() -> ApiRequest {
    let maps = GroupResource::new("", "configmaps");
    ApiRequest {
        namespace: NAMESPACE.into(),
        query: [("watch", "true".to_owned()), ("fieldSelector", format!("metadata.name={NAME}"))].into(),
        ..ApiRequest::own(Verb::Watch, maps, "v1", "kube-apiserver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().unwrap()
    }

    fn info(now: jiff::Timestamp) -> ClusterAuthenticationInfo {
        let pki = Pki::in_memory(None, &[], now).unwrap();
        ClusterAuthenticationInfo {
            client_ca: pki.ca.certificate,
            request_header_ca: pki.front_proxy_ca.certificate,
            request_header: RequestHeader::default(),
        }
    }

    #[test]
    fn keeps_entries_of_other_servers() {
        let now = at("2026-01-01T00:00:00Z");
        let (ours, theirs) = (info(now), info(now));
        let first = combined(&Value::Null, &ours, now).unwrap();
        assert_eq!(combined(&first, &ours, now).unwrap(), first);
        assert_eq!(
            first["client-ca-file"].as_str().unwrap().replace("\r", ""),
            ours.client_ca.replace("\r", "")
        );
        let mut data = first.clone();
        data["requestheader-allowed-names"] = r#"["other"]"#.into();
        data["unknown"] = "goes".into();
        let both = combined(&data, &theirs, now).unwrap();
        let begins = "-----BEGIN CERTIFICATE-----";
        assert_eq!(both["client-ca-file"].as_str().unwrap().matches(begins).count(), 2);
        let mut rest = both.as_object().unwrap().clone();
        rest.retain(|key, _| !key.ends_with("ca-file"));
        expect_test::expect![[r#"
            {
              "requestheader-allowed-names": "[\"other\",\"front-proxy-client\"]",
              "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
              "requestheader-group-headers": "[\"X-Remote-Group\"]",
              "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
              "requestheader-username-headers": "[\"X-Remote-User\"]"
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&rest).unwrap());
    }

    #[test]
    fn removes_expired_certificates() {
        let old = at("2010-01-01T00:00:00Z");
        let data = combined(&Value::Null, &info(old), old).unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let ours = info(now);
        assert_eq!(combined(&data, &ours, now).unwrap(), combined(&Value::Null, &ours, now).unwrap());
    }

    #[test]
    fn rejects_a_malformed_map() {
        let now = at("2026-01-01T00:00:00Z");
        let data = json!({"requestheader-group-headers": "X-Remote-Group"});
        let error = combined(&data, &info(now), now).unwrap_err().to_string();
        assert!(
            error
                .starts_with("kube-system/extension-apiserver-authentication: requestheader-group-headers: ")
        );
    }
}
