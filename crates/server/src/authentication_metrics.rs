//! Metrics of authentication, with upstream's names and labels. Only a few well-known user names become labels. Source: apiserver `endpoints/filters/metrics.go`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UserLabel {
    username: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The outcome of authenticating a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attempt<'a> {
    /// The request is authenticated as this user.
    Success(&'a str),
    /// No authenticator accepted the request.
    Failure,
    /// The credentials are invalid.
    Error,
}

/// The metrics of authentication.
pub(crate) struct AuthenticationMetrics {
    users: Family<UserLabel, Counter>,
    attempts: Family<ResultLabel, Counter>,
    durations: Family<ResultLabel, Histogram, fn() -> Histogram>,
    expirations: Histogram,
}

fn buckets() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.001, 2.0, 15))
}

impl Default for AuthenticationMetrics {
    fn default() -> Self {
        AuthenticationMetrics {
            users: Family::default(),
            attempts: Family::default(),
            durations: Family::new_with_constructor(buckets as fn() -> Histogram),
            // Half an hour to a year.
            expirations: Histogram::new([
                0.0,
                1800.0,
                3600.0,
                7200.0,
                21600.0,
                43200.0,
                86400.0,
                172_800.0,
                345_600.0,
                604_800.0,
                2_592_000.0,
                7_776_000.0,
                15_552_000.0,
                31_104_000.0,
            ]),
        }
    }
}

impl AuthenticationMetrics {
    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        let help = "[ALPHA] Counter of authenticated requests broken out by username.";
        registry.register("authenticated_user_requests", help, self.users.clone());
        let help = "[ALPHA] Counter of authenticated attempts.";
        registry.register("authentication_attempts", help, self.attempts.clone());
        let help = "[ALPHA] Authentication duration in seconds broken out by result.";
        registry.register("authentication_duration_seconds", help, self.durations.clone());
        let help = "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.";
        registry.register("apiserver_client_certificate_expiration_seconds", help, self.expirations.clone());
    }

    /// A request came with a certificate that is valid for so many seconds more.
    pub fn certificate(&self, remaining: f64) {
        self.expirations.observe(remaining);
    }

    /// Counts one.
    pub fn count(&self, attempt: Attempt<'_>, took: Duration) {
        let result = match attempt {
            Attempt::Success(user) => {
                self.users.get_or_create(&UserLabel { username: class(user) }).inc();
                "success"
            }
            Attempt::Failure => "failure",
            Attempt::Error => "error",
        };
        self.attempts.get_or_create(&ResultLabel { result }).inc();
        self.durations.get_or_create(&ResultLabel { result }).observe(took.as_secs_f64());
    }
}

/// What a user's name is counted as.
fn class(name: &str) -> &'static str {
    const KNOWN: [&str; 5] =
        ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];
    match KNOWN.into_iter().find(|known| *known == name) {
        Some(known) => known,
        None if name.contains('@') => "email_id",
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn names_do_not_get_on_the_page() {
        let attempts = AuthenticationMetrics::default();
        for user in ["admin", "alice", "alice@example.com", "bob"] {
            attempts.count(Attempt::Success(user), Duration::from_millis(3));
        }
        attempts.count(Attempt::Failure, Duration::ZERO);
        attempts.count(Attempt::Error, Duration::ZERO);
        attempts.certificate(2_000_000.0);
        let mut registry = Registry::default();
        attempts.register(&mut registry);
        let page = kaji_exposition::encode(&registry);
        let mut lines: Vec<&str> =
            page.lines().filter(|l| !l.starts_with('#') && !l.contains("_bucket{")).collect();
        lines.sort_unstable();
        expect![[r#"
            apiserver_client_certificate_expiration_seconds_count 1
            apiserver_client_certificate_expiration_seconds_sum 2e+06
            authenticated_user_requests{username="admin"} 1
            authenticated_user_requests{username="email_id"} 1
            authenticated_user_requests{username="other"} 2
            authentication_attempts{result="error"} 1
            authentication_attempts{result="failure"} 1
            authentication_attempts{result="success"} 4
            authentication_duration_seconds_count{result="error"} 1
            authentication_duration_seconds_count{result="failure"} 1
            authentication_duration_seconds_count{result="success"} 4
            authentication_duration_seconds_sum{result="error"} 0
            authentication_duration_seconds_sum{result="failure"} 0
            authentication_duration_seconds_sum{result="success"} 0.012"#]]
        .assert_eq(&lines.join("\n"));
    }
}
