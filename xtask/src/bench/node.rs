//! The phase `node`: pods that run on a real node, seen through the API, and what they cost. A second server, over another
//! container runtime, is measured in the same way, and becomes what the figures are compared with.
//!
//! Invariants: processor time and memory are those of a cgroup that holds the server, the runtime and all containers, processes that
//! have ended included; this program is not in it. Each server starts without pods and is ended before the next begins.

use super::{
    Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    load::{self, Each, Until},
    node_services::{self, Asked},
    objects,
    report::{Counts, Report},
    start,
    stats::percentile,
    stream::Stream,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

/// How long the node may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// How long pods may take to run, or to be gone.
const PODS: Duration = Duration::from_secs(180);
/// Pods before the first that counts.
const WARM_UP: usize = 3;
/// What follows a burst of pods is over after this long.
const SETTLE: Duration = Duration::from_secs(10);
/// For how long a node at rest is looked at.
const REST: Duration = Duration::from_secs(20);
const CLIENTS: usize = 16;
const REQUESTS: usize = 500;
/// How long a request to a service may take.
const REQUEST: Duration = Duration::from_secs(5);
const LABEL: &str = "bench.kaji.dev/service";

/// What is measured.
pub struct Settings<'a> {
    /// Starts the server with its node.
    pub command: &'a str,
    /// Starts what it is compared with.
    pub beside: Option<&'a str>,
    /// The cgroup in which either runs.
    pub cgroup: Option<&'a Path>,
    /// An image on the node with sh and httpd.
    pub image: &'a str,
    /// Written by either server.
    pub kubeconfig: &'a Path,
}

/// Measures one server or two.
pub async fn run(report: &mut Report, settings: &Settings<'_>) -> Result<(), Error> {
    let cgroup = settings.cgroup.ok_or_else(|| Error::Answer("the phase node needs --node-cgroup".into()))?;
    let cgroup = Cgroup(cgroup.to_path_buf());
    let counts = report.counts;
    for (id, value) in one(settings.command, settings, &cgroup, counts).await? {
        report.set(id, value);
    }
    if let Some(command) = settings.beside {
        // The services of either are this server's.
        let counts = Counts { services: 0, ..counts };
        for (id, value) in one(command, settings, &cgroup, counts).await? {
            report.set_beside(id, value);
        }
    }
    Ok(())
}

pub(super) type Figures = Vec<(&'static str, f64)>;

async fn one(
    command: &str,
    settings: &Settings<'_>,
    cgroup: &Cgroup,
    counts: Counts,
) -> Result<Figures, Error> {
    let started = start::start(command, settings.kubeconfig).await?;
    let mut node = Node::new(&started.target, settings.image).await?;
    let mut figures = vec![];
    let at_once = counts.at_once;
    node.lives(cgroup, counts.lives, &mut figures).await?;
    let empty = cgroup.memory();
    node.burst(cgroup, at_once, &mut figures).await?;
    sleep(SETTLE).await;
    let (began, before) = (Instant::now(), cgroup.cpu()?);
    sleep(REST).await;
    let used = cgroup.cpu()?.saturating_sub(before).as_secs_f64();
    figures.push(("node_idle_cpu", used / began.elapsed().as_secs_f64()));
    let memory = cgroup.memory().saturating_sub(empty) as f64;
    figures.push(("node_pod_memory", memory / at_once as f64));
    node.service(&mut figures).await?;
    let asked = Asked { namespace: &node.namespace, pod: "server", label: LABEL };
    node_services::execs(&started.target, &asked, &mut figures).await?;
    node_services::dns(&mut node.control, &asked, &mut figures).await?;
    if counts.services > 0 {
        node_services::services(&started.target, &asked, counts.services, &mut figures).await?;
    }
    node.clear().await?;
    Ok(figures)
}

/// A cgroup, of either version.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Processor time of everything that is or was in it.
    fn cpu(&self) -> Result<Duration, Error> {
        let (old, new) = (self.0.join("cpuacct.usage"), self.0.join("cpu.stat"));
        let nanos = match fs::read_to_string(&old) {
            Ok(text) => text.trim().parse().ok(),
            Err(_) => {
                let text = fs::read_to_string(&new).map_err(|e| Error::file(&new, e))?;
                usage_nanos(&text)
            }
        };
        let nanos =
            nanos.ok_or_else(|| Error::Answer(format!("{} shows no processor time", self.0.display())))?;
        Ok(Duration::from_nanos(nanos))
    }

    /// Bytes of memory of all its processes, shared pages divided among those that share them.
    fn memory(&self) -> u64 {
        let mut directories = vec![self.0.clone()];
        let mut processes: HashSet<u32> = HashSet::new();
        while let Some(directory) = directories.pop() {
            let listed = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            processes.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
            let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
            directories.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        }
        processes.remove(&std::process::id());
        let of = |pid: &u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        };
        processes.iter().filter_map(of).sum::<u64>() * 1024
    }
}

/// `usage_usec` of a `cpu.stat`, in nanoseconds.
fn usage_nanos(text: &str) -> Option<u64> {
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.trim().parse::<u64>().ok()?.checked_mul(1000)
}

/// What a watcher of pods sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seen {
    Running,
    Gone,
}

/// A cluster with one node, and the namespace of the pods.
struct Node {
    target: Arc<Target>,
    control: Client,
    stream: Stream,
    partial: Vec<u8>,
    namespace: String,
    image: String,
    seen: HashMap<(String, Seen), Instant>,
}

impl Node {
    async fn new(target: &Arc<Target>, image: &str) -> Result<Node, Error> {
        let mut control = Client::new(target);
        let deadline = Instant::now() + READY;
        while !ready(&control.json(&Call::get("/api/v1/nodes")).await?) {
            if Instant::now() >= deadline {
                return Err(Error::Timeout("the node is not ready".into(), READY));
            }
            sleep(Duration::from_millis(100)).await;
        }
        let namespace = "bench-node".to_owned();
        fixture::namespace(&mut control, &namespace).await?;
        let path = collection(&namespace, "pods");
        let revision = fixture::revision(&mut control, &path).await?;
        let stream = Stream::open(target, &path, &revision).await?;
        let (target, image) = (target.clone(), image.to_owned());
        Ok(Node { target, control, stream, partial: vec![], namespace, image, seen: HashMap::new() })
    }

    /// Pods that live one after the other.
    async fn lives(&mut self, cgroup: &Cgroup, lives: usize, figures: &mut Figures) -> Result<(), Error> {
        for index in 0..WARM_UP {
            self.life(&format!("warm-{index}")).await?;
        }
        let before = cgroup.cpu()?;
        let (mut runs, mut ends) = (vec![], vec![]);
        for index in 0..lives {
            let (run, end) = self.life(&format!("life-{index}")).await?;
            runs.push(run);
            ends.push(end);
        }
        // What is removed after the pod is gone from the API.
        sleep(Duration::from_secs(1)).await;
        let used = cgroup.cpu()?.saturating_sub(before).as_secs_f64();
        figures.push(("node_life_cpu", used / lives as f64));
        runs.sort_unstable();
        ends.sort_unstable();
        for (id, samples, percent) in
            [("node_run_p50", &runs, 50.0), ("node_run_p99", &runs, 99.0), ("node_gone_p50", &ends, 50.0)]
        {
            figures.push((id, percentile(samples, percent).unwrap_or_default().as_secs_f64()));
        }
        Ok(())
    }

    /// How long one pod took to run, and to go.
    async fn life(&mut self, name: &str) -> Result<(Duration, Duration), Error> {
        let path = collection(&self.namespace, "pods");
        let body = objects::sleeping_pod(&self.image, LABEL);
        let began = Instant::now();
        self.control.call(&body.create(&path, name)).await?;
        let running = self.wait(name, Seen::Running).await? - began;
        let began = Instant::now();
        self.control.call(&Call::delete_gracefully(format!("{path}/{name}"))).await?;
        Ok((running, self.wait(name, Seen::Gone).await? - began))
    }

    /// Pods that are created at once. They stay.
    async fn burst(&mut self, cgroup: &Cgroup, count: usize, figures: &mut Figures) -> Result<(), Error> {
        let path = collection(&self.namespace, "pods");
        let body = objects::sleeping_pod(&self.image, LABEL);
        let before = cgroup.cpu()?;
        let create = Each(move |index: usize| body.create(&path, &format!("burst-{index}")));
        let began = Instant::now();
        let created = load::run(&self.target, CLIENTS, Until::Count(count), PODS, create).await?;
        let mut last = began;
        for index in 0..count {
            last = last.max(self.wait(&format!("burst-{index}"), Seen::Running).await?);
        }
        figures.push(("node_at_once", (last - created.began).as_secs_f64()));
        let used = cgroup.cpu()?.saturating_sub(before).as_secs_f64();
        figures.push(("node_at_once_cpu", used / count as f64));
        Ok(())
    }

    /// Requests to a service, each on a connection of its own.
    async fn service(&mut self, figures: &mut Figures) -> Result<(), Error> {
        let pods = collection(&self.namespace, "pods");
        let server = objects::answering_pod(&self.image, LABEL);
        self.control.call(&server.create(&pods, "server")).await?;
        self.wait("server", Seen::Running).await?;
        let services = collection(&self.namespace, "services");
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
            "spec": {"selector": {LABEL: "yes"}, "ports": [{"port": 80}]},
        });
        let made = self.control.json(&Call::post(services, service.to_string())).await?;
        let address = made["spec"]["clusterIP"].as_str().unwrap_or_default();
        let address: SocketAddr = format!("{address}:80")
            .parse()
            .map_err(|_| Error::Answer(format!("a service has the cluster IP {address:?}")))?;
        let deadline = Instant::now() + PODS;
        while request(address).await.is_err() {
            if Instant::now() >= deadline {
                return Err(Error::Timeout(format!("the service at {address} does not answer"), PODS));
            }
            sleep(Duration::from_millis(50)).await;
        }
        let mut samples = vec![];
        for _ in 0..REQUESTS {
            samples.push(request(address).await?);
        }
        samples.sort_unstable();
        for (id, percent) in [("node_service_p50", 50.0), ("node_service_p99", 99.0)] {
            figures.push((id, percentile(&samples, percent).unwrap_or_default().as_secs_f64()));
        }
        Ok(())
    }

    /// Removes all pods, and waits until the node has stopped them.
    async fn clear(&mut self) -> Result<(), Error> {
        let path = collection(&self.namespace, "pods");
        self.control.call(&Call::delete_gracefully(&path)).await?;
        let deadline = Instant::now() + PODS;
        while !self.control.json(&Call::get(&path)).await?["items"].as_array().is_none_or(Vec::is_empty) {
            if Instant::now() >= deadline {
                return Err(Error::Timeout("pods are not gone".into(), PODS));
            }
            sleep(Duration::from_millis(200)).await;
        }
        // Sandboxes are removed after the objects.
        sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    /// When a pod was seen so first; waits until then.
    async fn wait(&mut self, name: &str, wanted: Seen) -> Result<Instant, Error> {
        let key = (name.to_owned(), wanted);
        let deadline = tokio::time::Instant::now() + PODS;
        loop {
            if let Some(at) = self.seen.get(&key) {
                return Ok(*at);
            }
            let piece = tokio::time::timeout_at(deadline, self.stream.next())
                .await
                .map_err(|_| Error::Timeout(format!("the pod {name} is not {wanted:?}"), PODS))??;
            let now = Instant::now();
            self.partial.extend_from_slice(&piece);
            while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                if let Some(found) = event(&line)? {
                    self.seen.entry(found).or_insert(now);
                }
            }
        }
    }
}

/// What an event says of a pod.
fn event(line: &[u8]) -> Result<Option<(String, Seen)>, Error> {
    #[derive(Deserialize)]
    struct Event {
        #[serde(rename = "type")]
        kind: String,
        object: Value,
    }
    let event: Event = serde_json::from_slice(line).map_err(|e| Error::Json("a watch event".into(), e))?;
    let name = event.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(match (event.kind.as_str(), event.object["status"]["phase"].as_str()) {
        ("DELETED", _) => Some((name, Seen::Gone)),
        (_, Some("Running")) => Some((name, Seen::Running)),
        _ => None,
    })
}

fn ready(nodes: &Value) -> bool {
    let conditions = nodes["items"][0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// How long it takes to connect, ask and read the answer.
pub(super) async fn request(address: SocketAddr) -> Result<Duration, Error> {
    let failed = |e| Error::Connect(address.to_string(), e);
    let began = Instant::now();
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = vec![];
        stream.read_to_end(&mut answer).await?;
        if answer.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    };
    match timeout(REQUEST, exchange).await {
        Ok(outcome) => outcome.map(|()| began.elapsed()).map_err(failed),
        Err(_) => Err(Error::Timeout(format!("a request to {address}"), REQUEST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_say_when_pods_run_and_when_they_are_gone() {
        let of = |line: &str| event(line.as_bytes()).unwrap();
        assert_eq!(
            of(r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"status":{"phase":"Pending"}}}"#),
            None
        );
        assert_eq!(
            of(r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"},"status":{"phase":"Running"}}}"#),
            Some(("a".to_owned(), Seen::Running))
        );
        assert_eq!(
            of(r#"{"type":"DELETED","object":{"metadata":{"name":"a"},"status":{"phase":"Running"}}}"#),
            Some(("a".to_owned(), Seen::Gone))
        );
        assert!(event(b"{").is_err());
    }

    #[test]
    fn processor_time_is_read_from_either_version() {
        assert_eq!(usage_nanos("usage_usec 1500\nuser_usec 1000\n"), Some(1_500_000));
        assert_eq!(usage_nanos("nr_periods 0\n"), None);
        let dir = std::env::temp_dir().join(format!("kaji-bench-cgroup-{}", std::process::id()));
        fs::create_dir_all(dir.join("child")).unwrap();
        assert!(Cgroup(dir.clone()).cpu().is_err());
        fs::write(dir.join("cpuacct.usage"), "42\n").unwrap();
        fs::write(dir.join("child/cgroup.procs"), format!("{}\n1\n", std::process::id())).unwrap();
        let cgroup = Cgroup(dir.clone());
        assert_eq!(cgroup.cpu().unwrap(), Duration::from_nanos(42));
        // This process is left out.
        fs::write(dir.join("child/cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        assert_eq!(cgroup.memory(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_node_is_ready_when_it_says_so() {
        let of = |status: &str| json!({"items": [{"status": {"conditions": [{"type": "Ready", "status": status}]}}]});
        assert!(ready(&of("True")) && !ready(&of("False")) && !ready(&json!({"items": []})));
    }
}
