//! Several real nodes on one machine, for what spans nodes: each is an agent in a network namespace of its own, connected to the
//! others and the API server by a bridge of this machine.
//!
//! Invariants: each node has its own directory, and so its own containers, images, volumes and addresses. An agent ends when this
//! process does, since its standard input is a pipe from here. When the fleet is stopped, nothing is left in the kernel; images and
//! the nodes' credentials stay for the next start.

use kaji_containers::{NetworkSetup, PodNetwork, PodSandboxMetadata, RuntimeError};
use kaji_kubelet::{
    public_key_pins,
    token::{self, ClusterAt, Create, TokenCommand, TokenError},
    volumes::{KernelMounter, Mounter},
};
use kaji_meta::random::Random;
use kaji_netfilter::namespace;
use kaji_network::{BridgeNetwork, NetworkConfig, NetworkError};
use kaji_runtime::{Client, Informers, Selected};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// The segment of the nodes: of the range that RFC 2544 reserves for tests of devices.
const SEGMENT: &str = "198.18.77.0/24";
/// The address of this machine there, where nodes and their pods reach the API server.
pub const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 77, 1));
/// Of the bridge and its tables.
const NAME: &str = "kaji-nodes";
/// Marks routes of the bridge; agents have a namespace and 75 of their own.
const ROUTE_PROTOCOL: u8 = 74;
/// How often it is looked whether a process has ended.
const POLL: Duration = Duration::from_millis(100);
/// How long an agent may take to end.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Before an agent that ended is started again, at first and at most.
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why the nodes cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The bridge.
    #[error("the network of the nodes: {0}")]
    Network(#[from] NetworkError),
    /// A node's place in it.
    #[error("the network namespace of a node: {0}")]
    Namespace(#[from] RuntimeError),
    /// The token that they join with.
    #[error("a token for the nodes: {0}")]
    Token(#[from] TokenError),
    /// The cluster's authorities.
    #[error("the cluster's certificate authorities: {0}")]
    Authorities(String),
    /// This program.
    #[error("the program's own file: {0}")]
    Program(io::Error),
}

/// Which nodes.
pub struct FleetConfig {
    /// How many.
    pub count: u16,
    /// The cluster's directory; each node has one below it.
    pub data_dir: PathBuf,
    /// Of the API server.
    pub port: u16,
    /// The cluster's certificate authorities, DER.
    pub authorities: Vec<Vec<u8>>,
    /// May create bootstrap tokens.
    pub client: Client,
    /// Flags of the agents beside those with which they join.
    pub agent_flags: Vec<String>,
}

/// Nodes that run.
pub struct NodeFleet {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    network: BridgeNetwork,
    directory: PathBuf,
    nodes: Vec<Node>,
}

/// A node of the fleet.
#[derive(Clone)]
struct Node {
    name: String,
    program: PathBuf,
    /// Its data directory.
    directory: PathBuf,
    /// Where its network namespace is kept by a mount.
    namespace: PathBuf,
    /// Flags and environment with which it joins.
    join: Vec<String>,
    token: String,
}

impl NodeFleet {
    /// Makes the network and starts the agents, without waiting until they have joined.
    ///
    /// # Errors
    /// When the network cannot be made, or the cluster refuses a token.
    pub async fn start(config: FleetConfig, random: &dyn Random) -> Result<NodeFleet, FleetError> {
        let program = std::env::current_exe().map_err(FleetError::Program)?;
        let directory = config.data_dir.join("nodes");
        let network = BridgeNetwork::start(NetworkConfig {
            bridge: NAME.into(),
            table: NAME.into(),
            route_protocol: ROUTE_PROTOCOL,
            attaches_nodes: true,
            ..NetworkConfig::new(NAME, directory.join("segment"))
        });
        let network = network.await?;
        network.update_pod_cidrs(vec![SEGMENT.to_owned()]).await?;
        let token = bootstrap_token(&config, random).await?;
        let mut join = vec!["--join".to_owned(), SocketAddr::new(GATEWAY, config.port).to_string()];
        for authority in &config.authorities {
            let hash = public_key_pins::hash(authority).map_err(FleetError::Authorities)?;
            join.extend(["--discovery-token-ca-cert-hash".to_owned(), hash]);
        }
        join.extend(config.agent_flags.iter().cloned());
        let (stop, stopped) = watch::channel(false);
        let mut fleet = NodeFleet { stop, tasks: JoinSet::new(), network, directory, nodes: vec![] };
        for number in 1..=config.count {
            let name = format!("node-{number}");
            let directory = fleet.directory.join(&name);
            let namespace = fleet.directory.join(format!("{name}.netns"));
            let node = Node {
                name,
                program: program.clone(),
                directory,
                namespace,
                join: join.clone(),
                token: token.clone(),
            };
            node.connect(&fleet.network).await?;
            fleet.tasks.spawn(node.clone().run(stopped.clone()));
            fleet.nodes.push(node);
        }
        // The API server calls webhooks and extension servers in pods.
        let informers = Informers::selecting(config.client, Selected::default());
        fleet.tasks.spawn(kaji_proxy::follow_nodes(fleet.network.clone(), informers, stopped));
        Ok(fleet)
    }

    /// Ends the agents, removes their pods and everything else that they have in the kernel, and the network.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        for node in &self.nodes {
            node.remove(&self.network).await;
        }
        if let Err(error) = self.network.remove_all().await {
            tracing::error!(%error, "the network of the nodes could not be removed");
        }
        if let Err(error) = std::fs::remove_dir_all(self.directory.join("segment")) {
            tracing::debug!(%error, "the records of the nodes' addresses could not be removed");
        }
    }
}

/// A token with which the nodes join; it is good for as long as kubeadm's.
async fn bootstrap_token(config: &FleetConfig, random: &dyn Random) -> Result<String, FleetError> {
    let create = TokenCommand::Create(Create {
        token: None,
        ttl: "24h".into(),
        usages: vec!["signing".into(), "authentication".into()],
        groups: vec![kaji_kubelet::cluster_info::NODE_TOKENS.into()],
        description: "Nodes of this machine.".into(),
        print_join_command: false,
    });
    let at = ClusterAt { server: http::Uri::default(), authorities: vec![] };
    let now = jiff::Timestamp::now();
    let token = token::run(&create, &config.client, &at, now, random).await?;
    Ok(token.trim().to_owned())
}

impl Node {
    fn setup(&self) -> NetworkSetup {
        NetworkSetup {
            sandbox_id: self.name.clone(),
            metadata: PodSandboxMetadata { name: self.name.clone(), ..PodSandboxMetadata::default() },
            namespace: self.namespace.clone(),
            port_mappings: vec![],
            annotations: Default::default(),
        }
    }

    /// Makes its network namespace, or finds that of a server that was killed, and connects it.
    async fn connect(&self, network: &BridgeNetwork) -> Result<(), FleetError> {
        if !KernelMounter.is_mount_point(&self.namespace) {
            kaji_oci::create_network_namespace(self.namespace.clone()).await?;
        }
        network.set_up(self.setup()).await?;
        Ok(())
    }

    /// Runs its agent, again whenever it ends, until `stop` turns true.
    async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut pause = RESTART.0;
        loop {
            let began = tokio::time::Instant::now();
            match self.start_agent() {
                Ok(mut agent) => {
                    let ended = tokio::select! {
                        ended = ended(&mut agent) => Some(ended),
                        _ = stop.wait_for(|stop| *stop) => None,
                    };
                    let Some(ended) = ended else { return end(&mut agent, &self.name).await };
                    let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                    tracing::error!(node = self.name, status, "a node's agent has ended");
                }
                Err(error) => tracing::error!(node = self.name, %error, "a node's agent cannot be started"),
            }
            // One that ran for long enough has not failed at its start.
            pause = if began.elapsed() > RESTART.1 { RESTART.0 } else { (pause * 2).min(RESTART.1) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    fn start_agent(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .args(["agent", "--until-stdin-closes", "--node-name", &self.name])
            .arg("--data-dir")
            .arg(&self.directory)
            .args(&self.join)
            .env("KAJI_TOKEN", &self.token)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        self.spawn(&mut command)
    }

    /// Starts a process in the node's network namespace.
    fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        namespace::inside(&self.namespace, || command.spawn())
    }

    async fn reset(&self) -> io::Result<ExitStatus> {
        let mut command = Command::new(&self.program);
        command.args(["node", "reset", "--keep-credentials", "--data-dir"]).arg(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        ended(&mut self.spawn(&mut command)?).await
    }

    /// Removes what it has in the kernel. What cannot be removed is logged, and `kaji node reset` removes it later.
    async fn remove(&self, network: &BridgeNetwork) {
        match self.reset().await {
            Ok(status) if status.success() => {}
            Ok(status) => {
                tracing::error!(node = self.name, %status, "the node could not be removed completely")
            }
            Err(error) => {
                tracing::error!(node = self.name, %error, "the node could not be removed completely")
            }
        }
        if let Err(error) = network.tear_down(self.setup()).await {
            tracing::error!(node = self.name, %error, "the node's interface could not be removed");
        }
        let unmounted = KernelMounter.unmount(&self.namespace).and_then(|()| remove_file(&self.namespace));
        if let Err(error) = unmounted {
            tracing::error!(node = self.name, %error, "the node's network namespace could not be removed");
        }
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Waits until a process has ended.
async fn ended(process: &mut Child) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(status);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Lets an agent end, and kills it if it does not.
async fn end(agent: &mut Child, name: &str) {
    drop(agent.stdin.take());
    match tokio::time::timeout(AGENT_STOP_TIMEOUT, ended(agent)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::error!(node = name, %error, "a node's agent could not be stopped"),
        Err(_) => {
            tracing::error!(node = name, "a node's agent did not exit in time and is killed");
            if let Err(error) = agent.kill().and_then(|()| agent.wait()) {
                tracing::error!(node = name, %error, "a node's agent could not be stopped");
            }
        }
    }
}
