//! A quota that is used up, and what uses the most of it.

use crate::{
    case::Case,
    report::{Cause, Sort},
};
use kaji_meta::{
    object::{obj_at, str_at},
    quantity::Quantity,
};
use serde_json::Value;

/// Which amounts of the quota are used up.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    exhausted(case.object)
        .into_iter()
        .map(|text| {
            Cause::new(Sort::Quota, "nothing more is admitted")
                .known(text)
                .fix("delete what is not needed, or raise spec.hard")
        })
        .collect()
}

/// `pods: used 10 of 10`, for each amount that is used up.
pub fn exhausted(quota: &Value) -> Vec<String> {
    let hard = obj_at(quota, &["status", "hard"]).or_else(|| obj_at(quota, &["spec", "hard"]));
    let amounts = hard.into_iter().flatten().filter_map(|(name, hard)| {
        let used = str_at(quota, &["status", "used", name]);
        let hard = hard.as_str()?;
        let full = Quantity::parse(used).ok()? >= Quantity::parse(hard).ok()?;
        full.then(|| format!("{name}: used {used} of {hard}"))
    });
    amounts.collect()
}
