//! `/livez`, `/readyz`, `/healthz`: named checks, each with a path of its own, `?verbose` and `?exclude=`.
//! Texts as upstream's `healthz` package writes them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Answers `Ok` or a reason (which only the log sees, as upstream withholds it).
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The checks of one server.
#[derive(Default)]
pub struct Health {
    checks: Mutex<Vec<(String, Check)>>,
    stopping: AtomicBool,
}

/// An answer: code and text.
pub type Answer = (u16, String);

impl Health {
    /// Adds a check to all three endpoints.
    pub fn add(&self, name: &str, check: Check) {
        if let Ok(mut checks) = self.checks.lock() {
            checks.push((name.to_owned(), check));
        }
    }

    /// From now on `/readyz` fails its `shutdown` check.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Serves `/livez[/check]`, … `endpoint` is the first path segment; `None` for a path that is not there.
    pub fn serve(&self, endpoint: &str, check: &str, query: &[(String, String)]) -> Option<Answer> {
        let checks = self.named(endpoint);
        if !check.is_empty() {
            let (name, found) = checks.iter().find(|(n, _)| n == check)?;
            return Some(match found() {
                Ok(()) => (200, "ok".into()),
                Err(reason) => {
                    tracing::warn!(check = %name, %reason, "health check failed");
                    (500, format!("internal server error: {reason}\n"))
                }
            });
        }
        let excluded: Vec<&str> =
            query.iter().filter(|(k, _)| k == "exclude").map(|(_, v)| v.as_str()).collect();
        Some(summary(endpoint, &checks, &excluded, query.iter().any(|(k, _)| k == "verbose")))
    }

    fn named(&self, endpoint: &str) -> Vec<(String, Check)> {
        let ok: Check = Arc::new(|| Ok(()));
        let mut checks = vec![("ping".to_owned(), ok.clone()), ("log".to_owned(), ok)];
        if let Ok(own) = self.checks.lock() {
            checks.extend(own.iter().cloned());
        }
        if endpoint == "readyz" {
            let stopping = self.stopping.load(Ordering::Acquire);
            checks.push((
                "shutdown".into(),
                Arc::new(move || if stopping { Err("process is shutting down".into()) } else { Ok(()) }),
            ));
        }
        checks
    }
}

fn summary(endpoint: &str, checks: &[(String, Check)], excluded: &[&str], verbose: bool) -> Answer {
    let mut text = String::new();
    let mut failed = vec![];
    for (name, check) in checks {
        if excluded.contains(&name.as_str()) {
            text += &format!("[+]{name} excluded: ok\n");
            continue;
        }
        match check() {
            Ok(()) => text += &format!("[+]{name} ok\n"),
            Err(reason) => {
                tracing::warn!(check = %name, %reason, "health check failed");
                failed.push(name.as_str());
                text += &format!("[-]{name} failed: reason withheld\n");
            }
        }
    }
    for name in excluded.iter().filter(|e| !checks.iter().any(|(n, _)| n == *e)) {
        text += &format!("warn: some health checks cannot be excluded: no matches for {name:?}\n");
    }
    match (failed.is_empty(), verbose) {
        (false, _) => (500, format!("{text}{endpoint} check failed\n")),
        (true, true) => (200, format!("{text}{endpoint} check passed\n")),
        (true, false) => (200, "ok".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_as_upstream() {
        let health = Health::default();
        health.add("etcd", Arc::new(|| Ok(())));
        let verbose = [("verbose".to_owned(), String::new())];
        assert_eq!(health.serve("readyz", "", &[]), Some((200, "ok".into())));
        assert_eq!(health.serve("livez", "ping", &[]), Some((200, "ok".into())));
        assert_eq!(health.serve("livez", "nothing", &[]), None);
        expect_test::expect![[r#"
            [+]ping ok
            [+]log ok
            [+]etcd ok
            livez check passed
        "#]]
        .assert_eq(&health.serve("livez", "", &verbose).unwrap().1);
        health.stop();
        expect_test::expect![[r#"
            [+]ping ok
            [+]log ok
            [+]etcd ok
            [-]shutdown failed: reason withheld
            readyz check failed
        "#]]
        .assert_eq(&health.serve("readyz", "", &[]).unwrap().1);
        assert_eq!(health.serve("livez", "", &[]).unwrap().0, 200);
    }
}
