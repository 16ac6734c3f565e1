//! An operator with mistakes that can be switched on, for `kaji test` to find: one of each class.
//!
//! A `Database` gets credentials (a secret), settings (a config map), a service, and an entry in the config map `database-hosts`, which
//! all databases share. Without `--bug` each of these is looked at by itself and made what it should be, whatever came before.
//!
//! - `stale-read`: whether there are credentials is decided by what the cache shows, and their name is generated. A cache that is behind
//!   makes a second secret.
//! - `missed-state`: the shared entry is removed when the deletion is seen. One that is not seen leaves it for ever.
//! - `crash-between-writes`: the service is made together with the settings, if there are none. A crash between leaves no service.

mod reconcile;

use clap::{Parser, ValueEnum};
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, CustomResource,
    runtime::{
        WatchStreamExt, reflector,
        watcher::{self, Event},
    },
};
use reconcile::Reconciler;
use serde::{Deserialize, Serialize};
use std::{pin::pin, time::Duration};
use tokio::time::{sleep, timeout};

/// What is wanted of a database.
#[derive(Clone, Debug, Serialize, Deserialize, CustomResource)]
#[kube(group = "db.example.com", version = "v1", kind = "Database", namespaced, schema = "disabled")]
#[kube(status = "DatabaseStatus")]
pub struct DatabaseSpec {
    /// The host that it is reached at.
    pub host: String,
}

/// What is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseStatus {
    /// Whether all that it needs is there.
    pub ready: bool,
    /// The host that it is reached at.
    pub host: String,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bug {
    /// See the program.
    StaleRead,
    /// See the program.
    MissedState,
    /// See the program.
    CrashBetweenWrites,
}

/// Keeps databases.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    /// Switches a mistake on.
    #[arg(long)]
    bug: Option<Bug>,
}

/// What brings the loop about.
enum Trigger {
    Changed,
    Deleted(Box<Database>),
}

/// Events that come at once are one reason to look.
const PAUSE: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_millis(500);
/// Databases are looked at without a reason, too.
const RESYNC: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let client = Client::try_default().await?;
    let (databases, database_writer) = reflector::store();
    let (secrets, secret_writer) = reflector::store();
    // From the server's cache, as most operators list: at resourceVersion 0, which goes without pages alone.
    let config = || watcher::Config { page_size: None, ..watcher::Config::default().any_semantic() };
    let changes = watcher::watcher(Api::<Database>::all(client.clone()), config());
    let changes = changes.default_backoff().reflect(database_writer).map_ok(|event| match event {
        Event::Delete(database) => Trigger::Deleted(Box::new(database)),
        _ => Trigger::Changed,
    });
    let credentials = config().labels(reconcile::LABEL);
    let others = watcher::watcher(Api::<Secret>::all(client.clone()), credentials);
    let others = others.default_backoff().reflect(secret_writer).map_ok(|_| Trigger::Changed);
    let mut triggers = pin!(stream::select(changes, others).fuse());
    let reconciler = Reconciler::new(client, databases.clone(), secrets.clone(), cli.bug);
    // Both caches have to be filled before the first look.
    let mut ready = pin!(async { databases.wait_until_ready().await.and(secrets.wait_until_ready().await) });
    loop {
        tokio::select! {
            filled = &mut ready => break filled?,
            trigger = triggers.next() => drop(trigger),
        }
    }
    run(&reconciler, triggers).await;
    Ok(())
}

/// Looks at all databases after each change.
async fn run(
    reconciler: &Reconciler,
    mut triggers: impl Stream<Item = Result<Trigger, watcher::Error>> + Unpin,
) {
    loop {
        let wait = match reconciler.reconcile_all().await {
            Ok(()) => RESYNC,
            Err(error) => {
                tracing::warn!(%error, "not done yet");
                RETRY
            }
        };
        let mut next = match timeout(wait, triggers.next()).await {
            Ok(None) => return,
            Ok(next) => next,
            Err(_) => continue,
        };
        // What comes at once is taken at once.
        let mut pause = pin!(sleep(PAUSE));
        while let Some(trigger) = next.take() {
            match trigger {
                Ok(Trigger::Deleted(database)) => reconciler.deleted(&database).await,
                Ok(Trigger::Changed) => {}
                Err(error) => tracing::warn!(%error, "a watch ended"),
            }
            tokio::select! { () = &mut pause => {}, trigger = triggers.next() => next = trigger }
        }
    }
}
