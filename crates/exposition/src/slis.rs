//! `/metrics/slis`: the outcomes of health checks, for service level indicators.
//!
//! Invariant: a check is counted when a health endpoint has run it, under the endpoint's name; there are as many series as checks.
//!
//! Source: component-base's `metrics/prometheus/slis`.

use crate::{Family, Page, Process, Sample};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

const LAST: Family = Family::gauge(
    "kubernetes_healthcheck",
    "[STABLE] This metric records the result of a single healthcheck.",
);
const TOTAL: Family = Family::counter(
    "kubernetes_healthchecks_total",
    "[STABLE] This metric records the results of all healthcheck.",
);

/// A check's outcomes.
#[derive(Debug, Default, Clone, Copy)]
struct Outcomes {
    passes: bool,
    passed: u64,
    failed: u64,
}

/// The outcomes of the checks of a component.
#[derive(Debug, Default)]
pub struct Slis(Mutex<BTreeMap<(String, &'static str), Outcomes>>);

impl Slis {
    /// A check ran for an endpoint: `healthz`, `livez` or `readyz`.
    pub fn observe(&self, check: &str, endpoint: &'static str, passes: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = all.entry((check.to_owned(), endpoint)).or_default();
        outcomes.passes = passes;
        *(if passes { &mut outcomes.passed } else { &mut outcomes.failed }) += 1;
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut page = Page::default();
        let last = all.iter().map(|((check, endpoint), outcomes)| {
            Sample::new(&[("name", check), ("type", endpoint)], f64::from(u8::from(outcomes.passes)))
        });
        page.family(LAST, last);
        let total = all.iter().flat_map(|((check, endpoint), outcomes)| {
            let by_status = [("error", outcomes.failed), ("success", outcomes.passed)];
            by_status.into_iter().filter(|(_, count)| *count > 0).map(move |(status, count)| {
                Sample::new(&[("name", check), ("status", status), ("type", endpoint)], count as f64)
            })
        });
        page.family(TOTAL, total);
        page.process_start(&Process::read());
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_endpoint() {
        let slis = Slis::default();
        for (check, endpoint, passes) in [
            ("ping", "livez", true),
            ("etcd", "readyz", true),
            ("etcd", "readyz", false),
            ("ping", "readyz", true),
        ] {
            slis.observe(check, endpoint, passes);
        }
        let page = slis.page();
        let lines: Vec<&str> = page.lines().filter(|line| !line.contains("process_start")).collect();
        expect_test::expect![[r#"
            # HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.
            # TYPE kubernetes_healthcheck gauge
            kubernetes_healthcheck{name="etcd",type="readyz"} 0
            kubernetes_healthcheck{name="ping",type="livez"} 1
            kubernetes_healthcheck{name="ping",type="readyz"} 1
            # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.
            # TYPE kubernetes_healthchecks_total counter
            kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 1
            kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"} 1
            kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 1
            kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}
