//! The control of test clusters by HTTP: `kaji envtest serve`. A suite sets one cluster up, each of its tests has a fork of it, and brings
//! faults and jumps of the clock about in it.
//!
//! - `clusters`: the clusters of a process, each with a listener that has the fault layer in front.
//! - `routes`: requests of the control, and their answers.
//! - `token`: which requests are taken.
//!
//! Invariants: it listens on the loopback alone, and answers only requests with the token of this process, which is announced once and written
//! nowhere; a web page's requests are refused whatever they have. Clusters, connections, bodies and waits are bounded. What it started ends with
//! it, and its directory goes.

mod clusters;
mod routes;
mod token;

pub use clusters::{Access, ControlError, Description};

use crate::{cluster::StartCluster, scenario::ClusterSpec};
use clusters::Clusters;
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kaji_meta::random::Random;
use serde::Serialize;
use std::{
    convert::Infallible, future::Future, net::Ipv4Addr, path::PathBuf, rc::Rc, sync::Arc, time::Duration,
};
use token::Token;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinSet, LocalSet, spawn_local},
};

/// Connections at one time.
const CONNECTIONS: usize = 128;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// After a failure to accept, as when files run out.
const PAUSE: Duration = Duration::from_millis(50);

/// What is served.
pub struct Settings {
    /// The cluster that tests fork.
    pub spec: ClusterSpec,
    /// The port of the control; 0 for a free one.
    pub port: u16,
    /// The data of all clusters is in a directory below this one.
    pub directory: PathBuf,
    /// How long events are held back where a fault says so.
    pub delay: Duration,
}

/// What a client has to know: one line of JSON.
#[derive(Serialize)]
pub struct Announcement {
    /// The URL of the control.
    pub control: String,
    /// Its token, of this process alone.
    pub token: String,
    /// The cluster that is forked.
    pub cluster: Description,
}

/// Starts the first cluster, announces the control, and serves until `stop` is done; then everything ends.
///
/// # Errors
/// When the cluster does not start, nothing can be listened on, or the announcement fails.
pub async fn serve(
    settings: Settings,
    start: StartCluster,
    random: &dyn Random,
    announce: impl FnOnce(&Announcement) -> std::io::Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<(), ControlError> {
    // Other users do not read it: kubeconfigs and keys are there.
    let directory = tempfile::Builder::new().prefix("kaji-envtest-").tempdir_in(&settings.directory)?;
    // Clusters start on this thread; what they run is on all of the runtime.
    let serving = async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port)).await?;
        let port = listener.local_addr()?.port();
        let token = Token::new(random, port);
        let clusters = Rc::new(Clusters::new(directory.path().to_owned(), start, settings.delay));
        let cluster = clusters.create_base(settings.spec).await?;
        let control = format!("http://127.0.0.1:{port}");
        announce(&Announcement { control, token: token.text().to_owned(), cluster })?;
        tokio::select! {
            () = stop => {}
            () = accept(listener, clusters.clone(), Rc::new(token)) => {}
        }
        clusters.end().await;
        Ok(())
    };
    let outcome: Result<(), ControlError> = LocalSet::new().run_until(serving).await;
    outcome.and(directory.close().map_err(ControlError::Io))
}

async fn accept(listener: TcpListener, clusters: Rc<Clusters>, token: Rc<Token>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    // Connections end with this.
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (clusters, token) = (clusters.clone(), token.clone());
                connections.spawn_local(async move {
                    connection(stream, clusters, token).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, clusters: Rc<Clusters>, token: Rc<Token>) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (clusters, token) = (clusters.clone(), token.clone());
        async move {
            // A client that disconnects leaves nothing half done.
            let answered = spawn_local(async move {
                match token.refuses(request.headers()) {
                    Some(refusal) => refusal.response(),
                    None => routes::answer(&clusters, request).await,
                }
            });
            let answer =
                answered.await.unwrap_or_else(|error| routes::RequestRejection::failed(error).response());
            Ok::<_, Infallible>(answer.map(Full::new))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection of the control ended");
    }
}
