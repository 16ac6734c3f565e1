//! A cluster in one process: what is started, in which order, and how it ends.
//!
//! Order: store, engine with every built-in resource, custom resources, TLS and listener, bootstrap objects, then the
//! control loops, which speak the API through the in-process transport. Ending runs the other way round.

use crate::{
    Nodes, ProxyClient, RangeFlags,
    access::{Access, AuthzError, AuthzOptions},
    audit,
    authn::{Authn, AuthnError, AuthnOptions, LateTokens},
    bootstrap,
    delegation::{self, Trust},
    encryption::{Encryption, EncryptionFile},
    identities, joining,
    kubelets::Kubelets,
    roles,
    serving::Serving,
    tracking, trust,
};
use kaji_aggregator::Aggregator;
use kaji_audit::{AuditError, Options as AuditOptions};
use kaji_auth::authn::SigningKey;
use kaji_builtins::Deps;
use kaji_controllers::{NodeRanges, Selection};
use kaji_encryption::ConfigError;
use kaji_engine::{Engine, EngineError, EngineOptions};
use kaji_kubelet::fake::{self, Facing, Fleet};
use kaji_meta::{
    Status,
    random::SystemRandom,
    time::{Clock, SystemClock},
};
use kaji_outbound::ClientCache;
use kaji_resource::Api;
use kaji_runtime::{Client, Informers, Selected, VirtualClock};
use kaji_server::{
    Audit, Authentication, BodyMemory, Certificates, Discovery, FlowControl, Health, Identities,
    Impersonation, Listener, LocalService, Metrics, OpenApi, SlowCheck, Stack, StackError, TlsConfigHandle,
    flowcontrol::Limits,
    pki::{Pki, PkiError},
};
use kaji_store::{
    Store, StoreError,
    disk::{DiskOptions, DiskStore},
    memory::{MemoryOptions, MemoryStore},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// Where the store is in the data directory.
pub(crate) const STORE: &str = "store";

/// Where objects are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// In the data directory.
    Disk,
    /// In memory only: they end with the process.
    Memory,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Holds the store and the PKI.
    pub data_dir: PathBuf,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further names that clients use for the server.
    pub names: Vec<String>,
    /// Nodes to bring along.
    pub nodes: Nodes,
    /// Which ranges of pod addresses nodes are given.
    pub node_ranges: RangeFlags,
    /// Whether controllers and the scheduler run.
    pub controllers: bool,
    /// Which of them, if so.
    pub selection: Selection,
    /// How long tokens in secrets stay that nobody uses; a year without it.
    pub unused_token_period: Option<Duration>,
    /// With which certificates it serves, and to whom.
    pub serving: Serving,
    /// Where objects are kept.
    pub store: StoreKind,
    /// `10.96.0.0/12`
    pub service_cidrs: Vec<String>,
    /// The file that says how values are encrypted at rest.
    pub encryption: Option<EncryptionFile>,
    /// What is recorded of requests, and where.
    pub audit: AuditOptions,
    /// How many requests are served at once.
    pub limits: Limits,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// Who decides what somebody may do.
    pub authz: AuthzOptions,
    /// How somebody proves who they are.
    pub authn: AuthnOptions,
    /// Which admission plugins run, and their configuration.
    pub admission: kaji_admission::Flags,
    /// What objects are stamped with and control loops go by, if that is not the machine's clock. Certificates, deadlines
    /// of requests and flow control have to do with others, and go by the machine's in any case.
    pub clock: Option<Arc<VirtualClock>>,
}

impl Options {
    /// The defaults over a data directory: loopback, port 6443.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Options {
            data_dir: data_dir.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
            names: vec![],
            nodes: Nodes::Simulated(3),
            node_ranges: RangeFlags::default(),
            controllers: true,
            selection: Selection::default(),
            unused_token_period: None,
            serving: Serving::default(),
            store: StoreKind::Disk,
            service_cidrs: vec!["10.96.0.0/12".into()],
            encryption: None,
            audit: AuditOptions::default(),
            limits: Limits::default(),
            request_timeout: Duration::from_secs(60),
            authz: AuthzOptions::default(),
            authn: AuthnOptions::default(),
            admission: kaji_admission::Flags::default(),
            clock: None,
        }
    }

    /// What time it is for objects and control loops.
    fn time(&self) -> Arc<dyn Clock> {
        match &self.clock {
            Some(clock) => clock.clone(),
            None => Arc::new(SystemClock),
        }
    }
}

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error("cannot open the store: {0}")]
    Store(#[from] StoreError),
    /// The encryption configuration.
    #[error("error while parsing file: {0}")]
    Encryption(#[from] ConfigError),
    /// Audit.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Certificates.
    #[error("cannot prepare certificates: {0}")]
    Pki(#[from] PkiError),
    /// Authorization.
    #[error("cannot set up authorization: {0}")]
    Authz(#[from] AuthzError),
    /// Authentication.
    #[error("cannot set up authentication: {0}")]
    Authn(#[from] AuthnError),
    /// The listener.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: StackError,
    },
    /// TLS.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// Objects that every cluster has.
    #[error("cannot create the cluster's first objects: {0}")]
    Bootstrap(Status),
    /// Admission plugins and their configuration.
    #[error(transparent)]
    Admission(#[from] kaji_admission::ConfigError),
    /// A service range that is none.
    #[error("{0:?} is no service range")]
    ServiceRange(String),
    /// Ranges for nodes that are none.
    #[error("node ranges: {0}")]
    NodeRanges(String),
}

/// A running cluster.
pub struct Cluster {
    /// The request path, for clients inside the process.
    pub stack: Arc<Stack>,
    /// Certificates as they were at the start.
    pub pki: Pki,
    /// Certificates as they are now: they are renewed while the cluster runs.
    pub certificates: Arc<Certificates>,
    /// Where it listens.
    pub address: SocketAddr,
    store: Arc<dyn Store>,
    stop: watch::Sender<bool>,
    loops: JoinSet<()>,
    listener: JoinSet<()>,
    _informers: Option<Arc<Informers>>,
    token_signer: Arc<SigningKey>,
    /// Whom it believes.
    trusted: watch::Receiver<Trust>,
}

impl Cluster {
    /// Starts one; resolves when `/readyz` says ok.
    pub async fn start(options: Options) -> Result<Cluster, StartError> {
        let mut metrics = Metrics::default();
        let audit = audit::start(&options.audit, &mut metrics).await?;
        // A configuration that cannot be used is to be known before anything is opened.
        let name = server_name(&options);
        let encryption = Encryption::new(options.encryption.as_ref(), &name, &mut metrics).await?;
        let inner = open_store(&options).await?;
        let lasting = (options.store == StoreKind::Disk).then(|| options.data_dir.join(STORE));
        let store = encryption.around(inner.clone());
        let started = Self::start_on(store.clone(), options, audit, metrics).await;
        if started.is_err() {
            // Whoever starts again must not find the files in use.
            store.close().await;
        }
        let mut cluster = started?;
        encryption.add_check(&cluster.stack.health);
        let stop = cluster.stop.subscribe();
        if let Some(dir) = lasting
            && let Some(scrubbing) = encryption.scrubbing(&inner, &dir).await
        {
            cluster.listener.spawn(scrubbing.run(stop.clone()));
        }
        cluster.listener.spawn(encryption.follow(inner, stop));
        Ok(cluster)
    }

    #[expect(clippy::too_many_lines, reason = "to be divided")]
    async fn start_on(
        store: Arc<dyn Store>,
        options: Options,
        audit: Option<Arc<Audit>>,
        mut metrics: Metrics,
    ) -> Result<Cluster, StartError> {
        let service_ip = first_address(&options.service_cidrs)?;
        let node_ranges =
            options.node_ranges.ranges(&options.service_cidrs).map_err(StartError::NodeRanges)?;
        // The store is open, so the directory is ours: certificates are made meanwhile.
        let (dir, names) = (options.data_dir.join("pki"), serving_names(&options, service_ip));
        let (clock, time) = (Arc::new(SystemClock), options.time());
        let now = clock.now();
        let serving = options.serving.clone();
        let certificates = tokio::task::spawn_blocking(move || serving.load(&dir, names, now));
        let name = server_name(&options);
        let access = Access::new(&options.authz, &name, &time).await?;
        let tokens = Arc::new(LateTokens::default());
        let plugins = kaji_admission::Deps {
            authorizer: access.authorizer.clone(),
            callers: Arc::new(ClientCache::default()),
            metrics: Arc::default(),
            policies: Arc::default(),
        };
        let engine = open_engine(store.clone(), &options, &access, &plugins, tokens.clone()).await?;
        plugins.callers.set_service_lookup(Arc::downgrade(&(engine.clone() as Arc<dyn Api>)));
        let conversions =
            kaji_apiextensions::Conversions { callers: plugins.callers.clone(), ..Default::default() };
        conversions.metrics.register(metrics.registry());
        kaji_apiextensions::start(engine.clone(), time.clone(), conversions).await?;
        let certificates =
            certificates.await.map_err(|e| StoreError::Unavailable(format!("certificates: {e}")))??;
        let pki = certificates.current();
        let api: Arc<dyn Api> = engine.clone();
        let api = Arc::downgrade(&api);
        let mut authn = Authn::new(&sensible(&options), &pki, &api, &time, &name).await?;
        tokens.set(authn.tokens.clone());
        let listener = match options.serving.local {
            true => None,
            false => Some(listen(&options, &certificates, &authn).await?),
        };
        let (listener, front) = listener.unzip();
        let address = listener.as_ref().map_or(Ok(options.listen), Listener::address)?;
        let facts = bootstrap::Facts {
            service_cidrs: &options.service_cidrs,
            service_ip,
            advertise: endpoint(address),
        };
        bootstrap::run(&*engine, &facts).await.map_err(StartError::Bootstrap)?;
        let url = format!("https://{}", advertised(address));
        let trust = certificates.trust();
        let joining = joining::prepare(&*engine, &url, &trust);
        let trusted = Trust {
            clients: authn.authorities.clients.clone(),
            proxies: authn.authorities.proxies.clone(),
            headers: authn.chain.proxy.clone().unwrap_or_default(),
        };
        tokio::try_join!(
            roles::run(&*engine),
            joining,
            kaji_server::flowcontrol::ensure(&engine),
            kaji_aggregator::ensure(&engine),
            delegation::ensure(&*engine, &trusted, now),
            tracking::ensure(&*engine, now, true),
        )
        .map_err(StartError::Bootstrap)?;
        let (believed, trusted) = watch::channel(trusted);
        let callers = plugins.callers.clone();
        let proxy = options.serving.proxy.clone();
        let shown = proxy.load(&pki)?;
        let aggregator = Aggregator::new(engine.clone(), callers, shown.clone(), time.clone());
        aggregator.register_metrics(metrics.registry());
        let flow = FlowControl::new(options.limits, Arc::new(SystemClock));
        let stack = Arc::new(Stack {
            engine,
            issuer: authn.documents(&format!("https://{}", advertised(address))),
            authentication: Authentication { chain: authn.chain.clone(), clock: time.clone() },
            impersonation: Impersonation::default(),
            aggregator: aggregator.clone(),
            authorizer: access.authorizer.clone(),
            health: Health::default(),
            metrics: metrics
                .with_flow(&flow)
                .with_authorization_metrics(&access.decisions)
                .with_reload_metrics(&authn.reloads)
                .with(|registry| plugins.metrics.register(registry))
                .with(|registry| plugins.policies.register(registry)),
            discovery: Discovery::default(),
            openapi: Arc::new(OpenApi::new(kaji_schema::docs::type_doc)),
            address: advertised(address).to_string(),
            flow,
            request_timeout: options.request_timeout,
            body_memory: options.serving.request_memory.map_or_else(BodyMemory::of_process, BodyMemory::new),
            audit,
            random: Arc::new(SystemRandom),
        });
        add_checks(&stack, &store);
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        if let Some(listener) = listener {
            tasks.spawn(listener.serve(stack.clone(), stopped.clone()));
        }
        let certificates = Arc::new(certificates);
        let followed = trust::Reload::new(
            &options.authn,
            &options.serving,
            &authn.authorities,
            certificates.clone(),
            (front, believed),
        );
        tasks.spawn(followed.run(stopped.clone()));
        tasks.spawn(authn.follow(stopped.clone()));
        tasks.spawn(certificates.clone().run(clock.clone(), stopped.clone()));
        if proxy == ProxyClient::default() {
            tasks.spawn(delegation::identify(aggregator.clone(), certificates.clone(), stopped.clone()));
        } else {
            tasks.spawn(proxy.follow(shown, aggregator.clone(), stopped.clone()));
        }
        tasks.spawn(aggregator.run(stopped.clone()));
        let engine = Arc::downgrade(&stack.engine);
        tasks.spawn(delegation::follow(engine.clone(), trusted.clone(), clock, stopped.clone()));
        tasks.spawn(kaji_server::flowcontrol::follow(stack.flow.clone(), engine, stopped.clone()));
        tasks.spawn(access.follow(stopped.clone()));
        let engine = Arc::downgrade(&stack.engine);
        tasks.spawn(tracking::follow(engine, time, stopped.clone()));
        let mut cluster = Cluster {
            stack,
            pki: Pki::clone(&pki),
            certificates,
            address,
            store,
            stop,
            loops: JoinSet::new(),
            listener: tasks,
            _informers: None,
            token_signer: authn.signing_key(),
            trusted,
        };
        if options.controllers && !(options.selection.is_empty() && options.nodes == Nodes::None) {
            cluster.start_loops(&options, node_ranges, stopped);
        }
        Ok(cluster)
    }

    /// A client inside the process, for a part that calls itself `agent`.
    fn client(&self, agent: &str, identities: Identities) -> Client {
        let service = LocalService::by_agent(self.stack.clone(), identities);
        Client::new(kube::Client::new(service, "default"), agent)
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", advertised(self.address))
    }

    fn start_loops(
        &mut self,
        options: &Options,
        node_ranges: Option<NodeRanges>,
        stop: watch::Receiver<bool>,
    ) {
        let given = node_ranges.is_some() && options.selection.includes(kaji_controllers::NODE_IPAM);
        let shared = |client: Client| kaji_runtime::Shared {
            client,
            clock: options.time(),
            random: Arc::new(SystemRandom),
        };
        let client = self.client("kube-controller-manager", identities::controllers());
        // One set of informers for every loop of the process.
        let informers = Informers::timed(client.clone(), Selected::default(), options.time());
        let ca = &self.pki.ca;
        let authority = kaji_controllers::Authority::new(&ca.certificate, &ca.key);
        // An authority whose key is kept elsewhere serves; it just does not sign.
        let authority = authority.inspect_err(|error| tracing::warn!(error, "requests will not be signed"));
        let config = kaji_controllers::Config {
            root_ca: self.certificates.trust(),
            selection: options.selection.clone(),
            authority: authority.ok().map(Arc::new),
            unused_token_period: options.unused_token_period,
            token_signer: Some(self.token_signer.clone()),
            node_ranges,
        };
        kaji_controllers::spawn(&mut self.loops, &informers, &shared(client), &config, &stop);
        if options.selection.includes(kaji_controllers::POLICY_STATUS) {
            let engine = Arc::downgrade(&self.stack.engine);
            self.loops.spawn(kaji_admission::check_types(engine, stop.clone()));
        }
        if options.selection.scheduler() {
            let client = self.client("kube-scheduler", identities::component("kube-scheduler"));
            self.loops.spawn(kaji_scheduler::run(informers.clone(), shared(client), stop.clone()));
        }
        if let Nodes::Simulated(count) = options.nodes {
            let first = fake::name(1);
            let client = self.client("kubelet", identities::kubelets(&first));
            let fleet = if given { Fleet::numbered(count) } else { Fleet::with_ranges(count) };
            let facing = self.facing(options);
            self.loops.spawn(fake::run(fleet, facing, informers.clone(), shared(client), stop));
        }
        self._informers = Some(informers);
    }

    /// How nodes answer those who ask them. A cluster that listens nowhere has nodes that do not either.
    fn facing(&self, options: &Options) -> Option<Arc<dyn Facing>> {
        if options.serving.local {
            return None;
        }
        let kubelets = Kubelets::new(&self.pki.ca, self.trusted.clone(), Arc::new(SystemClock));
        let kubelets = kubelets.inspect_err(|error| tracing::warn!(%error, "nodes cannot be asked anything"));
        Some(Arc::new(kubelets.ok()?))
    }

    /// Ends everything cleanly: loops, watches, connections, store.
    pub async fn stop(mut self) {
        self.stack.health.stop();
        self.stop.send_replace(true);
        while self.loops.join_next().await.is_some() {}
        self._informers = None;
        self.stack.engine.shutdown().await;
        while self.listener.join_next().await.is_some() {}
        // Nobody asks any more: what was recorded is written before the end.
        if let Some(audit) = &self.stack.audit {
            audit.shutdown().await;
        }
        self.store.close().await;
    }
}

async fn listen(
    options: &Options,
    certificates: &Certificates,
    authn: &Authn,
) -> Result<(Listener, TlsConfigHandle), StartError> {
    let front = trust::front(&options.serving, certificates, &authn.authorities)?;
    let bound = Listener::bind(options.listen, front.clone()).await;
    let listener = bound.map_err(|source| StartError::Listen { address: options.listen, source })?;
    let serving = &options.serving;
    let listener = listener
        .with_streams(serving.streams.unwrap_or(kaji_server::MAX_STREAMS))
        .with_connections(serving.connections.unwrap_or(kaji_server::MAX_CONNECTIONS));
    Ok((listener, front))
}

/// Nobody may do everything without saying who they are. Source: upstream's `ApplyAuthorization`.
fn sensible(options: &Options) -> AuthnOptions {
    let mut authn = options.authn.clone();
    if options.authz.authorization_mode.iter().any(|mode| mode == "AlwaysAllow") {
        tracing::warn!(
            "anonymous requests are not let in with the authorizer AlwaysAllow; use a different authorizer"
        );
        authn.closed = true;
    }
    authn
}

/// Metrics tell servers apart by their names.
fn server_name(options: &Options) -> String {
    format!("apiserver-{}", options.listen)
}

/// The time as a store counts it.
struct Epoch(Arc<dyn Clock>);

impl kaji_store::Clock for Epoch {
    fn now_millis(&self) -> u64 {
        u64::try_from(self.0.now().as_millisecond()).unwrap_or(0)
    }
}

async fn open_store(options: &Options) -> Result<Arc<dyn Store>, StartError> {
    Ok(match options.store {
        StoreKind::Memory => {
            let clock = Arc::new(Epoch(options.time()));
            Arc::new(MemoryStore::with_options(MemoryOptions { clock, ..MemoryOptions::default() })?)
        }
        StoreKind::Disk => {
            let dir = options.data_dir.clone();
            let disk = DiskOptions { erase_replaced: options.encryption.is_some(), ..DiskOptions::default() };
            let opened = tokio::task::spawn_blocking(move || {
                kaji_files::parent_of_private(&dir)
                    .map_err(|e| StoreError::Unavailable(format!("{}: {e}", dir.display())))?;
                DiskStore::open(dir.join(STORE), disk)
            });
            let opened = opened.await;
            Arc::new(opened.map_err(|e| StoreError::Unavailable(e.to_string()))??)
        }
    })
}

async fn open_engine(
    store: Arc<dyn Store>,
    options: &Options,
    access: &Access,
    plugins: &kaji_admission::Deps,
    tokens: Arc<LateTokens>,
) -> Result<Arc<Engine>, StartError> {
    let admission = kaji_admission::load(&options.admission, plugins)?;
    let engine_options = EngineOptions { admission, clock: options.time(), ..EngineOptions::default() };
    let engine = Engine::open(store, engine_options).await?;
    let mut deps = Deps::new(options.time(), Arc::new(SystemRandom));
    deps.service_cidrs = options.service_cidrs.clone();
    deps.authorizer = access.authorizer.clone();
    deps.grants = access.rbac.clone();
    deps.validate_crd = Some(kaji_apiextensions::validator());
    deps.tokens = Some(tokens);
    let api: Arc<dyn Api> = engine.clone();
    deps.api.set(Arc::downgrade(&api));
    engine.register(kaji_builtins::all(&deps)).await?;
    access.set(&engine);
    Ok(engine)
}

fn add_checks(stack: &Stack, store: &Arc<dyn Store>) {
    let engine = Arc::downgrade(&stack.engine);
    let store = Arc::downgrade(store);
    let writable = store.clone();
    let check: SlowCheck = Arc::new(move || Box::pin(can_write(writable.upgrade())));
    stack.health.add_readiness("etcd-readiness", check);
    stack.health.add(
        "etcd",
        Arc::new(move || match store.upgrade() {
            Some(_) => Ok(()),
            None => Err("the store is closed".into()),
        }),
    );
    stack.health.add(
        "informer-sync",
        Arc::new(move || match engine.upgrade() {
            Some(_) => Ok(()),
            None => Err("the engine has ended".into()),
        }),
    );
}

/// Whether the store can write. While its last write failed this writes a lease and removes it, which changes no revision:
/// a server without traffic would not become ready again otherwise.
async fn can_write(store: Option<Arc<dyn Store>>) -> Result<(), String> {
    const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
    let store = store.ok_or("the store is closed")?;
    let Some(failure) = store.write_failure() else { return Ok(()) };
    let probe = async { store.revoke(store.grant_lease(Duration::from_secs(60)).await?).await };
    match tokio::time::timeout(PROBE_TIMEOUT, probe).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err(failure.to_string()),
    }
}

/// The second address of a range: the first host, which is the `kubernetes` service's.
fn first_address(cidrs: &[String]) -> Result<IpAddr, StartError> {
    let first = cidrs.first().map(String::as_str).unwrap_or_default();
    let bad = || StartError::ServiceRange(first.to_owned());
    let base: IpAddr = first.split('/').next().unwrap_or_default().parse().map_err(|_| bad())?;
    Ok(match base {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) + 1).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) + 1).into()),
    })
}

/// Names the serving certificate covers: kubeadm's, the listen address, and those asked for.
fn serving_names(options: &Options, service_ip: IpAddr) -> Vec<String> {
    let mut names: Vec<String> = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "127.0.0.1",
        "::1",
    ]
    .map(String::from)
    .to_vec();
    names.push(service_ip.to_string());
    if !options.listen.ip().is_unspecified() {
        names.push(options.listen.ip().to_string());
    }
    names.extend(options.names.iter().cloned());
    names.dedup();
    names
}

/// An address that clients can reach: loopback stands in for "all addresses".
fn advertised(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()))
    } else {
        address
    }
}

/// The address that the `kubernetes` endpoints name. The API allows no loopback address there, so a server on loopback
/// names the machine's own (found by routing a datagram that is never sent) or, on a machine without any, one reserved
/// for documentation: simulated pods do not connect.
fn endpoint(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_loopback() && !address.ip().is_unspecified() {
        return address;
    }
    let routed = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| {
            socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| socket.local_addr())
        })
        .map(|local| local.ip())
        .ok()
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified());
    SocketAddr::new(routed.unwrap_or(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))), address.port())
}
