//! `DenyServiceExternalIPs`: a Service uses no external addresses that it does not use already. Source: kubernetes
//! `plugin/pkg/admission/network/denyserviceexternalips`, CVE-2020-8554.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::Value;
use std::collections::BTreeSet;

/// The plugin.
pub(super) struct DenyServiceExternalIPs;

impl Admission for DenyServiceExternalIPs {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(
            matches!(operation, Operation::Create | Operation::Update)
                && (group, resource) == ("", "services"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let (old, new) = (external(a.old), external(a.new_object()));
        let result = match new.is_subset(&old) {
            true => Ok(()),
            false => Err(a.forbidden("Use of external IPs is denied by admission control")),
        };
        Box::pin(std::future::ready(result))
    }
}

fn external(service: Option<&Value>) -> BTreeSet<&str> {
    service.map(|s| object::strs_at(s, &["spec", "externalIPs"]).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Request;
    use expect_test::expect;
    use kaji_resource::Scope;
    use serde_json::json;

    async fn written(old: Option<&[&str]>, new: &[&str]) -> String {
        let mut request = Request::of("", "v1", "Service", "services", Scope::Namespaced);
        let service = |ips: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}});
        request.operation = if old.is_some() { Operation::Update } else { Operation::Create };
        (request.name, request.old, request.object) = ("s", old.map(service), Some(service(new)));
        let result = request.with(async |a| DenyServiceExternalIPs.validate(a).await).await;
        result.map_or_else(|status| format!("{} {status}", status.code), |()| "admitted".to_owned())
    }

    #[tokio::test]
    async fn new_external_addresses_are_refused() {
        assert_eq!(written(None, &[]).await, "admitted");
        assert_eq!(written(Some(&["1.2.3.4", "5.6.7.8"]), &["5.6.7.8"]).await, "admitted");
        assert_eq!(written(Some(&["1.2.3.4"]), &[]).await, "admitted");
        expect![[r#"403 services "s" is forbidden: Use of external IPs is denied by admission control"#]]
            .assert_eq(&written(None, &["1.2.3.4"]).await);
        assert!(written(Some(&["1.2.3.4"]), &["1.2.3.4", "5.6.7.8"]).await.starts_with("403 "));
    }
}
