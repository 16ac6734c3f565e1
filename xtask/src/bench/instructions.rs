//! The phase `instructions`: machine instructions that the server executes for a request, counted by callgrind. Unlike times,
//! they do not depend on what else the machine does, so that two builds can be compared by one run each.
//!
//! The whole process is counted: TLS, the store, caches, control loops that see the object, and what runs by itself meanwhile.
//!
//! Invariants: counters are set to zero when the server has warmed up, and read when the last answer has arrived;
//! requests of a phase come one after the other from one connection, or (for commits that are shared) from [`CLIENTS`].

use super::{
    Bench, Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    load::{self, Each, Until},
    objects, start,
    stream::{Stream, reaches},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

const CLIENTS: usize = 16;
/// Requests before the counters are set to zero.
const WARM: usize = 40;
/// Watches of the fan-out.
const WATCHERS: usize = 50;
/// Objects that are created for them.
const EVENTS: usize = 40;
const LIMIT: Duration = Duration::from_secs(600);
/// How long no event may arrive.
const QUIET: Duration = Duration::from_secs(60);

/// A server under callgrind.
struct Counted {
    pid: u32,
    /// Holds what callgrind writes.
    dir: PathBuf,
    target: Arc<Target>,
    /// Files that callgrind has written.
    dumps: usize,
}

/// Starts `command` under callgrind and counts.
pub async fn run(bench: &mut Bench, command: &str, kubeconfig: &Path) -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("kaji-bench-callgrind-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|e| Error::file(&dir, e))?;
    let outcome = count(bench, command, kubeconfig, &dir).await;
    // Profiles are large: they are kept on request only.
    if std::env::var_os("KAJI_BENCH_KEEP_PROFILES").is_some() {
        bench.report.notes.push(format!("profiles are in {}", dir.display()));
        return outcome;
    }
    let removed = fs::remove_dir_all(&dir).map_err(|e| Error::file(&dir, e));
    outcome.and(removed)
}

async fn count(bench: &mut Bench, command: &str, kubeconfig: &Path, dir: &Path) -> Result<(), Error> {
    let valgrind = format!(
        "valgrind -q --tool=callgrind --callgrind-out-file={} {command}",
        dir.join("callgrind.out").display()
    );
    let started = start::start(&valgrind, kubeconfig).await?;
    let pid = started.exec.pid();
    let mut counted = Counted { pid, dir: dir.to_path_buf(), target: started.target, dumps: 0 };
    let requests = ((400.0 * bench.report.counts.scale) as usize).max(100);
    let mut control = Client::new(&counted.target).limited(LIMIT);
    let namespace = format!("bench-{}-instructions", bench.run);
    fixture::namespace(&mut control, &namespace).await?;
    let owner = fixture::owner(&mut control, &namespace, &objects::config_map()).await?;
    for (clients, prefix, ids) in [
        (1, "one", ["instructions_config_map", "instructions_pod"]),
        (CLIENTS, "many", ["instructions_config_maps", "instructions_pods"]),
    ] {
        for (plural, template, id) in
            [("configmaps", objects::config_map(), ids[0]), ("pods", objects::big_pod(&owner), ids[1])]
        {
            let path = collection(&namespace, plural);
            let create = move |i: usize| template.create(&path, &format!("{prefix}-{i:05}"));
            let cost = counted.requests(id, clients, requests, create).await?;
            bench.report.set(id, cost);
        }
    }
    // Late, when what a server does after its start is over: a GET is small beside that.
    let get = format!("{}/owner", collection(&namespace, "configmaps"));
    let cost = counted.requests("get", 1, requests, move |_| Call::get(get.clone())).await?;
    bench.report.set("instructions_get", cost);
    let cost = counted.events(&mut control, &namespace).await?;
    bench.report.set("instructions_event", cost);
    Ok(())
}

impl Counted {
    /// Instructions of a request: those of a run of `count` more requests than another run has, so that connecting and what
    /// comes with it cancels out.
    async fn requests(
        &mut self,
        name: &str,
        clients: usize,
        count: usize,
        call: impl Fn(usize) -> Call + Clone + Send + Sync + 'static,
    ) -> Result<f64, Error> {
        let mut first = 0_usize;
        let mut costs = [0; 3];
        for (cost, count) in costs.iter_mut().zip([WARM, WARM, WARM + count]) {
            self.read("warm").await?;
            let call = call.clone();
            let each = Each(move |i: usize| call(first + i));
            load::run(&self.target, clients, Until::Count(count), LIMIT, each).await?;
            *cost = self.read(name).await?;
            first += count;
        }
        let [_, base, whole] = costs;
        Ok(whole.saturating_sub(base) as f64 / count as f64)
    }

    /// Instructions of an event that a watch receives, the creation of its object apart.
    async fn events(&mut self, control: &mut Client, namespace: &str) -> Result<f64, Error> {
        let path = collection(namespace, "secrets");
        let template = objects::small_secret();
        let create = move |path: String, prefix: &'static str| {
            Each(move |i: usize| template.create(&path, &format!("{prefix}-{i:05}")))
        };
        load::run(&self.target, 1, Until::Count(WARM), LIMIT, create.clone()(path.clone(), "warm")).await?;
        self.read("warm").await?;
        load::run(&self.target, 1, Until::Count(EVENTS), LIMIT, create.clone()(path.clone(), "alone"))
            .await?;
        let alone = self.read("alone").await?;
        let revision = fixture::revision(control, &path).await?;
        let received = Arc::new(AtomicU64::new(0));
        let mut watchers = JoinSet::new();
        for _ in 0..WATCHERS {
            let mut stream = Stream::open(&self.target, &path, &revision).await?;
            let received = received.clone();
            watchers.spawn(async move {
                while let Ok(piece) = stream.next().await {
                    received.fetch_add(super::stats::newlines(&piece) as u64, Ordering::Relaxed);
                }
            });
        }
        self.read("warm").await?;
        load::run(&self.target, 1, Until::Count(EVENTS), LIMIT, create(path, "watched")).await?;
        let expected = (WATCHERS * EVENTS) as u64;
        if !reaches(expected, || received.load(Ordering::Relaxed), QUIET, LIMIT).await {
            return Err(Error::Answer(format!("fewer than {expected} events arrived")));
        }
        let watched = self.read("event").await?;
        watchers.abort_all();
        Ok(watched.saturating_sub(alone) as f64 / expected as f64)
    }

    /// Instructions since the last call, all threads together. Keeps the profile under this name.
    async fn read(&mut self, name: &str) -> Result<u64, Error> {
        let pid = self.pid.to_string();
        let control = tokio::task::spawn_blocking(move || {
            Command::new("callgrind_control").args(["--dump", &pid]).output()
        });
        let output = control.await.map_err(|e| Error::Task(e.to_string()))?;
        let output = output.map_err(|e| Error::file(Path::new("callgrind_control"), e))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Answer(format!("callgrind_control: {}", text.trim())));
        }
        self.dumps += 1;
        let path = self.dir.join(format!("callgrind.out.{}", self.dumps));
        let text = fs::read_to_string(&path).map_err(|e| Error::file(&path, e))?;
        let kept = self.dir.join(format!("{name}.callgrind"));
        fs::rename(&path, &kept).map_err(|e| Error::file(&kept, e))?;
        total(&text).ok_or_else(|| Error::Answer(format!("{}: holds no count", kept.display())))
    }
}

/// The count of a profile: after `totals:`, or `summary:` in older ones.
fn total(profile: &str) -> Option<u64> {
    let mut lines = profile.lines().rev();
    let line = lines.find_map(|l| l.strip_prefix("totals:").or_else(|| l.strip_prefix("summary:")))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn reads_the_total_of_a_profile() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 12\n\nfn=(1) a\n1 12\n\ntotals: 13\n"), Some(13));
        assert_eq!(total("version: 1\nsummary: 12\n"), Some(12));
        assert_eq!(total("version: 1\n"), None);
    }
}
