//! The admission webhooks: what is left out is filled in, what cannot work is refused.
//!
//! Objects on their way out are never refused: their finalizer could not be removed.

use crate::{hosts::Hosts, types::WebApp};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::{
    ResourceExt,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation},
    },
};
use serde_json::json;
use std::{convert::Infallible, io, path::Path, sync::Arc};
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

const MUTATE: &str = "/mutate-apps-example-com-v1-webapp";
const VALIDATE: &str = "/validate-apps-example-com-v1-webapp";
/// More than any object has, twice (the old one comes along).
const MOST_BYTES: usize = 8 << 20;

/// What TLS needs, from `tls.crt` and `tls.key` in a folder, as secrets of that type are mounted.
pub fn tls(dir: &Path) -> io::Result<TlsAcceptor> {
    let unreadable = |error| io::Error::other(format!("{}: {error}", dir.display()));
    let certificates =
        CertificateDer::pem_file_iter(dir.join("tls.crt")).and_then(Iterator::collect).map_err(unreadable)?;
    let key = PrivateKeyDer::from_pem_file(dir.join("tls.key")).map_err(unreadable)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(io::Error::other)?)))
}

/// Answers the API server, for ever.
pub async fn serve(listener: TcpListener, tls: TlsAcceptor, hosts: Hosts) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, hosts) = (tls.clone(), hosts.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(|request| answer(request, hosts.clone()));
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

async fn answer(request: Request<Incoming>, hosts: Hosts) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if path != MUTATE && path != VALIDATE {
        return Ok(plain(StatusCode::NOT_FOUND, "there is no such webhook"));
    }
    let Ok(body) = Limited::new(request.into_body(), MOST_BYTES).collect().await else {
        return Ok(plain(StatusCode::BAD_REQUEST, "the body cannot be read"));
    };
    let review = serde_json::from_slice::<AdmissionReview<WebApp>>(&body.to_bytes());
    let response = match review.map(TryInto::<AdmissionRequest<WebApp>>::try_into) {
        Ok(Ok(request)) if path == MUTATE => mutate(&request),
        Ok(Ok(request)) => validate(&request, &hosts).await,
        Ok(Err(error)) => AdmissionResponse::invalid(error),
        Err(error) => AdmissionResponse::invalid(error),
    };
    let review: AdmissionReview<DynamicObject> = response.into_review();
    Ok(match serde_json::to_vec(&review) {
        Ok(body) => Response::new(Full::from(body)),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    })
}

fn plain(code: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = code;
    response
}

/// Adds what was left out, by a JSON patch.
fn mutate(request: &AdmissionRequest<WebApp>) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(app) = &request.object else { return response };
    let mut full = app.clone();
    // The object may not know yet where it is created.
    full.metadata.namespace = full.metadata.namespace.or_else(|| request.namespace.clone());
    full.set_defaults();
    let mut patch = vec![];
    if app.spec.replicas.is_none() {
        patch.push(json!({"op": "add", "path": "/spec/replicas", "value": full.spec.replicas}));
    }
    if app.spec.port.is_none() {
        patch.push(json!({"op": "add", "path": "/spec/port", "value": full.spec.port}));
    }
    if app.spec.host.is_none() {
        patch.push(json!({"op": "add", "path": "/spec/host", "value": full.spec.host}));
    }
    match serde_json::from_value(patch.into()).map(|patch| response.with_patch(patch)) {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => AdmissionResponse::invalid(error),
        Err(error) => AdmissionResponse::invalid(error),
    }
}

async fn validate(request: &AdmissionRequest<WebApp>, hosts: &Hosts) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(app) = request.object.as_ref().filter(|app| app.metadata.deletion_timestamp.is_none()) else {
        return response;
    };
    let image = &app.spec.image;
    if !is_pinned(image) {
        return response.deny(format!("spec.image: {image:?} needs a tag other than latest, or a digest"));
    }
    // The definition sees to it that the host stays what it is. Two that are created at once both get by here; one of
    // them will not get ready.
    if request.operation == Operation::Create
        && let Some(host) = &app.spec.host
    {
        let own = format!("{}/{}", request.namespace.as_deref().unwrap_or_default(), app.name_any());
        match hosts.holder(host).await {
            Ok(Some(holder)) if holder != own => {
                return response.deny(format!("spec.host: {host} belongs to {holder}"));
            }
            Ok(_) => {}
            Err(error) => return response.deny(format!("spec.host: cannot look up its owner: {error}")),
        }
    }
    response
}

/// Whether the image will be the same one tomorrow, as far as its name tells.
fn is_pinned(image: &str) -> bool {
    // A colon before the last slash is that of a registry's port.
    let name = image.rsplit('/').next().unwrap_or(image);
    name.contains('@') || name.split_once(':').is_some_and(|(_, tag)| !tag.is_empty() && tag != "latest")
}

#[cfg(test)]
mod tests {
    use super::is_pinned;

    #[test]
    fn images_with_a_version() {
        for good in ["nginx:1.29", "registry:5000/a/nginx:1", "nginx@sha256:0123", "a/b:latest@sha256:0123"] {
            assert!(is_pinned(good), "{good}");
        }
        for bad in ["nginx", "nginx:latest", "registry:5000/nginx", "nginx:"] {
            assert!(!is_pinned(bad), "{bad}");
        }
    }
}
