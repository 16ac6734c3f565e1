//! `kaji agent`: a node that joins a cluster over the network, as kubeadm and a kubelet do it.
//!
//! In order: the cluster is recognized by token and pinned key (`discovery`), the token logs in to ask for a client
//! certificate (`request`), which is kept (`identity`), and with which a simulated node runs until it is stopped. A
//! directory that holds a certificate that is still good needs no token.
//!
//! Invariants:
//! - The node acts as `system:node:<name>` only; the token is used for nothing but the request.
//! - A renewed certificate is on disk before it is used; a renewal that fails leaves everything as it was and is tried
//!   again until the certificate ends.

mod connect;
mod discovery;
mod error;
mod identity;
pub mod pins;
mod request;

pub use error::AgentError;

use crate::token;
use connect::Endpoint;
use discovery::JoinToken;
use identity::{Credential, Keep, NodeKey};
use jiff::Timestamp;
use kaji_kubelet::fake::{self, Fleet};
use kaji_meta::{
    random::{Random, SystemRandom},
    time::{Clock, SystemClock},
};
use kaji_runtime::{
    Client, Informers, Selected, Shared, Target,
    objects::{Node, Pod},
};
use pins::Pins;
use serde_json::Value;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
};

/// How often the certificate's end is looked at: timers stand still while a machine sleeps.
const CHECK: Duration = Duration::from_secs(600);
/// The first pause after a renewal that failed, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// Certificates of authorities, DER.
type Authorities = Vec<Vec<u8>>;

/// What to join, and as whom.
#[derive(Clone)]
pub struct AgentOptions {
    /// `host:port`
    pub server: String,
    /// `<id>.<secret>`; empty where the data directory holds a certificate.
    pub token: String,
    /// `sha256:<hex>`, of the authorities' public keys.
    pub hashes: Vec<String>,
    /// The node's name.
    pub node: String,
    /// Where key and certificate are kept.
    pub data_dir: PathBuf,
    /// How long the cluster may take to answer and to have signed with the token.
    pub discovery: Duration,
    /// How long a request for a certificate may take.
    pub signing: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
}

impl AgentOptions {
    /// A node that is to join a server. kubeadm waits five minutes for a certificate as well.
    pub fn new(server: &str, node: &str, data_dir: impl Into<PathBuf>) -> AgentOptions {
        AgentOptions {
            server: server.to_owned(),
            token: String::new(),
            hashes: vec![],
            node: node.to_owned(),
            data_dir: data_dir.into(),
            discovery: Duration::from_secs(60),
            signing: Duration::from_secs(300),
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
        }
    }
}

/// A node that runs.
pub struct Agent {
    member: Arc<Member>,
    stop: watch::Sender<bool>,
    expired: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    _informers: Arc<Informers>,
}

/// The node's membership of its cluster: its certificate, and everything that renewing it takes.
struct Member {
    options: AgentOptions,
    endpoint: Endpoint,
    authorities: Authorities,
    keep: Keep,
    held: Mutex<Held>,
    current: watch::Sender<kube::Client>,
}

struct Held {
    credential: Credential,
    renew_at: Timestamp,
}

impl Agent {
    /// Joins, unless that was done before, and runs the node.
    ///
    /// # Errors
    /// Why the node cannot join.
    pub async fn start(options: AgentOptions) -> Result<Agent, AgentError> {
        let wrong = kaji_meta::validation::is_dns1123_subdomain(&options.node);
        if let [first, ..] = &wrong[..] {
            return Err(AgentError::Usage(format!("{:?} is no name of a node: {first}", options.node)));
        }
        let endpoint = Endpoint::parse(&options.server)?;
        let pins = Pins::parse(&options.hashes).map_err(AgentError::Usage)?;
        let keep = Keep::open(&options.data_dir)?;
        let (credential, authorities) = match kept(&keep, &options, &pins)? {
            Kept::Good(credential, authorities) => (credential, authorities),
            // Whoever has the node's former key is that node, ready or not.
            Kept::Over => join(&keep, &options, &endpoint, &pins, true).await?,
            Kept::Nothing => join(&keep, &options, &endpoint, &pins, false).await?,
        };
        let client = endpoint.with_certificate(&authorities, &credential)?;
        accepted(&client, &options.node, &keep).await?;
        let held = Mutex::new(Held { renew_at: credential.renew_at(&*options.random), credential });
        let (current, newest) = watch::channel(client);
        let member = Arc::new(Member { options, endpoint, authorities, keep, held, current });
        Ok(Agent::run(member, &newest))
    }

    fn run(member: Arc<Member>, newest: &watch::Receiver<kube::Client>) -> Agent {
        let name = &member.options.node;
        let client = Client::new(connect::newest(newest), "kubelet");
        let shared = Shared {
            client: client.clone(),
            clock: member.options.clock.clone(),
            random: member.options.random.clone(),
        };
        // A node may read itself and its own pods, and has to say so.
        let selected = Selected::default()
            .of::<Node>(format!("metadata.name={name}"))
            .of::<Pod>(format!("spec.nodeName={name}"));
        let informers = Informers::selecting(client, selected);
        let (stop, stopped) = watch::channel(false);
        let (ended, expired) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(fake::run(Fleet::named(name), None, informers.clone(), shared, stopped.clone()));
        tasks.spawn(member.clone().follow(ended, stopped));
        Agent { member, stop, expired, tasks, _informers: informers }
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.member.options.node
    }

    /// The certificate of this moment, PEM.
    pub async fn certificate(&self) -> String {
        self.member.held.lock().await.credential.certificate.clone()
    }

    /// When the certificate of this moment is to be renewed.
    pub async fn renew_at(&self) -> Timestamp {
        self.member.held.lock().await.renew_at
    }

    /// Renews the certificate if it is time to. Whether it was.
    ///
    /// # Errors
    /// Why that did not work; the former certificate stays.
    pub async fn renew(&self, now: Timestamp) -> Result<bool, AgentError> {
        self.member.renew(now).await
    }

    /// Resolves when the node cannot go on.
    pub async fn failed(&mut self) -> AgentError {
        if self.expired.wait_for(|expired| *expired).await.is_err() {
            // The task that would tell has been stopped.
            std::future::pending::<()>().await;
        }
        AgentError::Expired(self.node().to_owned())
    }

    /// Ends the node; its objects stay.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// What an earlier start has left.
enum Kept {
    Nothing,
    /// A certificate that has ended.
    Over,
    Good(Credential, Authorities),
}

/// What an earlier start has left. It must be of this node and cluster.
fn kept(keep: &Keep, options: &AgentOptions, pins: &Pins) -> Result<Kept, AgentError> {
    let (Some(credential), Some(authorities)) = (keep.current()?, keep.authorities()?) else {
        return Ok(Kept::Nothing);
    };
    if credential.node != options.node {
        return Err(AgentError::OtherNode { path: keep.path(), held: credential.node });
    }
    if credential.not_after <= options.clock.now() {
        return Ok(Kept::Over);
    }
    let authorities = pins.choose(&authorities).map_err(AgentError::Authority)?;
    Ok(Kept::Good(credential, authorities))
}

/// Recognizes the cluster and asks it for a certificate. A node that is `known` to be this one may be ready already.
async fn join(
    keep: &Keep,
    options: &AgentOptions,
    endpoint: &Endpoint,
    pins: &Pins,
    known: bool,
) -> Result<(Credential, Authorities), AgentError> {
    let (id, secret) = token::parts(&options.token).ok_or_else(|| {
        AgentError::Usage(format!("the bootstrap token was not of the form {:?}", token::TOKEN_PATTERN))
    })?;
    let token = JoinToken { id: id.to_owned(), secret: secret.to_owned() };
    let authorities = discovery::discover(endpoint, &token, pins, options.discovery).await?;
    let client = Client::new(endpoint.with_token(&authorities, &options.token)?, "kaji-agent");
    free(&client, &options.node, id, known).await?;
    let key = keep.pending(&options.node)?;
    let signed = request::certificate(&client, &key, Some(key.request_name()), options.signing).await;
    if matches!(&signed, Err(AgentError::Refused { .. } | AgentError::Gone(_))) {
        // Asking the same again would get the same answer.
        keep.forget_pending()?;
    }
    let credential = Credential::signed(&signed?, &key)?;
    keep.trust(&authorities)?;
    keep.replace(&credential)?;
    Ok((credential, authorities))
}

/// Whether no other node has the name, as far as anybody can tell: one that is not ready may be this one's past.
async fn free(client: &Client, node: &str, token_id: &str, known: bool) -> Result<(), AgentError> {
    match client.get::<Value>(&Target::of::<Node>("", node).path()).await {
        Ok(found) => {
            let conditions = found["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ready = conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
            if ready && !known { Err(AgentError::Taken(node.to_owned())) } else { Ok(()) }
        }
        Err(error) if error.not_found() => Ok(()),
        Err(error) if error.code() == Some(401) => Err(AgentError::Token(token_id.to_owned())),
        Err(error) => Err(AgentError::api(format!("cannot get Node {node:?}"))(error)),
    }
}

/// Whether the certificate is a login.
async fn accepted(client: &kube::Client, node: &str, keep: &Keep) -> Result<(), AgentError> {
    let client = Client::new(client.clone(), "kubelet");
    match client.get::<Value>(&Target::of::<Node>("", node).path()).await {
        Ok(_) => Ok(()),
        Err(error) if error.not_found() => Ok(()),
        Err(error) if error.code() == Some(401) => Err(AgentError::Stale(keep.path())),
        Err(error) => Err(AgentError::api(format!("cannot get Node {node:?}"))(error)),
    }
}

impl Member {
    /// See [`Agent::renew`]. One renewal at a time.
    async fn renew(&self, now: Timestamp) -> Result<bool, AgentError> {
        let mut held = self.held.lock().await;
        if now < held.renew_at {
            return Ok(false);
        }
        let client = Client::new(self.current.borrow().clone(), "kubelet");
        let key = NodeKey::generate(&self.options.node)?;
        let signed = request::certificate(&client, &key, None, self.options.signing).await?;
        let credential = Credential::signed(&signed, &key)?;
        let client = self.endpoint.with_certificate(&self.authorities, &credential)?;
        self.keep.replace(&credential)?;
        self.current.send_replace(client);
        *held = Held { renew_at: credential.renew_at(&*self.options.random), credential };
        Ok(true)
    }

    /// Renews in time, until `stop` turns true or the certificate has ended.
    async fn follow(self: Arc<Self>, ended: watch::Sender<bool>, mut stop: watch::Receiver<bool>) {
        let mut pause = RETRY.0;
        loop {
            let (now, due, end) = {
                let held = self.held.lock().await;
                (self.options.clock.now(), held.renew_at, held.credential.not_after)
            };
            if now >= end {
                ended.send_replace(true);
                // Nobody listens to a node without a certificate, but it is its owner's to stop.
                let _ = stop.wait_for(|s| *s).await;
                return;
            }
            let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
            let step = async {
                if !left.is_zero() {
                    tokio::time::sleep(left.min(CHECK)).await;
                    return;
                }
                let renewed = self.renew(now).await;
                if let Err(error) = &renewed {
                    tracing::warn!(%error, "the node's certificate could not be renewed");
                }
                // A new one that is due already (clocks differ) must not be renewed over and over.
                if renewed.is_ok() && now < self.held.lock().await.renew_at {
                    pause = RETRY.0;
                } else {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            };
            tokio::select! { () = step => {}, _ = stop.wait_for(|s| *s) => return }
        }
    }
}
