//! Following drivers: their connections, the health of their devices, and their ResourceSlices once they are gone.

use super::drivers::{self, Driver};
use super::{DraManager, locked};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// How often a connection is checked, and attempted.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Between tries to watch the health of devices: upstream's.
const HEALTH: Duration = Duration::from_secs(5);
/// The longest pause between tries to remove ResourceSlices, and how many there are.
const LONGEST: Duration = Duration::from_secs(300);
const TRIES: u32 = 100;

/// What there is to do for drivers.
pub(super) enum Command {
    Follow(Arc<Driver>),
    Forget(String, String),
    /// A connection of this driver was made or lost.
    Changed(String),
}

impl DraManager {
    /// Checks what a driver offers.
    ///
    /// # Errors
    /// Upstream's text.
    pub fn validate(&self, name: &str, endpoint: &str, offered: &[String]) -> Result<(), String> {
        drivers::choose_service(name, endpoint, offered).map(drop)
    }

    /// Takes an instance of a driver over.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn register(&self, name: &str, endpoint: &str, offered: &[String]) -> Result<(), String> {
        let service = drivers::choose_service(name, endpoint, offered)?;
        let driver = locked(&self.drivers).add(name, endpoint, service)?;
        self.send(Command::Follow(driver)).await;
        Ok(())
    }

    /// Forgets an instance of a driver after its socket is gone.
    pub async fn unregister(&self, name: &str, endpoint: &str) {
        if locked(&self.drivers).remove(name, endpoint) {
            self.send(Command::Forget(name.to_owned(), endpoint.to_owned())).await;
        }
    }

    /// Whether a driver is connected.
    #[must_use]
    pub fn is_usable(&self, name: &str) -> bool {
        locked(&self.drivers).usable(name)
    }

    async fn send(&self, command: Command) {
        // The receiver is as old as the sender.
        if self.commands.send(command).await.is_err() {
            tracing::debug!("the task that watches drivers has ended");
        }
    }

    /// Follows drivers, until it is dropped. ResourceSlices that a kubelet before this one has left are removed first: drivers that are
    /// here still publish theirs again.
    pub async fn run(self: Arc<Self>) {
        let mut queue = self.queue.lock().await;
        let mut tasks = JoinSet::new();
        let (mut followed, mut wipes): (
            HashMap<(String, String), AbortHandle>,
            HashMap<String, AbortHandle>,
        ) = Default::default();
        tasks.spawn(self.clone().wipe(None));
        loop {
            let command = tokio::select! {
                command = queue.recv() => command,
                Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            };
            let changed = match command {
                None => return,
                Some(Command::Changed(name)) => name,
                Some(Command::Follow(driver)) => {
                    let key = (driver.name().to_owned(), driver.endpoint().to_owned());
                    let task = tasks.spawn(self.clone().follow(driver.clone()));
                    if let Some(former) = followed.insert(key, task) {
                        former.abort();
                    }
                    driver.name().to_owned()
                }
                Some(Command::Forget(name, endpoint)) => {
                    if let Some(task) = followed.remove(&(name.clone(), endpoint)) {
                        task.abort();
                        self.clear_health(&name);
                    }
                    name
                }
            };
            let waits = wipes.get(&changed).is_some_and(|wipe| !wipe.is_finished());
            match (locked(&self.drivers).usable(&changed), waits) {
                (true, _) => drop(wipes.remove(&changed).map(|wipe| wipe.abort())),
                (false, true) => {}
                (false, false) => {
                    let wipe = tasks.spawn(self.clone().wipe(Some(changed.clone())));
                    wipes.insert(changed, wipe);
                }
            }
        }
    }

    /// Removes the ResourceSlices of a driver that stays away, or of all drivers at once.
    async fn wipe(self: Arc<Self>, driver: Option<String>) {
        if driver.is_some() {
            kaji_runtime::time::sleep(&*self.clock, self.wiping_delay).await;
        }
        let mut pause = Duration::from_secs(1);
        for _ in 0..TRIES {
            let Err(error) = self.slices.delete_slices(driver.as_deref()).await else {
                tracing::debug!(?driver, "ResourceSlices were removed");
                return;
            };
            tracing::debug!(?driver, error, "ResourceSlices cannot be removed yet");
            kaji_runtime::time::sleep(&*self.clock, pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    async fn follow(self: Arc<Self>, driver: Arc<Driver>) {
        loop {
            if driver.client.connect().await.is_ok() {
                self.connected(&driver, true).await;
                let lost = async {
                    while driver.client.is_connected() {
                        kaji_runtime::time::sleep(&*self.clock, POLL_INTERVAL).await;
                    }
                };
                tokio::select! {
                    () = lost => {}
                    () = self.follow_health(&driver) => {}
                }
                self.clear_health(driver.name());
                self.connected(&driver, false).await;
            }
            kaji_runtime::time::sleep(&*self.clock, POLL_INTERVAL).await;
        }
    }

    async fn connected(&self, driver: &Driver, connected: bool) {
        let endpoint = driver.endpoint();
        tracing::debug!(
            driver = driver.name(),
            endpoint,
            connected,
            "the connection of a driver has changed"
        );
        locked(&self.drivers).set_connected(driver, connected);
        self.send(Command::Changed(driver.name().to_owned())).await;
    }

    /// Takes what a driver says of its devices, again and again. Never ends.
    async fn follow_health(&self, driver: &Driver) {
        loop {
            match driver.health().await {
                Ok(mut reports) => {
                    while let Ok(Some(report)) = reports.next().await {
                        self.take_health(driver.name(), &report);
                    }
                    self.clear_health(driver.name());
                }
                // It does not know the health of its devices, as long as it runs.
                Err(error) if error.unimplemented() => std::future::pending().await,
                Err(error) => {
                    tracing::debug!(driver = driver.name(), %error, "the stream of device health failed")
                }
            }
            kaji_runtime::time::sleep(&*self.clock, HEALTH).await;
        }
    }
}
