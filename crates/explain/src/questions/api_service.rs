//! An extension server that is not available.

use crate::{
    case::{Case, condition_is, tell},
    paths::path,
    reader::Found,
    report::{Cause, Sort},
};
use kaji_meta::object::{at, str_at};

/// Why the API is not available.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let Some(condition) = condition_is(case.object, "Available", "False") else { return vec![] };
    let mut cause = Cause::new(Sort::Webhook, "its server is not available").known(tell(condition));
    if let Some(failure) = super::decisions::of_api_service(case).await {
        cause = cause.known(format!("the last request to it failed {failure}"));
    }
    let Some(service) = at(case.object, &["spec", "service"]) else { return vec![cause] };
    let (namespace, name) = (str_at(service, &["namespace"]), str_at(service, &["name"]));
    let found = case.reader.get(&path("v1", namespace, "services", name)).await;
    let cause = match found {
        Found::Absent => cause.known(format!("Service {namespace}/{name} does not exist")).fix(format!(
            "install its server; if it is gone for good: kubectl delete apiservice {}",
            case.name()
        )),
        _ => cause.fix(format!("kaji why service/{name} -n {namespace}")),
    };
    vec![cause.inferred("until then its kinds are not served, and namespaces cannot be deleted")]
}
