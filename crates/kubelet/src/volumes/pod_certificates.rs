//! Certificates of pods in projected volumes (`podCertificate`): a key that never leaves the node but to its pod, a
//! PodCertificateRequest, and what its signer answers. Upstream's `podcertificate.IssuingManager`.
//!
//! Invariants: there is at most one request at a time for each projection; a key and its certificates change together; the
//! present ones stay until the next ones are issued. A request that was denied or failed is not repeated.

mod keys;

use super::persistent::blocking;
use crate::pods::context::NodeContext;
use crate::pods::core::{Pod, PodCertificateProjection};
use crate::pods::model;
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use kaji_runtime::{EventRecord, Target};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// After this and some jitter a request that is absent counts as deleted.
const ASSUME_DELETED: SignedDuration = SignedDuration::from_mins(10);
/// An event says that a replacement is late by this.
const OVERDUE: SignedDuration = SignedDuration::from_mins(10);
/// The most jitter, in milliseconds: nodes must not renew all at once.
const MOST_JITTER: u64 = 5 * 60 * 1000;

/// A key and its certificates, PEM.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    pub(super) key: String,
    pub(super) chain: String,
}

#[derive(Debug, Clone)]
struct Issued {
    credentials: Credentials,
    refresh: Timestamp,
    not_after: Timestamp,
    overdue_reported: bool,
    expiry_reported: bool,
}

#[derive(Debug, Clone)]
struct PendingRequest {
    key: String,
    request: String,
    abandoned: Timestamp,
}

#[derive(Debug, Clone, Default)]
struct State {
    issued: Option<Issued>,
    pending: Option<PendingRequest>,
    /// Why there will be none.
    refused: Option<String>,
}

/// Uid of the pod, volume, place among the volume's sources.
type Key = (String, String, usize);

/// The certificates of a node's pods. Bounded by their projections.
#[derive(Default)]
pub(super) struct PodCertificates(Mutex<HashMap<Key, State>>);

impl PodCertificates {
    /// The present credentials of a projection. Called again and again it asks for them, and replaces them in time.
    ///
    /// # Errors
    /// While they are not issued, and when they will not be.
    pub(super) async fn get(
        &self,
        cx: &NodeContext,
        pod: &Pod,
        (volume, source): (&str, usize),
        projection: &PodCertificateProjection,
    ) -> Result<Credentials, String> {
        let key = (model::uid(pod).to_owned(), volume.to_owned(), source);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let mut state = known.unwrap_or_default();
        let advanced = state.advance(cx, pod, projection).await;
        let answer = match (&state.refused, &state.issued, advanced) {
            (Some(refused), _, _) => Err(refused.clone()),
            (None, Some(issued), advanced) => {
                if let Err(error) = advanced {
                    tracing::warn!(
                        pod = model::display(pod),
                        volume,
                        error,
                        "a pod's certificate is not replaced"
                    );
                }
                Ok(issued.credentials.clone())
            }
            (None, None, Err(error)) => Err(error),
            (None, None, Ok(())) => Err("credential bundle is not issued yet".to_owned()),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, state);
        answer
    }

    /// Forgets the keys of a pod.
    pub(super) fn forget(&self, pod_uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(uid, _, _), _| uid != pod_uid);
    }
}

impl State {
    async fn advance(
        &mut self,
        cx: &NodeContext,
        pod: &Pod,
        projection: &PodCertificateProjection,
    ) -> Result<(), String> {
        if self.refused.is_some() {
            return Ok(());
        }
        if let Some(pending) = self.pending.take() {
            let found = cx.sources.object(&request_target(pod, &pending.request)).await;
            let Ok(Some(found)) = found else {
                // What was created a moment ago may not be seen yet.
                if found.is_err() || cx.clock.now() < pending.abandoned {
                    self.pending = Some(pending);
                }
                return found.map(|_| ());
            };
            return self.take_decision(cx, pod, pending, &found);
        }
        let now = cx.clock.now();
        if let Some(issued) = &mut self.issued {
            if now < issued.refresh {
                return Ok(());
            }
            report_delays(cx, pod, issued, now);
        }
        self.pending = Some(create_request(cx, pod, projection).await?);
        Ok(())
    }

    /// Takes what the signer decided.
    fn take_decision(
        &mut self,
        cx: &NodeContext,
        pod: &Pod,
        pending: PendingRequest,
        request: &Value,
    ) -> Result<(), String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = request["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        for condition in conditions {
            let (reason, message) = (text(&condition["reason"]), text(&condition["message"]));
            let name = format!("{}/{}", model::namespace(pod), pending.request);
            let verb = match condition["type"].as_str() {
                Some("Issued") => {
                    let time = |field: &str| {
                        let value = text(&request["status"][field]);
                        value.parse::<Timestamp>().map_err(|error| format!("{name}: {field}: {error}"))
                    };
                    let refresh = time("beginRefreshAt")? + jitter(cx);
                    let chain = clean(&text(&request["status"]["certificateChain"]))?;
                    let credentials = Credentials { key: pending.key, chain };
                    let not_after = time("notAfter")?;
                    let (overdue_reported, expiry_reported) = (false, false);
                    self.issued =
                        Some(Issued { credentials, refresh, not_after, overdue_reported, expiry_reported });
                    return Ok(());
                }
                Some("Denied") => "denied",
                Some("Failed") => "failed",
                _ => continue,
            };
            let was = if verb == "denied" { "was denied" } else { "failed" };
            let text = format!("PodCertificateRequest {name} {was}, reason={reason:?}, message={message:?}");
            let event = if verb == "denied" { "Denied" } else { "Failed" };
            cx.api.record(EventRecord::warning(model::reference(pod), event, text));
            self.refused = Some(format!(
                "PodCertificateRequest was permanently {verb}: reason={reason:?} message={message:?}"
            ));
            return Ok(());
        }
        self.pending = Some(pending);
        Ok(())
    }
}

/// Reports once for each certificate that its replacement is late, and that it has ended.
fn report_delays(cx: &NodeContext, pod: &Pod, issued: &mut Issued, now: Timestamp) {
    let report = |reported: &mut bool, reason: &str, message: &str| {
        if !std::mem::replace(reported, true) {
            cx.api.record(EventRecord::warning(model::reference(pod), reason, message));
        }
    };
    if now > issued.refresh + OVERDUE {
        report(
            &mut issued.overdue_reported,
            "CertificateOverdueForRefresh",
            "PodCertificate refresh overdue",
        );
    }
    if now > issued.not_after {
        report(&mut issued.expiry_reported, "CertificateExpired", "PodCertificate expired");
    }
}

fn jitter(cx: &NodeContext) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(cx.random.u64() % MOST_JITTER).unwrap_or(0))
}

fn request_target(pod: &Pod, name: &str) -> Target {
    Target {
        group: "certificates.k8s.io".into(),
        version: "v1".into(),
        resource: "podcertificaterequests".into(),
        namespace: model::namespace(pod).to_owned(),
        name: name.to_owned(),
        ..Target::default()
    }
}

/// Makes a key, and asks for its certificate.
async fn create_request(
    cx: &NodeContext,
    pod: &Pod,
    projection: &PodCertificateProjection,
) -> Result<PendingRequest, String> {
    let node = cx.facts.node().ok_or("the node is not known yet")?;
    let account = model::spec(pod).service_account_name.clone().unwrap_or_default();
    let target = Target {
        version: "v1".into(),
        resource: "serviceaccounts".into(),
        namespace: model::namespace(pod).to_owned(),
        name: account.clone(),
        ..Target::default()
    };
    let found = cx.sources.object(&target).await;
    let found = found.map_err(|error| format!("while fetching service account: {error}"))?;
    let found = found
        .ok_or_else(|| format!("while fetching service account: serviceaccounts \"{account}\" not found"))?;
    let key_type = projection.key_type.clone();
    let (key, request) = blocking(move || keys::generate(&key_type)).await?;
    let mut body = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "PodCertificateRequest",
        "metadata": {
            "namespace": model::namespace(pod),
            "generateName": "req-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": model::name(pod), "uid": model::uid(pod)},
            ],
        },
        "spec": {
            "signerName": projection.signer_name,
            "podName": model::name(pod),
            "podUID": model::uid(pod),
            "serviceAccountName": account,
            "serviceAccountUID": found["metadata"]["uid"],
            "nodeName": cx.config.node_name,
            "nodeUID": node.metadata.uid,
            "stubPKCS10Request": STANDARD.encode(request),
        },
    });
    if let Some(seconds) = projection.max_expiration_seconds {
        body["spec"]["maxExpirationSeconds"] = seconds.into();
    }
    if let Some(annotations) = &projection.user_annotations {
        body["spec"]["unverifiedUserAnnotations"] = json!(annotations);
    }
    let made = cx.sources.create(&request_target(pod, ""), &body).await;
    let made = made.map_err(|error| format!("while creating PodCertificateRequest: {error}"))?;
    let name = made["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err("while creating PodCertificateRequest: the answer has no name".to_owned());
    }
    let abandoned = cx.clock.now() + ASSUME_DELETED + jitter(cx);
    Ok(PendingRequest { key, request: name.to_owned(), abandoned })
}

/// The certificates of a chain without what stands around them.
fn clean(chain: &str) -> Result<String, String> {
    let mut clean = String::new();
    for block in x509_parser::pem::Pem::iter_from_buffer(chain.as_bytes()) {
        let block = block.map_err(|error| format!("the certificate chain is not PEM: {error}"))?;
        clean.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = STANDARD.encode(&block.contents);
        for start in (0..text.len()).step_by(64) {
            clean.push_str(&text[start..text.len().min(start + 64)]);
            clean.push('\n');
        }
        clean.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(clean)
}
