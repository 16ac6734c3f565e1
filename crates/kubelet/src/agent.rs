//! `kaji agent`: a node that joins a cluster over the network, as kubeadm and a kubelet do it.
//!
//! In order: the cluster is recognized by token and pinned key (`discovery`), the token logs in to ask for a client
//! certificate (`request`), which is kept (`identity`), and with which the node runs until it is stopped: a simulated one, or what
//! the caller passes. A directory that holds a certificate that is still good needs no token.
//!
//! Invariants:
//! - The node authenticates as `system:node:<name>` only; the token is used for nothing but the request.
//! - A renewed certificate is on disk before it is used; a renewal that fails leaves everything as it was and is tried
//!   again until the certificate ends.

mod connect;
mod discovery;
mod error;
mod identity;
mod request;
mod serving;

pub use error::AgentError;

use crate::{
    public_key_pins::Pins,
    simulated::{self, Fleet},
    token,
};
use connect::Endpoint;
use discovery::JoinToken;
use identity::{Credential, CredentialStore, NodeKey};
use jiff::Timestamp;
use kaji_meta::{
    random::{Random, SystemRandom},
    time::{Clock, SystemClock},
};
use kaji_runtime::{
    Client, Informers, Selected, Shared, Target,
    objects::{Node, Pod},
};
use request::Purpose;
use serde_json::Value;
use std::{fmt::Display, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};

/// How often the certificate's expiry is checked: timers stop while a machine is suspended.
const CHECK: Duration = Duration::from_secs(600);
/// The first pause after a renewal that failed, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// Certificates of authorities, DER.
type Authorities = Vec<Vec<u8>>;

/// Which cluster to join, and the node's identity.
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
    /// Whether a cloud-controller-manager initializes the node, if it is a simulated one.
    pub external_cloud: bool,
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
            external_cloud: false,
        }
    }
}

/// A node that runs.
pub struct Agent {
    member: Arc<Member>,
    stop: watch::Sender<bool>,
    failures: mpsc::Receiver<AgentError>,
    tasks: JoinSet<()>,
}

/// What runs as a node that has joined has these.
pub struct JoinedNode {
    /// The node's name.
    pub name: String,
    /// Its requests are those of `system:node:<name>`, each with the certificate of that moment.
    pub shared: Shared,
    /// Turns true when the node is to end.
    pub stop: watch::Receiver<bool>,
    member: Arc<Member>,
}

/// The node's membership of its cluster: its certificate, and everything that renewing it takes.
struct Member {
    options: AgentOptions,
    endpoint: Endpoint,
    authorities: Authorities,
    store: CredentialStore,
    held: Mutex<Held>,
    current: watch::Sender<kube::Client>,
}

struct Held {
    credential: Credential,
    renew_at: Timestamp,
}

impl Agent {
    /// Joins, unless that was done before, and runs a simulated node.
    ///
    /// # Errors
    /// Why the node cannot join.
    pub async fn start(options: AgentOptions) -> Result<Agent, AgentError> {
        Agent::start_with(options, simulated_node).await
    }

    /// The same, with what `run` makes as the node; it returns when [`JoinedNode::stop`] turns true, and an error when the node
    /// cannot go on.
    ///
    /// # Errors
    /// Why the node cannot join.
    pub async fn start_with<R, E>(
        options: AgentOptions,
        run: impl FnOnce(JoinedNode) -> R,
    ) -> Result<Agent, AgentError>
    where
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let wrong = kaji_meta::validation::is_dns1123_subdomain(&options.node);
        if let [first, ..] = &wrong[..] {
            return Err(AgentError::Usage(format!("{:?} is no name of a node: {first}", options.node)));
        }
        let endpoint = Endpoint::parse(&options.server)?;
        let pins = Pins::parse(&options.hashes).map_err(AgentError::Usage)?;
        let store = CredentialStore::open(&options.data_dir)?;
        let (credential, authorities) = match stored_identity(&store, &options, &pins)? {
            StoredIdentity::Valid(credential, authorities) => (credential, authorities),
            // The owner of the node's former key is that node, whether the Node is ready or not.
            StoredIdentity::Expired => join(&store, &options, &endpoint, &pins, true).await?,
            StoredIdentity::Missing => join(&store, &options, &endpoint, &pins, false).await?,
        };
        let client = endpoint.with_certificate(&authorities, &credential)?;
        check_certificate(&client, &options.node, &store).await?;
        let held = Mutex::new(Held { renew_at: credential.renew_at(&*options.random), credential });
        let (current, newest) = watch::channel(client);
        let member = Arc::new(Member { options, endpoint, authorities, store, held, current });
        Ok(Agent::run(member, &newest, run))
    }

    fn run<R, E>(
        member: Arc<Member>,
        newest: &watch::Receiver<kube::Client>,
        run: impl FnOnce(JoinedNode) -> R,
    ) -> Agent
    where
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let name = member.options.node.clone();
        let shared = Shared {
            client: Client::new(connect::newest(newest), "kubelet"),
            clock: member.options.clock.clone(),
            random: member.options.random.clone(),
            decisions: None,
        };
        let (stop, stopped) = watch::channel(false);
        let (failed, failures) = mpsc::channel(1);
        let node =
            run(JoinedNode { name: name.clone(), shared, stop: stopped.clone(), member: member.clone() });
        let ended = failed.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = node.await {
                // One failure is enough to end the agent.
                let _ = ended.try_send(AgentError::Node { node: name, reason: error.to_string() });
            }
        });
        tasks.spawn(member.clone().follow(failed, stopped));
        Agent { member, stop, failures, tasks }
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
        match self.failures.recv().await {
            Some(failure) => failure,
            // The tasks have been stopped.
            None => std::future::pending().await,
        }
    }

    /// Ends the node; its objects stay.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A simulated node, until it is stopped.
async fn simulated_node(joined: JoinedNode) -> Result<(), std::convert::Infallible> {
    let name = &joined.name;
    // A node may read itself and its own pods, and has to say so.
    let selected = Selected::default()
        .of::<Node>(format!("metadata.name={name}"))
        .of::<Pod>(format!("spec.nodeName={name}"));
    let informers = Informers::selecting(joined.shared.client.clone(), selected);
    let fleet = Fleet::named(name).with_external_cloud(joined.member.options.external_cloud);
    simulated::run(fleet, None, informers, joined.shared, joined.stop).await;
    Ok(())
}

/// The identity that an earlier start has stored.
enum StoredIdentity {
    Missing,
    /// An expired certificate.
    Expired,
    Valid(Credential, Authorities),
}

/// Reads the stored identity, which must be of this node and cluster.
fn stored_identity(
    store: &CredentialStore,
    options: &AgentOptions,
    pins: &Pins,
) -> Result<StoredIdentity, AgentError> {
    let (Some(credential), Some(authorities)) = (store.current()?, store.authorities()?) else {
        return Ok(StoredIdentity::Missing);
    };
    if credential.node != options.node {
        return Err(AgentError::OtherNode { path: store.path(), held: credential.node });
    }
    if credential.not_after <= options.clock.now() {
        return Ok(StoredIdentity::Expired);
    }
    let authorities = pins.choose(&authorities).map_err(AgentError::Authority)?;
    Ok(StoredIdentity::Valid(credential, authorities))
}

/// Verifies the cluster and requests a certificate. A node that is `known` to be this one may be ready already.
async fn join(
    store: &CredentialStore,
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
    check_name(&client, &options.node, id, known).await?;
    let key = store.pending(&options.node)?;
    let signed =
        request::certificate(&client, &key, &Purpose::client(), Some(key.request_name()), options.signing)
            .await;
    if matches!(&signed, Err(AgentError::Refused { .. } | AgentError::Gone(_))) {
        // The same request would be rejected again.
        store.forget_pending()?;
    }
    let credential = Credential::signed(&signed?, &key)?;
    store.trust(&authorities)?;
    store.replace(&credential)?;
    Ok((credential, authorities))
}

/// Rejects a name that a ready Node has; one that is not ready may be an earlier run of this node.
async fn check_name(client: &Client, node: &str, token_id: &str, known: bool) -> Result<(), AgentError> {
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

/// Whether the API server accepts the certificate.
async fn check_certificate(
    client: &kube::Client,
    node: &str,
    store: &CredentialStore,
) -> Result<(), AgentError> {
    let client = Client::new(client.clone(), "kubelet");
    match client.get::<Value>(&Target::of::<Node>("", node).path()).await {
        Ok(_) => Ok(()),
        Err(error) if error.not_found() => Ok(()),
        Err(error) if error.code() == Some(401) => Err(AgentError::Stale(store.path())),
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
        let signed =
            request::certificate(&client, &key, &Purpose::client(), None, self.options.signing).await?;
        let credential = Credential::signed(&signed, &key)?;
        let client = self.endpoint.with_certificate(&self.authorities, &credential)?;
        self.store.replace(&credential)?;
        self.current.send_replace(client);
        *held = Held { renew_at: credential.renew_at(&*self.options.random), credential };
        Ok(true)
    }

    /// Renews in time, until `stop` turns true or the certificate has ended.
    async fn follow(self: Arc<Self>, failed: mpsc::Sender<AgentError>, mut stop: watch::Receiver<bool>) {
        let mut pause = RETRY.0;
        loop {
            let (now, due, end) = {
                let held = self.held.lock().await;
                (self.options.clock.now(), held.renew_at, held.credential.not_after)
            };
            if now >= end {
                // One failure is enough to end the agent.
                let _ = failed.try_send(AgentError::Expired(self.options.node.clone()));
                // The API server rejects a node without a certificate; its owner stops it.
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
