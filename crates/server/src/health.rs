//! `/livez`, `/readyz`, `/healthz`: named checks, each with its path, `?verbose` and `?exclude=`.
//! Texts as upstream's `healthz` package writes them.

use futures_util::future::BoxFuture;
use kaji_engine::Engine;
use kaji_exposition::slis::Slis;
use kaji_meta::Query;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Returns `Ok` or a reason, which is logged and, as upstream does, withheld from clients.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// A check that waits for another component; it bounds its own time.
pub type SlowCheck = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

#[derive(Clone)]
enum Named {
    Quick(Check),
    Slow(SlowCheck),
    /// For `/readyz` alone.
    Readiness(SlowCheck),
    /// Of the start: passes on `/livez` for a while.
    Start(Check),
}

impl Named {
    async fn run(&self) -> Result<(), String> {
        match self {
            Named::Quick(check) | Named::Start(check) => check(),
            Named::Slow(check) | Named::Readiness(check) => check().await,
        }
    }
}

/// The checks of one server.
#[derive(Default)]
pub struct Health {
    checks: Mutex<Vec<(String, Named)>>,
    /// Until when `/livez` passes checks of the start.
    grace: Mutex<Option<Instant>>,
    stopping: AtomicBool,
    /// Whether background tasks and control loops run, which some hooks of the start stand for.
    pub(crate) tasks_run: Arc<AtomicBool>,
    slis: Slis,
}

/// An answer: code and text.
pub type Answer = (u16, String);

impl Health {
    /// Adds a check to all three endpoints.
    pub fn add(&self, name: &str, check: Check) {
        if let Ok(mut checks) = self.checks.lock() {
            checks.push((name.to_owned(), Named::Quick(check)));
        }
    }

    /// Adds a check of the start to all three endpoints: `/livez` passes it while the grace period lasts.
    pub fn add_start(&self, name: &str, check: Check) {
        if let Ok(mut checks) = self.checks.lock() {
            checks.push((name.to_owned(), Named::Start(check)));
        }
    }

    /// Makes the start wait for the engine, which is ready as soon as it is open.
    pub fn wait_for_engine(&self, engine: &Arc<Engine>) {
        let engine = Arc::downgrade(engine);
        let is_open = move || engine.upgrade().map(drop).ok_or_else(|| "the engine is closed".to_owned());
        self.add_start("informer-sync", Arc::new(is_open));
    }

    /// The grace period begins.
    pub fn begin_grace(&self, period: Duration) {
        if let Ok(mut grace) = self.grace.lock() {
            *grace = Some(Instant::now() + period);
        }
    }

    /// Adds a check of another component to `/readyz` and `/healthz`, not to `/livez`: a restart of this server does not help
    /// that component.
    pub fn add_slow(&self, name: &str, check: SlowCheck) {
        if let Ok(mut checks) = self.checks.lock() {
            checks.push((name.to_owned(), Named::Slow(check)));
        }
    }

    /// Adds a check to `/readyz` alone.
    pub fn add_readiness(&self, name: &str, check: SlowCheck) {
        if let Ok(mut checks) = self.checks.lock() {
            checks.push((name.to_owned(), Named::Readiness(check)));
        }
    }

    /// From now on `/readyz` fails its `shutdown` check.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Serves `/livez[/check]`, … `endpoint` is the first path segment; `None` for a path that is not there.
    pub async fn serve(&self, endpoint: &str, check: &str, query: &Query) -> Option<Answer> {
        let checks = self.named(endpoint);
        if !check.is_empty() {
            let (name, found) = checks.iter().find(|(n, _)| n == check)?;
            return Some(match found.run().await {
                Ok(()) => (200, "ok".into()),
                Err(reason) => {
                    tracing::warn!(check = %name, %reason, "health check failed");
                    (500, format!("internal server error: {reason}\n"))
                }
            });
        }
        let excluded: Vec<&str> = query.all("exclude").collect();
        Some(self.summary(endpoint, &checks, &excluded, query.first("verbose").is_some()).await)
    }

    async fn summary(
        &self,
        endpoint: &str,
        checks: &[(String, Named)],
        excluded: &[&str],
        verbose: bool,
    ) -> Answer {
        let mut text = String::new();
        let mut failed = vec![];
        let kind = match endpoint {
            "livez" => "livez",
            "readyz" => "readyz",
            _ => "healthz",
        };
        for (name, check) in checks {
            if excluded.contains(&name.as_str()) {
                text += &format!("[+]{name} excluded: ok\n");
                continue;
            }
            let outcome = check.run().await;
            self.slis.observe(name, kind, outcome.is_ok());
            match outcome {
                Ok(()) => text += &format!("[+]{name} ok\n"),
                Err(reason) => {
                    tracing::warn!(check = %name, %reason, "health check failed");
                    failed.push(name.as_str());
                    text += &format!("[-]{name} failed: reason withheld\n");
                }
            }
        }
        let unknown: BTreeSet<&&str> =
            excluded.iter().filter(|e| !checks.iter().any(|(n, _)| n == *e)).collect();
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
            let names = names.join(",");
            text += &format!("warn: some health checks cannot be excluded: no matches for {names}\n");
        }
        match (failed.is_empty(), verbose) {
            (false, _) => (500, format!("{text}{endpoint} check failed\n")),
            (true, true) => (200, format!("{text}{endpoint} check passed\n")),
            (true, false) => (200, "ok".into()),
        }
    }

    /// The page of what the checks of these endpoints have said.
    pub fn slis(&self) -> String {
        self.slis.page()
    }

    fn named(&self, endpoint: &str) -> Vec<(String, Named)> {
        let ok = Named::Quick(Arc::new(|| Ok(())));
        let mut checks = vec![("ping".to_owned(), ok.clone()), ("log".to_owned(), ok.clone())];
        if let Ok(own) = self.checks.lock() {
            let lasts =
                self.grace.lock().is_ok_and(|until| until.is_some_and(|until| Instant::now() < until));
            let included = |check: &Named| match check {
                Named::Quick(_) | Named::Start(_) => true,
                Named::Slow(_) => endpoint != "livez",
                Named::Readiness(_) => endpoint == "readyz",
            };
            let passed = |(name, check): &(String, Named)| match check {
                Named::Start(_) if lasts && endpoint == "livez" => (name.clone(), ok.clone()),
                check => (name.clone(), check.clone()),
            };
            checks.extend(own.iter().filter(|(_, check)| included(check)).map(passed));
        }
        if endpoint == "readyz" {
            let stopping = self.stopping.load(Ordering::Acquire);
            let check = move || if stopping { Err("process is shutting down".to_owned()) } else { Ok(()) };
            checks.push(("shutdown".into(), Named::Quick(Arc::new(check))));
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_as_upstream() {
        let health = Health::default();
        health.add("etcd", Arc::new(|| Ok(())));
        let verbose = [("verbose", "")].into();
        assert_eq!(health.serve("readyz", "", &Query::default()).await, Some((200, "ok".into())));
        assert_eq!(health.serve("livez", "ping", &Query::default()).await, Some((200, "ok".into())));
        assert_eq!(health.serve("livez", "nothing", &Query::default()).await, None);
        expect_test::expect![[r#"
            [+]ping ok
            [+]log ok
            [+]etcd ok
            livez check passed
        "#]]
        .assert_eq(&health.serve("livez", "", &verbose).await.unwrap().1);
        health.stop();
        expect_test::expect![[r#"
            [+]ping ok
            [+]log ok
            [+]etcd ok
            [-]shutdown failed: reason withheld
            readyz check failed
        "#]]
        .assert_eq(&health.serve("readyz", "", &Query::default()).await.unwrap().1);
        assert_eq!(health.serve("livez", "", &Query::default()).await.unwrap().0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn checks_of_the_start_fail_on_livez_after_the_grace_period() {
        let health = Health::default();
        health.add_start("informer-sync", Arc::new(|| Err("not yet".to_owned())));
        let codes = async || {
            let mut codes = vec![];
            for endpoint in ["livez", "readyz", "healthz"] {
                codes.push(health.serve(endpoint, "", &Query::default()).await.unwrap().0);
            }
            codes
        };
        assert_eq!(codes().await, [500, 500, 500]);
        health.begin_grace(Duration::from_secs(10));
        assert_eq!(codes().await, [200, 500, 500]);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(codes().await, [500, 500, 500]);
    }

    #[tokio::test]
    async fn exclusions_of_nothing_are_named_together() {
        let exclude =
            [("exclude", "b"), ("exclude", "ping"), ("exclude", "a"), ("exclude", "b"), ("verbose", "")];
        let (code, text) = Health::default().serve("livez", "", &exclude.into()).await.unwrap();
        assert_eq!(code, 200);
        let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("warn")).collect();
        let wanted = "warn: some health checks cannot be excluded: no matches for \"a\",\"b\"";
        assert_eq!(warnings, [wanted], "{text}");
    }

    #[tokio::test]
    async fn slow_checks_do_not_affect_liveness() {
        let health = Health::default();
        health.add_readiness("etcd-readiness", Arc::new(|| Box::pin(async { Err("full".to_owned()) })));
        for (endpoint, code) in [("livez", 200), ("readyz", 500), ("healthz", 200)] {
            assert_eq!(health.serve(endpoint, "", &Query::default()).await.unwrap().0, code, "{endpoint}");
        }
        let health = Health::default();
        health.add_slow("kms-providers", Arc::new(|| Box::pin(async { Err("away".to_owned()) })));
        for (endpoint, code) in [("livez", 200), ("readyz", 500), ("healthz", 500)] {
            assert_eq!(health.serve(endpoint, "", &Query::default()).await.unwrap().0, code, "{endpoint}");
        }
        let exclude = [("exclude", "kms-providers")].into();
        assert_eq!(health.serve("readyz", "", &exclude).await.unwrap().0, 200);
        let one = health.serve("healthz", "kms-providers", &Query::default()).await;
        assert_eq!(one, Some((500, "internal server error: away\n".into())));
        assert_eq!(health.serve("livez", "kms-providers", &Query::default()).await, None);
    }
}
