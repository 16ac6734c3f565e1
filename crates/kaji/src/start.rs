//! The stages of a start. Each consumes the stage before it and returns the next, so that no other order compiles:
//!
//! 1. [`Configured`]: options are valid; audit and encryption at rest are configured; nothing is opened.
//! 2. [`StoreOpened`]: this process has the data directory; the cluster's certificates are read or created meanwhile.
//! 3. [`EngineOpened`]: an engine without resources, with its authorizers and admission plugins.
//! 4. [`ResourcesRegistered`]: built-in and custom resources are served from complete caches; requests are authenticated.
//! 5. [`ListenerBound`]: the server's address is final; connections wait.
//! 6. [`Bootstrapped`]: the objects that every cluster has are there.
//! 7. [`Cluster`]: requests are served, background tasks and control loops run.
//!
//! Invariants: nothing is set in a stage once it is made; a start that fails after the store is opened closes it.

mod control_loops;
mod several_servers;

pub(crate) use control_loops::{ControlLoopConfig, ControlLoops, LoopMetrics};

use crate::{
    cluster::{Cluster, StartError},
    environment::Environment,
};
use futures_util::future::OptionFuture;
use kaji_access::{Authn, Authz, audit, front_proxy, kubelet_client, tls, without_anonymous_administrators};
use kaji_admission::Deps as PluginDeps;
use kaji_aggregator::Aggregator;
use kaji_auth::authn::{ClusterAuthenticationInfo, SigningKey};
use kaji_builtins::{ApiHandle, Deps, SharedPorts};
use kaji_controllers::NodeRanges;
use kaji_controlplane::{
    Kubelets, bootstrap, history, kept_objects::KeptObjects, server_identity,
    service_endpoints::ServerEndpoints, shared_ports::Allocation, traces,
};
use kaji_decisions::Decisions;
use kaji_engine::{Engine, EngineOptions};
use kaji_history::History;
use kaji_kubelet::{hostname::node_name, simulated::ResourcePages};
use kaji_meta::time::Clock;
use kaji_node::network;
use kaji_options::{
    Options, ProxyClient, StoreKind,
    addresses::{client_address, endpoint_address, external_address, kubernetes_service_ip, serving_names},
};
use kaji_outbound::ClientCache;
use kaji_refusals::{Limits, Refusals};
use kaji_resource::Api;
use kaji_server::{
    Audit, Authentication, BodyMemory, Certificates, Connector, Discovery, FlowControl, Health,
    Impersonation, Listener, Metrics, OpenApi, Shutdown, Stack, TlsConfigHandle, ZPages,
    cluster_authentication_trust, legacy_token_tracking,
    pki::{Pki, PkiError},
};
use kaji_storage::{STORE, backend, checks, encryption::Encryption, snapshots};
use kaji_store::{Store, StoreError, blocking};
use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle, JoinSet},
};

/// What every stage has: the options, what follows from them alone, and the audit backends.
struct Settings {
    options: Box<Options>,
    /// The identity of this server, that of its lease; metrics show its hash.
    server_name: String,
    service_ip: IpAddr,
    node_ranges: Option<NodeRanges>,
    /// The machine's clock: certificates, deadlines of requests, flow control.
    clock: Arc<dyn Clock>,
    /// The clock of objects and control loops.
    object_clock: Arc<dyn Clock>,
    environment: Environment,
    audit: Option<Arc<Audit>>,
}

/// The store, its encryption, and the history of what is in it.
struct Storage {
    encryption: Encryption,
    history: Option<Arc<History>>,
    /// Holds encrypted values.
    raw_store: Arc<dyn Store>,
    store: Arc<dyn Store>,
}

/// Stage 1: options are valid; audit and encryption at rest are configured; nothing is opened.
pub(crate) struct Configured {
    settings: Settings,
    metrics: Metrics,
    encryption: Encryption,
}

impl Configured {
    pub async fn new(options: Box<Options>, environment: Environment) -> Result<Configured, StartError> {
        let mut metrics = Metrics::default();
        let audit = audit::start(&options.audit, &mut metrics).await?;
        let server_name = server_identity::name(&node_name(), options.listen.port());
        let (file, keys) = (options.encryption.as_ref(), backend::stored_keys(&options)?);
        let encryption = Encryption::new(file, keys, &server_name, &mut metrics).await?;
        let settings = Settings {
            server_name,
            service_ip: kubernetes_service_ip(&options.service_cidrs)?,
            node_ranges: options
                .node_ranges
                .ranges(&options.service_cidrs)
                .map_err(StartError::NodeRanges)?,
            clock: environment.clock.clone(),
            object_clock: environment.object_clock.clone(),
            environment,
            audit,
            options,
        };
        Ok(Configured { settings, metrics, encryption })
    }

    pub async fn open_store(self) -> Result<StoreOpened, StartError> {
        let Configured { settings, mut metrics, encryption } = self;
        let raw_store = match &settings.environment.store {
            Some(store) => store.clone(),
            None => backend::open(&settings.options, &settings.object_clock, &mut metrics).await?,
        };
        let store = backend::around(&settings.options, raw_store.clone(), &encryption);
        let (clock, encrypts) = (&settings.object_clock, encryption.encrypts());
        let history = history::of_options(&settings.options, &store, clock, encrypts);
        let Options { data_dir, serving, .. } = &*settings.options;
        let (serving, dir) = (serving.clone(), data_dir.join("pki"));
        let (names, now) = (serving_names(&settings.options, settings.service_ip), settings.clock.now());
        let (writing, files) = watch::channel(());
        let load = move || {
            let _writing = writing;
            serving.load(&dir, names, now)
        };
        let certificates = tokio::spawn(blocking(load));
        let storage = Storage { encryption, history, raw_store, store };
        Ok(StoreOpened { settings, metrics, storage, certificates, files })
    }
}

/// Stage 2: this process has the data directory; the cluster's certificates are read or created meanwhile.
pub(crate) struct StoreOpened {
    settings: Settings,
    metrics: Metrics,
    storage: Storage,
    certificates: JoinHandle<Result<Result<Certificates, PkiError>, JoinError>>,
    files: watch::Receiver<()>,
}

impl StoreOpened {
    pub fn store(&self) -> Arc<dyn Store> {
        self.storage.store.clone()
    }

    /// Closes when the certificates' files are complete, or are given up.
    pub fn certificate_files(&self) -> watch::Receiver<()> {
        self.files.clone()
    }

    pub async fn open_engine(self) -> Result<EngineOpened, StartError> {
        let Settings { options, server_name, object_clock, .. } = &self.settings;
        let engine_options = EngineOptions {
            clock: object_clock.clone(),
            random: self.settings.environment.random.clone(),
            features: options.features,
            attributions: self.storage.history.as_ref().map(|history| history.attributions()),
            min_request_timeout: options.min_request_timeout,
            garbage_collection: options.loops.garbage_collector,
            ..EngineOptions::default()
        };
        let engine = Engine::open(self.store(), engine_options).await?;
        let authz = Authz::new(&options.authz, server_name, object_clock, Arc::downgrade(&engine)).await?;
        let plugins = PluginDeps::new(
            authz.authorizer.clone(),
            Arc::new(ClientCache::with_services_of(weak_api(&engine))),
            Arc::new(Decisions::new(object_clock.clone(), kaji_decisions::Limits::default())),
        );
        // There are no resources yet, and so no writes that the plugins could miss.
        engine.set_admission(kaji_admission::load(&options.admission, &plugins)?, plugins.metrics.steps());
        Ok(EngineOpened { former: self, engine, authz, plugins })
    }
}

/// Stage 3: an engine without resources, with its authorizers and admission plugins.
pub(crate) struct EngineOpened {
    former: StoreOpened,
    engine: Arc<Engine>,
    authz: Authz,
    plugins: PluginDeps,
}

impl EngineOpened {
    pub async fn register_resources(self) -> Result<ResourcesRegistered, StartError> {
        let EngineOpened { former, engine, authz, plugins } = self;
        let StoreOpened { settings, mut metrics, storage, certificates, .. } = former;
        let Settings { options, server_name, object_clock, .. } = &settings;
        let certificates = certificates
            .await
            .flatten()
            .map_err(|e| StoreError::Unavailable(format!("certificates: {e}")))??;
        let pki = certificates.current();
        let api = weak_api(&engine);
        let authn =
            Authn::new(&without_anonymous_administrators(options), &pki, &api, object_clock, server_name)
                .await?;
        let mut deps = Deps::new(object_clock.clone(), settings.environment.random.clone());
        deps.service_cidrs = options.service_cidrs.clone();
        deps.node_port_range = options.node_ports.clone();
        deps.event_ttl = options.event_ttl;
        deps.features = options.features;
        deps.served = options.served.clone();
        deps.components = options.components_without_lease();
        deps.authorizer = authz.authorizer.clone();
        deps.grants = authz.rbac.clone();
        deps.validate_crd = Some(kaji_apiextensions::validator());
        deps.tokens = Some(authn.tokens.clone());
        deps.api = ApiHandle::new(api);
        let allocation = settings.shared_ports(&storage.store, &deps);
        deps.shared_ports = allocation.clone().map(|shared| shared as Arc<dyn SharedPorts>);
        let usage = kaji_resource_metrics::Collector::new(object_clock.clone());
        let refusals = Arc::new(Refusals::new(object_clock.clone(), Limits::default()));
        let mut computed = kaji_resource_metrics::defs(&usage);
        computed.push(kaji_refusals::def(&refusals, &authz.authorizer));
        computed.extend(
            storage.history.iter().flat_map(|history| kaji_history::defs(history, &authz.authorizer)),
        );
        computed.push(kaji_refusals::decisions::def(&plugins.decisions, &authz.authorizer));
        engine.register([kaji_builtins::all(&deps), computed].concat()).await?;
        let conversions = kaji_apiextensions::Conversions::new(&plugins.callers, metrics.registry());
        kaji_apiextensions::start(engine.clone(), object_clock.clone(), conversions).await?;
        let certificates = Arc::new(certificates);
        Ok(ResourcesRegistered {
            settings,
            metrics,
            storage,
            engine,
            authz,
            plugins,
            certificates,
            pki,
            authn,
            usage,
            refusals,
            allocation,
        })
    }
}

/// Stage 4: built-in and custom resources are served from complete caches; requests are authenticated.
pub(crate) struct ResourcesRegistered {
    settings: Settings,
    metrics: Metrics,
    storage: Storage,
    engine: Arc<Engine>,
    authz: Authz,
    plugins: PluginDeps,
    certificates: Arc<Certificates>,
    pki: Arc<Pki>,
    authn: Authn,
    usage: Arc<kaji_resource_metrics::Collector>,
    refusals: Arc<Refusals>,
    /// The record of node ports that servers share.
    allocation: Option<Arc<Allocation>>,
}

impl ResourcesRegistered {
    pub async fn bind(self) -> Result<ListenerBound, StartError> {
        let Options { serving, listen, shutdown, .. } = &*self.settings.options;
        if serving.local {
            return Ok(ListenerBound { address: *listen, listener: None, former: self });
        }
        let front = tls::front(serving, &self.certificates, &self.authn.authorities)?;
        let listener = Listener::bind(*listen, front.clone())
            .await
            .map_err(|source| StartError::Listen { address: *listen, source })?
            .with_streams(serving.streams.unwrap_or(kaji_server::MAX_STREAMS))
            .with_connections(serving.connections.unwrap_or(kaji_server::MAX_CONNECTIONS))
            .with_goaway(serving.goaway)
            .refusing_at_the_end(shutdown.send_retry_after);
        Ok(ListenerBound { address: listener.address()?, listener: Some((listener, front)), former: self })
    }
}

/// Stage 5: the server's address is final; connections wait.
pub(crate) struct ListenerBound {
    former: ResourcesRegistered,
    address: SocketAddr,
    listener: Option<(Listener, TlsConfigHandle)>,
}

impl ListenerBound {
    pub async fn bootstrap(self) -> Result<Bootstrapped, StartError> {
        let ResourcesRegistered { settings, certificates, authn, engine, .. } = &self.former;
        let authentication = ClusterAuthenticationInfo {
            client_ca: authn.authorities.clients.clone(),
            request_header_ca: authn.authorities.proxies.clone(),
            request_header: authn.chain.proxy.clone().unwrap_or_default(),
        };
        let (options, advertise) = (&settings.options, endpoint_address(&settings.options, self.address));
        let kept = KeptObjects::new(options, settings.service_ip, advertise, settings.has_other_servers());
        let facts = bootstrap::Facts {
            kept: &kept,
            url: &format!("https://{}", client_address(self.address)),
            root_ca: &certificates.trust(),
            authentication: &authentication,
            now: settings.clock.now(),
            features: options.features,
            storage_class: options.runs(kaji_controllers::LOCAL_PATH_PROVISIONER),
            history: self.former.storage.history.is_some(),
        };
        bootstrap::run(engine, &facts).await.map_err(StartError::Bootstrap)?;
        let endpoints = settings.join_servers(&self.former.storage.store, engine, advertise).await?;
        let ListenerBound { former, address, listener } = self;
        Ok(Bootstrapped { former, address, listener, authentication, presence: (kept, endpoints) })
    }
}

/// Stage 6: the objects that every cluster has are there.
pub(crate) struct Bootstrapped {
    former: ResourcesRegistered,
    address: SocketAddr,
    listener: Option<(Listener, TlsConfigHandle)>,
    authentication: ClusterAuthenticationInfo,
    /// The objects that are kept, and this server among several.
    presence: (KeptObjects, Option<ServerEndpoints>),
}

impl Bootstrapped {
    pub async fn serve(self) -> Result<Cluster, StartError> {
        let Bootstrapped { former, address, listener, authentication, presence } = self;
        let ResourcesRegistered {
            settings,
            metrics,
            storage,
            engine,
            authz,
            plugins,
            certificates,
            pki,
            authn,
            usage,
            refusals,
            allocation,
        } = former;
        let identity = front_proxy::load(&settings.options.serving.proxy, &pki)?;
        let (callers, clock) = (plugins.callers.clone(), settings.object_clock.clone());
        let decisions = plugins.decisions.clone();
        let aggregator = Aggregator::new(engine.clone(), callers, identity.clone(), clock, decisions.clone());
        let loop_metrics = LoopMetrics::default();
        let metrics = loop_metrics.add_to(with_parts(metrics, &aggregator, &authz, &authn, &plugins));
        let ((stop, stopped), (leave, left)) = (watch::channel(false), watch::channel(false));
        let nodes = kubelet_client::load(&settings.options.serving.kubelets, certificates.clone())?;
        let connector = Connector::new(nodes, stopped.clone());
        // Without a listener of the server, simulated nodes have none either.
        let pages = settings.options.serving.local.then(|| ResourcePages::new(settings.object_clock.clone()));
        let kubelets = Kubelets::new(&engine, &connector, pages);
        let stack = stack(
            &settings,
            engine,
            (&aggregator, connector),
            &authz,
            &authn,
            metrics,
            (address, &storage, refusals),
        );
        let (listener, front) = listener.unzip();
        let mut background = Background { tasks: JoinSet::new(), stopped: stopped.clone() };
        let drained = background.listen(&settings, listener, front.clone(), &stack).await?;
        background.tasks.spawn(usage.run(kubelets, stopped.clone()));
        let token_signer = authn.signing_key();
        let (sender, authentication) = watch::channel(authentication);
        let Options { authn: flags, serving, .. } = &*settings.options;
        let reload =
            tls::Reload::new(flags, serving, &authn.authorities, certificates.clone(), (front, sender));
        background.follow_files(&settings, reload, authn, authz, &certificates, (identity, &aggregator));
        background.follow_objects(&settings, &stack, aggregator, authentication.clone());
        let Storage { encryption, history, raw_store, store } = storage;
        if let Some(history) = history {
            background.tasks.spawn(history.run(stopped, drained.clone()));
        }
        background.follow_encryption(&settings.options, encryption, raw_store).await;
        let parts = (token_signer, loop_metrics, authentication, decisions);
        let loop_config = settings.into_loop_config(address, &stack, &certificates, parts);
        let control_loops = loop_config.start(&left);
        Ok(Cluster {
            stack,
            pki: Pki::clone(&pki),
            certificates,
            address,
            store,
            leave,
            stop,
            drained,
            presence: several_servers::start(&loop_config, presence, allocation, address, &left),
            loop_config,
            control_loops,
            tasks: background.tasks,
        })
    }
}

impl Settings {
    /// What the control loops start with.
    fn into_loop_config(
        self,
        address: SocketAddr,
        stack: &Arc<Stack>,
        certificates: &Arc<Certificates>,
        (token_signer, loop_metrics, authentication, decisions): (
            Arc<SigningKey>,
            LoopMetrics,
            watch::Receiver<ClusterAuthenticationInfo>,
            Arc<Decisions>,
        ),
    ) -> ControlLoopConfig {
        ControlLoopConfig {
            machine_address: endpoint_address(&self.options, address).ip(),
            options: self.options,
            environment: self.environment,
            stack: stack.clone(),
            certificates: certificates.clone(),
            node_ranges: self.node_ranges,
            token_signer,
            loop_metrics,
            authentication,
            decisions,
        }
    }
}

/// The metrics of what the stages have put together.
fn with_parts(
    metrics: Metrics,
    aggregator: &Aggregator,
    authz: &Authz,
    authn: &Authn,
    plugins: &PluginDeps,
) -> Metrics {
    metrics
        .with(|registry| aggregator.register_metrics(registry))
        .with_authorization_metrics(&authz.decisions)
        .with_reload_metrics(&authn.reloads)
        .with(|registry| plugins.register_metrics(registry))
}

fn stack(
    settings: &Settings,
    engine: Arc<Engine>,
    (aggregator, connector): (&Arc<Aggregator>, Arc<Connector>),
    authz: &Authz,
    authn: &Authn,
    metrics: Metrics,
    (address, storage, refusals): (SocketAddr, &Storage, Arc<Refusals>),
) -> Arc<Stack> {
    let options = &settings.options;
    let flow = FlowControl::new(options.limits, settings.clock.clone());
    let stack = Arc::new(Stack {
        engine,
        issuer: authn.documents(&format!("https://{}", external_address(options, address))),
        authentication: Authentication { chain: authn.chain.clone(), clock: settings.object_clock.clone() },
        impersonation: Impersonation::default(),
        aggregator: aggregator.clone(),
        connector,
        authorizer: authz.authorizer.clone(),
        health: Health::default(),
        shutdown: Shutdown::default(),
        metrics: metrics.with_flow(&flow),
        zpages: ZPages::new("apiserver", options.flag_values.clone(), settings.clock.clone()),
        discovery: Discovery::default(),
        openapi: Arc::new(OpenApi::new(kaji_schema::docs::type_doc)),
        address: client_address(address).to_string(),
        flow,
        request_timeout: options.request_timeout,
        body_memory: options.serving.request_memory.map_or_else(BodyMemory::of_process, BodyMemory::new),
        audit: settings.audit.clone(),
        traces: traces::start(options, address, &settings.clock, &settings.environment.random),
        random: settings.environment.random.clone(),
        refusals,
        snapshots: Some(snapshots::source(storage.raw_store.clone(), &options.store)),
        explanations: Some(kaji_controlplane::explanations(settings.object_clock.clone())),
    });
    checks::add(&stack.health, &storage.store, &options.store);
    stack.health.wait_for_engine(&stack.engine);
    stack.health.begin_grace(options.startup.livez_grace);
    storage.encryption.add_check(&stack.health);
    stack.health.add_start_hooks(settings.has_other_servers());
    stack
}

/// Tasks that run until the server has served its last request.
struct Background {
    tasks: JoinSet<()>,
    stopped: watch::Receiver<bool>,
}

impl Background {
    /// Serves clients, and pods of a node with its own network. What it returns turns true when nothing is in flight that ends by itself.
    async fn listen(
        &mut self,
        settings: &Settings,
        listener: Option<Listener>,
        front: Option<TlsConfigHandle>,
        stack: &Arc<Stack>,
    ) -> Result<watch::Receiver<bool>, StartError> {
        let (drained, is_drained) = watch::channel(false);
        let Some(listener) = listener else { return Ok(is_drained) };
        let mut inside = None;
        if let (Some(network), Some(front)) = (&settings.environment.node_network, front) {
            let address = SocketAddr::new(network::ADDRESS, listener.address()?.port());
            let bound = network.listen(address.port(), front).await;
            let bound = bound.map_err(|source| StartError::Listen { address, source })?;
            inside = Some(bound.serve(stack.clone(), self.stopped.clone()));
        }
        let serving = listener.serve(stack.clone(), self.stopped.clone());
        self.tasks.spawn(async move {
            let (draining, inside) = tokio::join!(serving, OptionFuture::from(inside));
            drained.send_replace(true);
            draining.finish().await;
            if let Some(inside) = inside {
                inside.finish().await;
            }
        });
        Ok(is_drained)
    }

    /// Configuration and certificates that are reloaded or renewed while the server runs.
    fn follow_files(
        &mut self,
        settings: &Settings,
        reload: tls::Reload,
        authn: Authn,
        authz: Authz,
        certificates: &Arc<Certificates>,
        (identity, aggregator): (kaji_aggregator::Identity, &Arc<Aggregator>),
    ) {
        let stopped = || self.stopped.clone();
        self.tasks.spawn(reload.run(stopped()));
        self.tasks.spawn(authn.follow(stopped()));
        self.tasks.spawn(authz.follow(stopped()));
        self.tasks.spawn(certificates.clone().run(settings.clock.clone(), stopped()));
        let proxy = settings.options.serving.proxy.clone();
        if proxy == ProxyClient::default() {
            self.tasks.spawn(cluster_authentication_trust::identify(
                aggregator.clone(),
                certificates.clone(),
                stopped(),
            ));
        } else {
            self.tasks.spawn(front_proxy::reload(proxy, identity, aggregator.clone(), stopped()));
        }
    }

    /// Objects that the server follows or keeps up to date.
    fn follow_objects(
        &mut self,
        settings: &Settings,
        stack: &Stack,
        aggregator: Arc<Aggregator>,
        authentication: watch::Receiver<ClusterAuthenticationInfo>,
    ) {
        let (engine, stopped) = (Arc::downgrade(&stack.engine), || self.stopped.clone());
        self.tasks.spawn(aggregator.run(stopped()));
        let kubelets = settings.options.serving.kubelets.clone();
        self.tasks.spawn(kubelet_client::reload(kubelets, stack.connector.clone(), stopped()));
        self.tasks.spawn(cluster_authentication_trust::follow(
            engine.clone(),
            authentication,
            settings.clock.clone(),
            stopped(),
        ));
        self.tasks.spawn(kaji_server::flowcontrol::follow(stack.flow.clone(), engine.clone(), stopped()));
        self.tasks.spawn(legacy_token_tracking::follow(engine, settings.object_clock.clone(), stopped()));
    }

    /// The encryption configuration, and scrubs after values were rewritten.
    async fn follow_encryption(
        &mut self,
        options: &Options,
        encryption: Encryption,
        raw_store: Arc<dyn Store>,
    ) {
        if options.store == StoreKind::Disk
            && let Some(scrubbing) = encryption.scrubbing(&raw_store, &options.data_dir.join(STORE)).await
        {
            self.tasks.spawn(scrubbing.run(self.stopped.clone()));
        }
        self.tasks.spawn(encryption.follow(raw_store, self.stopped.clone()));
    }
}

fn weak_api(engine: &Arc<Engine>) -> Weak<dyn Api> {
    Arc::<Engine>::downgrade(engine)
}
