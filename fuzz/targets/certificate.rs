//! Client certificates.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(user) = kaji_server::from_certificate(data) {
        assert!(!user.name.is_empty());
    }
});
