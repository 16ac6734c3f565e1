//! The phase `flood`: what a user notices of another one who floods the server.
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
    objects,
};
use serde_json::json;
use std::{
    future::Future,
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
/// Beyond what it should take.
const SLACK: Duration = Duration::from_secs(60);

const FLOOD: &str = "flood";
const USER: &str = "user";

/// What the user does, and the figures: without and with the flood, and the ratio.
const PROBES: [(&str, [&str; 3]); 3] = [
    ("get", ["flood_get_quiet", "flood_get", "flood_get_ratio"]),
    ("list", ["flood_list_quiet", "flood_list", "flood_list_ratio"]),
    ("create", ["flood_create_quiet", "flood_create", "flood_create_ratio"]),
];

/// Runs the phase.
pub async fn run(bench: &mut Bench) -> Result<(), Error> {
    let namespace = format!("bench-{}-flood", bench.run);
    let outcome = measured(bench, &namespace).await;
    let cleared = fixture::clear(&mut bench.control, &[namespace], &["configmaps"]).await;
    fixture::both(outcome, cleared)
}

async fn measured(bench: &mut Bench, namespace: &str) -> Result<(), Error> {
    fixture::namespace(&mut bench.control, namespace).await?;
    let user = account(bench, namespace, USER).await?;
    let flood = account(bench, namespace, FLOOD).await?;
    let path = collection(namespace, "configmaps");
    let template = objects::config_map();
    for i in 0..STOCK {
        bench.control.call(&template.create(&path, &format!("stock-{i:03}"))).await?;
    }
    let time = Duration::from_secs_f64((4.0 * bench.report.counts.scale).clamp(1.0, 10.0));
    for (what, ids) in PROBES {
        let quiet = apart(probe(user.clone(), what, path.clone(), "quiet", time)).await?;
        bench.report.time(ids[0], quiet.percentile(99.0));
    }
    let refused = Arc::new(AtomicUsize::new(0));
    let lasts = Until::Elapsed(WARM * 2 + time * PROBES.len() as u32);
    let torrent = Torrent { path: path.clone(), refused: refused.clone() };
    let flooding = tokio::spawn(apart(async move {
        load::run(&flood, CONNECTIONS, lasts, WARM * 2 + time * 3 + SLACK, torrent).await
    }));
    tokio::time::sleep(WARM).await;
    for (what, ids) in PROBES {
        let flooded = apart(probe(user.clone(), what, path.clone(), "flooded", time)).await?;
        let p99 = flooded.percentile(99.0);
        bench.report.time(ids[1], p99);
        if let Some(quiet) = bench.report.value(ids[0]).filter(|quiet| *quiet > 0.0) {
            bench.report.set(ids[2], p99.as_secs_f64() / quiet);
        }
    }
    let flooded = flooding.await.map_err(|e| Error::Task(e.to_string()))??;
    bench.report.set("flood_rate", flooded.rate());
    let refused = refused.load(Ordering::Relaxed);
    bench.report.notes.push(format!(
        "flood: {CONNECTIONS} connections, {} requests, of which {refused} were turned away with 429",
        flooded.done
    ));
    Ok(())
}

/// A service account that may work with the namespace's ConfigMaps, as a target.
async fn account(bench: &mut Bench, namespace: &str, name: &str) -> Result<Arc<Target>, Error> {
    let create = |path: String, object: serde_json::Value| Call::post(path, object.to_string());
    let accounts = collection(namespace, "serviceaccounts");
    let rbac = |plural: &str| format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}");
    let control = &mut bench.control;
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
    let target = Arc::new(kubeconfig::load_as(&bench.kubeconfig, token)?);
    // The rights may take a moment on servers whose authorizer follows from behind.
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

/// Runs on a thread and runtime of its own, so that the generator's other work does not delay it.
async fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|e| Error::Task(e.to_string()))?.block_on(work)
    });
    thread.await.map_err(|e| Error::Task(e.to_string()))?
}

/// One client that does one thing again and again.
async fn probe(
    target: Arc<Target>,
    what: &'static str,
    path: String,
    run: &'static str,
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
