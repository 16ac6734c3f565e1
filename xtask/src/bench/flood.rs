//! The phase `flood`: the latency of one user while another floods the server.
//!
//! The flood keeps the machine busy, which the generator shares with the server. So the user is watched three times:
//! alone, while the flood goes to a second server (`--beside`), and while it goes to the same one, in turns. What the last
//! adds to the one before is the server's doing.
//!
//! Both are service accounts, so flow control puts them on one priority level and only its fairness keeps them apart. The
//! user's requests go one after the other from a thread of its own with one connection; the flood comes from hundreds of
//! connections of another thread and does not stop to think.

use super::{
    Bench, Error,
    client::{Call, Client, Target},
    fixture::{self, collection},
    kubeconfig,
    load::{self, Each, Job, Tally, Until},
    objects, stats,
};
use serde_json::json;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Connections of the flood.
const CONNECTIONS: usize = 256;
/// Objects that are listed.
const STOCK: usize = 50;
/// How long the flood lasts before anything is measured, and after.
const WARM: Duration = Duration::from_secs(1);
/// How often the three situations take turns: what else the machine is at changes by the second.
const ROUNDS: u32 = 4;
/// Beyond what it should take.
const SLACK: Duration = Duration::from_secs(60);

const FLOOD: &str = "flood";
const USER: &str = "user";

/// What the user does, and the figures: alone, with the flood on another server, with the flood on this one, and the ratio
/// of the last two.
const PROBES: [(&str, [&str; 4]); 3] = [
    ("get", ["flood_get_quiet", "flood_get_beside", "flood_get", "flood_get_ratio"]),
    ("list", ["flood_list_quiet", "flood_list_beside", "flood_list", "flood_list_ratio"]),
    ("create", ["flood_create_quiet", "flood_create_beside", "flood_create", "flood_create_ratio"]),
];

/// A server with a namespace for this, and the users in it.
struct Site {
    control: Client,
    namespace: String,
    user: Arc<Target>,
    flood: Arc<Target>,
}

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-flood", bench.run);
    let mut sites = vec![];
    let outcome = measured(bench, &namespace, &mut sites).await;
    let mut cleared = Ok(());
    for site in &mut sites {
        let here =
            fixture::clear(&mut site.control, std::slice::from_ref(&site.namespace), &["configmaps"]).await;
        cleared = fixture::both(cleared, here);
    }
    fixture::both(outcome, cleared)
}

async fn measured(bench: &mut Bench, namespace: &str, sites: &mut Vec<Site>) -> Result<(), Error> {
    for kubeconfig in [Some(&bench.kubeconfig), bench.beside.as_ref()].into_iter().flatten() {
        sites.push(site(kubeconfig, namespace).await?);
    }
    let time = Duration::from_secs_f64((8.0 * bench.report.counts.scale).clamp(1.0, 20.0)) / ROUNDS;
    let user = User { target: sites[0].user.clone(), path: collection(namespace, "configmaps"), time };
    let [mut quiet, mut beside, mut here] = [(); 3].map(|()| Noticed::default());
    let (mut rates, refused) = (vec![], Arc::new(AtomicUsize::new(0)));
    for round in 0..ROUNDS {
        user.notices(&format!("quiet-{round}"), &mut quiet).await?;
        if let Some(other) = sites.get(1) {
            let run = format!("beside-{round}");
            user.notices_flooded(&run, &other.flood, &mut beside, &Arc::default()).await?;
        }
        let run = format!("flooded-{round}");
        rates.push(user.notices_flooded(&run, &sites[0].flood, &mut here, &refused).await?);
    }
    for (probe, (_, ids)) in PROBES.iter().enumerate() {
        for (id, noticed) in ids.iter().zip([&mut quiet, &mut beside, &mut here]) {
            if let Some(p99) = noticed.p99(probe) {
                bench.report.time(id, p99);
            }
        }
        let [beside, here] = [ids[1], ids[2]].map(|id| bench.report.value(id));
        if let (Some(beside), Some(here)) = (beside.filter(|b| *b > 0.0), here) {
            bench.report.set(ids[3], here / beside);
        }
    }
    bench.report.set("flood_rate", rates.iter().sum::<f64>() / rates.len().max(1) as f64);
    bench.report.notes.push(format!(
        "flood: {} requests of the {CONNECTIONS} connections were rejected with 429",
        refused.load(Ordering::Relaxed)
    ));
    Ok(())
}

/// What the user's requests took, by probe.
#[derive(Default)]
struct Noticed([Vec<Duration>; PROBES.len()]);

impl Noticed {
    fn p99(&mut self, probe: usize) -> Option<Duration> {
        self.0[probe].sort_unstable();
        stats::percentile(&self.0[probe], 99.0)
    }
}

/// The measured user.
struct User {
    target: Arc<Target>,
    /// Of the collection.
    path: String,
    /// How long each probe lasts in a round.
    time: Duration,
}

impl User {
    /// One round, whatever else goes on.
    async fn notices(&self, run: &str, noticed: &mut Noticed) -> Result<(), Error> {
        for ((what, _), latencies) in PROBES.iter().zip(&mut noticed.0) {
            let probe = probe(self.target.clone(), what, self.path.clone(), run.to_owned(), self.time);
            latencies.extend(load::apart(probe).await?.latencies);
        }
        Ok(())
    }

    /// One round while that account floods its server. Says how much the flood got.
    async fn notices_flooded(
        &self,
        run: &str,
        flood: &Arc<Target>,
        noticed: &mut Noticed,
        refused: &Arc<AtomicUsize>,
    ) -> Result<f64, Error> {
        let lasts = WARM * 2 + self.time * PROBES.len() as u32;
        let torrent = Torrent { path: self.path.clone(), refused: refused.clone() };
        let flood = flood.clone();
        let flooding = tokio::spawn(load::apart(async move {
            load::run(&flood, CONNECTIONS, Until::Elapsed(lasts), lasts + SLACK, torrent).await
        }));
        tokio::time::sleep(WARM).await;
        self.notices(run, noticed).await?;
        Ok(flooding.await.map_err(|e| Error::Task(e.to_string()))??.rate())
    }
}

/// The namespace with its accounts and its stock.
async fn site(kubeconfig: &Path, namespace: &str) -> Result<Site, Error> {
    let mut control = Client::new(&Arc::new(kubeconfig::load(kubeconfig)?)).limited(SLACK);
    fixture::namespace(&mut control, namespace).await?;
    let user = account(&mut control, kubeconfig, namespace, USER).await?;
    let flood = account(&mut control, kubeconfig, namespace, FLOOD).await?;
    let (path, template) = (collection(namespace, "configmaps"), objects::config_map());
    for i in 0..STOCK {
        control.call(&template.create(&path, &format!("stock-{i:03}"))).await?;
    }
    Ok(Site { control, namespace: namespace.to_owned(), user, flood })
}

/// A service account that may work with the namespace's ConfigMaps, as a target.
async fn account(
    control: &mut Client,
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
) -> Result<Arc<Target>, Error> {
    let create = |path: String, object: serde_json::Value| Call::post(path, object.to_string());
    let accounts = collection(namespace, "serviceaccounts");
    let rbac = |plural: &str| format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}");
    control
        .call(&create(
            accounts.clone(),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}),
        ))
        .await?;
    control
        .call(&create(
            rbac("roles"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
                "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create"]}],
            }),
        ))
        .await?;
    control
        .call(&create(
            rbac("rolebindings"),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }),
        ))
        .await?;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let answer = control.json(&create(format!("{accounts}/{name}/token"), request)).await?;
    let token = answer["status"]["token"].as_str();
    let token = token.ok_or_else(|| Error::Answer("a TokenRequest was answered without a token".into()))?;
    let target = Arc::new(kubeconfig::load_as(kubeconfig, token)?);
    // The rights may take a moment on servers with an authorizer that follows from behind.
    let mut client = Client::new(&target);
    let list = Call::get(format!("{}?limit=1", collection(namespace, "configmaps")));
    for _ in 0..200 {
        match client.call(&list).await {
            Err(Error::Status { code: 403, .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            outcome => return outcome.map(|_| target),
        }
    }
    Err(Error::Answer(format!("{name} was bound to its role and is still refused")))
}

/// One client that does one thing again and again.
async fn probe(
    target: Arc<Target>,
    what: &'static str,
    path: String,
    run: String,
    time: Duration,
) -> Result<Tally, Error> {
    let template = objects::config_map();
    let each = Each(move |i: usize| match what {
        "get" => Call::get(format!("{path}/stock-{:03}", i % STOCK)),
        "list" => Call::get(format!("{path}?limit={STOCK}")),
        _ => template.create(&path, &format!("{run}-{i:06}")),
    });
    load::run(&target, 1, Until::Elapsed(time), time + SLACK, each).await
}

/// The flood: reads and lists in turn, and writes now and then; being turned away does not stop it.
struct Torrent {
    path: String,
    refused: Arc<AtomicUsize>,
}

impl Job for Torrent {
    async fn run(&self, client: &mut Client, index: usize) -> Result<(), Error> {
        let call = match index % 8 {
            0..4 => Call::get(format!("{}/stock-{:03}", self.path, index % STOCK)),
            4..7 => Call::get(format!("{}?limit={STOCK}", self.path)),
            // There already: decoded, admitted, and refused by the store.
            _ => objects::config_map().create(&self.path, "stock-000"),
        };
        match client.call(&call).await {
            Err(Error::Status { code: 429, .. }) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) | Err(Error::Status { code: 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
