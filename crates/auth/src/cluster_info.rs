//! Signatures of the public `cluster-info` ConfigMap: detached JWS (RFC 7515, appendix F; HS256) with the secret of a
//! bootstrap token as the key. A node that has the token verifies with them that the server and the certificate authority in
//! the ConfigMap are the right ones.
//!
//! Source: `k8s.io/cluster-bootstrap/token/jws`.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;

fn header(token_id: &str) -> String {
    // Token ids are lower case letters and digits, which need no escapes.
    URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"HS256\",\"kid\":\"{token_id}\"}}"))
}

fn signed_text(header: &str, content: &str) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(content))
}

fn hmac_key(token_secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token_secret.as_bytes())
}

/// The detached signature of a content.
pub fn sign(content: &str, token_id: &str, token_secret: &str) -> String {
    let header = header(token_id);
    let tag = hmac::sign(&hmac_key(token_secret), signed_text(&header, content).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Whether a detached signature of a content was made with a token.
pub fn verify(detached: &str, content: &str, token_id: &str, token_secret: &str) -> bool {
    let header = header(token_id);
    let tag = detached.strip_prefix(&header).and_then(|rest| rest.strip_prefix(".."));
    let Some(tag) = tag.and_then(|tag| URL_SAFE_NO_PAD.decode(tag).ok()) else { return false };
    hmac::verify(&hmac_key(token_secret), signed_text(&header, content).as_bytes(), &tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's vectors.
    #[test]
    fn verifies_published_signatures_and_rejects_changed_ones() {
        let content = "Hello from the other side. I must have called a thousand times.";
        let header = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9";
        for (content, secret, tag) in [
            (content, "my voice is my passcode", "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"),
            ("", "my voice is my passcode", "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
            (content, "", "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        ] {
            let detached = format!("{header}..{tag}");
            assert_eq!(sign(content, "joshua", secret), detached);
            assert!(verify(&detached, content, "joshua", secret));
            for (other, content, id, secret) in [
                (&*detached, "another", "joshua", secret),
                (&detached, content, "joshua", "another"),
                (&detached, content, "another", secret),
                (&detached[..detached.len() - 4], content, "joshua", secret),
                (header, content, "joshua", secret),
                ("", content, "joshua", secret),
                (&format!("{header}..!"), content, "joshua", secret),
                (&format!("{header}.AA.{tag}"), content, "joshua", secret),
            ] {
                assert!(!verify(other, content, id, secret), "{other}");
            }
        }
    }
}
