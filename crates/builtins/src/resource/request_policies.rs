//! Rules for the amounts that may be requested of a device's capacity. Source: upstream's `pkg/apis/resource/validation`.

use super::rules::limited;
use crate::shared::{rules::quantity, value::Fields};
use kaji_meta::{
    Quantity,
    field::{Error, ErrorList, Path},
};
use serde_json::Value;

/// Amounts that may be requested of a capacity.
const MAX_OPTIONS: usize = 10;

/// What may be requested of a capacity, which only a device that is allocated more than once has.
pub(super) fn request_policy(errs: &mut ErrorList, path: &Path, capacity: &Value, shared: bool) {
    let (at, policy) = (path.child("requestPolicy"), capacity.at("requestPolicy"));
    if policy.is_null() {
        return;
    }
    if !shared {
        errs.push(Error::forbidden(&at, "allowMultipleAllocations must be true"));
        return;
    }
    let (values, range) = (policy.list("validValues"), policy.at("validRange"));
    if !values.is_empty() && !range.is_null() {
        let text = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
        errs.push(Error::forbidden(&at, text));
        return;
    }
    let most = quantity(capacity.at("value"));
    let default = policy.has("default").then(|| quantity(policy.at("default")));
    let field = match (values.is_empty(), range.is_null()) {
        (false, _) => "validValues",
        (_, false) => "validRange",
        _ => return,
    };
    match default {
        None => {
            let text = format!("required when {field} is defined");
            errs.push(Error::required(&at.child("default"), text));
        }
        Some(default) if values.is_empty() => valid_range(errs, &at.child(field), range, (&default, &most)),
        Some(default) => valid_values(errs, &at.child(field), values, (&default, &most)),
    }
}

/// A quantity as a number: whole, or in thousandths and less.
fn digits(quantity: &Quantity) -> String {
    let exact = |decimals: &(usize, i32)| quantity.round_up(-decimals.1).1;
    match [(0, 0), (3, 3), (6, 6)].into_iter().find(exact).unwrap_or((9, 9)) {
        (0, _) => quantity.value().to_string(),
        (decimals, _) => format!("{:.decimals$}", quantity.as_f64()),
    }
}

fn valid_values(
    errs: &mut ErrorList,
    path: &Path,
    values: &[Value],
    (default, most): (&Quantity, &Quantity),
) {
    let options: Vec<Quantity> = values.iter().map(quantity).collect();
    for (i, pair) in options.windows(2).enumerate() {
        if let [before, after] = pair
            && before > after
        {
            let text = "values must be sorted in ascending order";
            errs.push(Error::invalid(&path.index(i + 1), after.to_string(), text));
        }
    }
    let mut found = false;
    if limited(errs, path, values, MAX_OPTIONS) {
        for (i, option) in options.iter().enumerate() {
            if option > most {
                let text = format!("option is larger than capacity value: {most}");
                errs.push(Error::invalid(&path.index(i), option.to_string(), text));
            }
            found |= option == default;
        }
        for (i, option) in options.iter().enumerate() {
            if options.iter().take(i).any(|o| o == option) {
                errs.push(Error::duplicate(&path.index(i), digits(option)));
            }
        }
    }
    if !found {
        let text = "default value is not valid according to the requestPolicy";
        errs.push(Error::invalid(path, default.to_string(), text));
    }
}

fn valid_range(errs: &mut ErrorList, path: &Path, range: &Value, (default, most): (&Quantity, &Quantity)) {
    if !range.has("min") {
        errs.push(Error::required(&path.child("min"), "required when validRange is defined"));
        return;
    }
    let of = |field: &str| range.has(field).then(|| quantity(range.at(field)));
    let (min, max, step) = (quantity(range.at("min")), of("max"), of("step"));
    let mut bad = |field: &str, shown: &Quantity, text: String| {
        errs.push(Error::invalid(&path.child(field), shown.to_string(), text));
    };
    if min > *most {
        bad("min", &min, format!("min is larger than capacity value: {most}"));
    }
    if *default < min {
        bad("default", default, format!("default is less than min: {min}"));
    }
    if let Some(max) = &max {
        if min > *max {
            bad("max", &min, format!("min is larger than max: {max}"));
        }
        if max > most {
            bad("max", max, format!("max is larger than capacity value: {most}"));
        }
        if default > max {
            bad("default", default, format!("default is more than max: {max}"));
        }
    }
    let bounds =
        [("default", Some(default)), ("min", Some(&min)), ("max", max.as_ref()), ("step", step.as_ref())];
    let bounds: Vec<(&str, &Quantity)> =
        bounds.into_iter().filter_map(|(name, q)| Some((name, q?))).collect();
    let fractions = bounds.iter().any(|(_, q)| !q.round_up(0).1);
    let before = errs.len();
    if fractions {
        for (name, q) in bounds.iter().filter(|(_, q)| Quantity::milli(q.milli_value(), q.format()) != **q) {
            let text = "value cannot be represented as a milli value";
            errs.push(Error::invalid(&path.child(name), q.to_string(), text));
        }
    }
    if let Some(step) = step.as_ref().filter(|_| errs.len() == before) {
        steps(errs, path, (step, fractions, most), &bounds);
    }
}

/// A range's steps: the default and the maximum are whole steps from the minimum. Fractions are counted in thousandths.
fn steps(
    errs: &mut ErrorList,
    path: &Path,
    (step, fractions, most): (&Quantity, bool, &Quantity),
    bounds: &[(&str, &Quantity)],
) {
    let bound = |name: &str| bounds.iter().find(|(other, _)| *other == name).map(|(_, q)| *q);
    let Some(min) = bound("min") else { return };
    let at = path.child("step");
    if step.sign() <= 0 {
        errs.push(Error::invalid(&at, step.to_string(), "must be greater than zero"));
        return;
    }
    let one = min.add(step);
    if one > *most {
        let text = format!("one step {one} is larger than capacity value: {most}");
        errs.push(Error::invalid(&at, step.to_string(), text));
    }
    let before = errs.len();
    for (name, q) in bounds.iter().filter(|_| !fractions) {
        let text = match q.sign() {
            ..0 => "must be greater than or equal to 0",
            _ if q.cmp_i64(i64::MAX).is_gt() => "must not be larger than 9223372036854775807",
            _ => continue,
        };
        errs.push(Error::invalid(&path.child(name), q.to_string(), text));
    }
    if errs.len() > before {
        return;
    }
    let count = |q: &Quantity| i128::from(if fractions { q.milli_value() } else { q.value() });
    for value in ["default", "max"].into_iter().filter_map(bound) {
        if (count(value) - count(min)) % count(step) != 0 {
            let text = format!("value is not a multiple of a given step ({step}) from ({min})");
            errs.push(Error::invalid(&at, value.to_string(), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::resource::devices::device;
    use expect_test::expect;
    use kaji_meta::field::Path;
    use serde_json::{Value, json};

    fn errors(object: Value) -> String {
        let mut errs = vec![];
        device(&mut errs, &Path::new("d"), &object, None, false);
        errs.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn request_policies_fit_their_capacity() {
        let policy = |shared: bool, policy: Value| {
            errors(json!({"name": "d", "allowMultipleAllocations": shared,
                "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}}}))
        };
        let out = [
            policy(false, json!({"default": "1Gi"})),
            policy(true, json!({"default": "1Gi"})),
            policy(true, json!({"default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi"}})),
            policy(true, json!({"validValues": ["1Gi"]})),
            policy(true, json!({"default": "3Gi", "validValues": ["2Gi", "1Gi", "1Gi", "11Gi"]})),
            policy(true, json!({"default": "1Gi", "validRange": {}})),
            policy(
                true,
                json!({"default": "1Gi", "validRange": {"min": "2Gi", "max": "11Gi", "step": "9Gi"}}),
            ),
            policy(
                true,
                json!({"default": "4Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "2Gi"}}),
            ),
            policy(
                true,
                json!({"default": "3Gi", "validRange": {"min": "2Gi", "max": "1Gi", "step": "2Gi"}}),
            ),
        ];
        expect![[r#"
            d.capacity[memory].requestPolicy: Forbidden: allowMultipleAllocations must be true
            --

            --
            d.capacity[memory].requestPolicy: Forbidden: exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time
            --
            d.capacity[memory].requestPolicy.default: Required value: required when validValues is defined
            --
            d.capacity[memory].requestPolicy.validValues[1]: Invalid value: "1Gi": values must be sorted in ascending order
            d.capacity[memory].requestPolicy.validValues[3]: Invalid value: "11Gi": option is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validValues[2]: Duplicate value: "1073741824"
            d.capacity[memory].requestPolicy.validValues: Invalid value: "3Gi": default value is not valid according to the requestPolicy
            --
            d.capacity[memory].requestPolicy.validRange.min: Required value: required when validRange is defined
            --
            d.capacity[memory].requestPolicy.validRange.default: Invalid value: "1Gi": default is less than min: 2Gi
            d.capacity[memory].requestPolicy.validRange.max: Invalid value: "11Gi": max is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "9Gi": one step 11Gi is larger than capacity value: 10Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "1Gi": value is not a multiple of a given step (9Gi) from (2Gi)
            --

            --
            d.capacity[memory].requestPolicy.validRange.max: Invalid value: "2Gi": min is larger than max: 1Gi
            d.capacity[memory].requestPolicy.validRange.default: Invalid value: "3Gi": default is more than max: 1Gi
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "3Gi": value is not a multiple of a given step (2Gi) from (2Gi)
            d.capacity[memory].requestPolicy.validRange.step: Invalid value: "1Gi": value is not a multiple of a given step (2Gi) from (2Gi)"#]].assert_eq(&out.join("\n--\n"));
    }

    #[test]
    fn request_policies_may_have_fractions_of_thousandths() {
        let policy = |policy: Value| {
            errors(json!({"name": "d", "allowMultipleAllocations": true,
                "capacity": {"cores": {"value": "4", "requestPolicy": policy}}}))
        };
        let range = |default: &str, range: Value| policy(json!({"default": default, "validRange": range}));
        let out = [
            policy(json!({"default": "0.5", "validValues": ["500m", "750m", "0.75", "1"]})),
            range("600m", json!({"min": "100m", "max": "1100m", "step": "250m"})),
            range("500m", json!({"min": "1", "step": "1"})),
            range("350m", json!({"min": "100m", "step": "1u"})),
            range("350m", json!({"min": "100m", "max": "1100m", "step": "250m"})),
            range("1", json!({"min": "1", "step": "0"})),
            range("1", json!({"min": "-1", "step": "1"})),
        ];
        expect![[r#"
            d.capacity[cores].requestPolicy.validValues[2]: Duplicate value: "0.750"
            --

            --
            d.capacity[cores].requestPolicy.validRange.default: Invalid value: "500m": default is less than min: 1
            d.capacity[cores].requestPolicy.validRange.step: Invalid value: "500m": value is not a multiple of a given step (1) from (1)
            --
            d.capacity[cores].requestPolicy.validRange.step: Invalid value: "1u": value cannot be represented as a milli value
            --

            --
            d.capacity[cores].requestPolicy.validRange.step: Invalid value: "0": must be greater than zero
            --
            d.capacity[cores].requestPolicy.validRange.min: Invalid value: "-1": must be greater than or equal to 0"#]].assert_eq(&out.join("\n--\n"));
    }
}
