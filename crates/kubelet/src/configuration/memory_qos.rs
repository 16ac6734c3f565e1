//! Protection and throttling of memory: `memoryReservationPolicy` and `memoryThrottlingFactor`.

use super::File;
use crate::pods::memory_qos::{MemoryQos, MemoryReservation};

pub(super) fn parse(file: &File) -> Result<MemoryQos, String> {
    let throttling_factor = file.memory_throttling_factor;
    if let Some(factor) = throttling_factor.filter(|factor| !(*factor > 0.0 && *factor <= 1.0)) {
        return Err(format!(
            "invalid configuration: memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"
        ));
    }
    let (none, tiered) = (MemoryReservation::None, MemoryReservation::Tiered);
    let reservation = match file.memory_reservation_policy.as_deref().unwrap_or_default() {
        "" => none,
        text if text == none.name() => none,
        text if text == tiered.name() => tiered,
        text => {
            return Err(format!(
                "invalid configuration: option {text:?} specified for memoryReservationPolicy. Valid options are {:?} or {:?}",
                none.name(),
                tiered.name()
            ));
        }
    };
    Ok(MemoryQos { reservation, throttling_factor })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rest: &str) -> Result<MemoryQos, String> {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{rest}");
        crate::configuration::parse(&text).map(|configuration| configuration.memory_qos)
    }

    #[test]
    fn memory_is_protected_and_throttled_as_configured() {
        assert_eq!(of(""), Ok(MemoryQos::default()));
        assert_eq!(of("memoryReservationPolicy: None"), Ok(MemoryQos::default()));
        let wanted = MemoryQos { reservation: MemoryReservation::Tiered, throttling_factor: Some(0.8) };
        assert_eq!(of("memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.8"), Ok(wanted));
    }

    #[test]
    fn policies_and_factors_that_are_none_are_refused() {
        let errors = [
            "memoryReservationPolicy: Guaranteed",
            "memoryThrottlingFactor: 0.0",
            "memoryThrottlingFactor: 1.5",
        ]
        .map(|text| of(text).unwrap_err());
        expect_test::expect![[r#"
            invalid configuration: option "Guaranteed" specified for memoryReservationPolicy. Valid options are "None" or "TieredReservation"
            invalid configuration: memoryThrottlingFactor 0 must be greater than 0 and less than or equal to 1.0
            invalid configuration: memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0"#]]
        .assert_eq(&errors.join("\n"));
    }
}
