//! A pod that cannot be evicted: the budget that refuses, with its arithmetic.
//!
//! Source: `createEviction` of the API server; only a pod of which an eviction was refused, or with a node that is cordoned, is looked at.

use super::{budget, refusals};
use crate::{
    case::{Case, is_finished},
    paths,
    report::{Cause, Sort, some},
};
use kaji_meta::{
    labels::Selector,
    object::{self, at, bool_at, str_at},
};
use serde_json::Value;

const NAMED: usize = 5;

/// Why the pod cannot be evicted, if that was tried or is likely to be.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    let node = str_at(case.object, &["spec", "nodeName"]);
    let is_gone = is_finished(case.object) || object::deletion_timestamp(case.object).is_some();
    if !case.is_first() || node.is_empty() || is_gone {
        return vec![];
    }
    let mut evidence = vec![];
    if refusals::by_rule(case, "DisruptionBudget").await {
        evidence.push("an eviction of it was refused".to_owned());
    }
    let found = case.reader.get(&paths::path("v1", "", "nodes", node)).await;
    if found.object().and_then(|node| bool_at(node, &["spec", "unschedulable"])) == Some(true) {
        evidence.push(format!("its node {node} is cordoned, as one that is drained"));
    }
    if evidence.is_empty() {
        return vec![];
    }
    let all = case.all_beside("policy/v1", "poddisruptionbudgets").await.unwrap_or_default();
    let selects = |budget: &&Value| {
        let selector = at(budget, &["spec", "selector"]).and_then(|s| Selector::from_label_selector(s).ok());
        selector.is_some_and(|selector| selector.matches_object(case.object))
    };
    let budgets: Vec<&Value> = all.iter().filter(selects).collect();
    let new = |summary: &str| evidence.iter().fold(Cause::new(Sort::Disruption, summary), Cause::known);
    if budgets.len() > 1 {
        let names: Vec<&str> = budgets.iter().map(|budget| object::name(budget)).collect();
        let cause = new("it cannot be evicted: several budgets select it")
            .known(format!("PodDisruptionBudgets that select it: {}", some(&names, NAMED)));
        return vec![cause.fix("let one budget select each pod")];
    }
    let mut causes = vec![];
    for budget in budgets {
        let Some(of_budget) = case.other(budget) else { continue };
        for found in budget::causes(&of_budget).await {
            let mut cause = new(&format!("it cannot be evicted: {} allows none", of_budget.title()));
            cause.chain.extend(found.chain);
            cause.fixes.extend(found.fixes);
            causes.push(cause);
        }
    }
    causes
}
