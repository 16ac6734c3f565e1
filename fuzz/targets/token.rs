//! Tokens, and the keys that verify them: what parses is bounded, no forged signature verifies, and a key that is read
//! reads back as the same.

#![no_main]

use jiff::Timestamp;
use kaji_auth::authn::{KeySet, PublicKey, SigningKey, Token};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

/// A fixed public key to verify with.
static OURS: LazyLock<PublicKey> = LazyLock::new(|| {
    let pem = "-----BEGIN PUBLIC KEY-----\n\
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAELTvW+6ne+24cvI9IOHjyzTvQSo/n\n\
        l8tT8l8t12nERNl7UZac/pDg/SUNXPP3+YYhBpiXJCk/Sn0Bt1weilsuBw==\n\
        -----END PUBLIC KEY-----\n";
    PublicKey::all_from_pem(pem).expect("a key").remove(0)
});

fuzz_target!(|text: &str| {
    if let Some(token) = Token::parse(text) {
        for now in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            let _ = token.claims.check_times(now);
        }
        let _ = token.claims.audiences();
        assert!(!token.verify([&*OURS].into_iter()), "a forged signature");
        let ours = token.key_id.is_empty() || token.key_id == OURS.id();
        assert_eq!(KeySet::new([OURS.clone()]).candidates(&token.key_id).count(), usize::from(ours));
    }
    if let Ok(value) = serde_json::from_str(text) {
        for key in KeySet::from_jwks(&value).all().chain(PublicKey::from_jwk(&value).as_ref()) {
            assert_eq!(PublicKey::from_jwk(&key.jwk()).as_ref(), Some(key));
            let _ = key.verifies("RS256", b"message", b"signature");
        }
    }
    for key in PublicKey::all_from_pem(text).unwrap_or_default() {
        assert_eq!(PublicKey::from_spki(&key.spki()).as_ref(), Ok(&key));
    }
    let _ = SigningKey::from_pem(text);
    if let Ok(key) = PublicKey::from_spki(text.as_bytes()) {
        assert_eq!(PublicKey::from_spki(&key.spki()), Ok(key));
    }
});
