//! The certificates that a signer issued, and what its status says of them.
//!
//! Invariant: the checks have upstream's order, and all but those of names end with the first fault.

use super::{proof, status_path};
use crate::{certificates::pem::blocks, shared::value::Fields};
use jiff::{SignedDuration, Timestamp};
use kaji_auth::public_keys::PublicKey;
use kaji_meta::field::{Error, ErrorList};
use kaji_resource::Ctx;
use kaji_schema::validate::mail_address;
use serde_json::Value;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

const MAX_CHAIN: usize = 100 * 1024;
const CHAIN: &str = "certificateChain";
/// The most by which clocks of signers and servers may differ.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The time between a renewal and either end of a certificate's validity, at least.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

/// Checks a status that says that certificates were issued, against the stored request.
pub(super) fn check(errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, old: &Value) {
    if let Err(error) = chain(errs, ctx, new, old) {
        errs.push(error);
    }
}

fn chain(errs: &mut ErrorList, ctx: &Ctx<'_>, new: &Value, old: &Value) -> Result<(), Error> {
    let (status, at) = (new.at("status"), status_path(CHAIN));
    let text = status.text(CHAIN);
    if text.len() > MAX_CHAIN {
        return Err(Error::too_long(&at, "", MAX_CHAIN));
    }
    let bad = |why: &str| Error::invalid(&at, text, why);
    let all = blocks(text.as_bytes());
    let Some((leaf, rest)) = all.split_first() else {
        return Err(bad("issued certificate chain must contain at least one certificate"));
    };
    if leaf.label != "CERTIFICATE" {
        return Err(bad("issued certificate chain must consist entirely of CERTIFICATE PEM blocks"));
    }
    let leaf = parse(&leaf.contents).ok_or_else(|| bad("leaf certificate does not parse as valid X.509"))?;
    names(errs, &leaf);
    let requested = proof::requested_key(old.at("spec"))?;
    let other = PublicKey::parse(leaf.public_key()).is_none_or(|key| key != requested);
    if other && !matches!(requested, PublicKey::Other | PublicKey::Unknown) {
        return Err(bad("leaf certificate was not issued to the requested public key"));
    }
    let times = Times::of(errs, status);
    let Some(times) = times.filter(|_| errs.is_empty()) else { return Ok(()) };
    times.check(ctx.now, &leaf, new.at("spec").int("maxExpirationSeconds"))?;
    for block in rest {
        if block.label != "CERTIFICATE" {
            // As upstream spells it.
            return Err(bad("issued certificate chain must consist entirely of CERTFICATE PEM blocks"));
        }
        if parse(&block.contents).is_none() {
            return Err(bad("intermediate certificate does not parse as valid X.509"));
        }
    }
    Ok(())
}

/// A certificate with a key and names that are well-formed, and nothing behind it.
fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    PublicKey::parse(certificate.public_key())?;
    let names = certificate.subject_alternative_name().ok()?;
    let malformed = names.is_some_and(|names| {
        names.value.general_names.iter().any(|name| matches!(name, GeneralName::Invalid(..)))
    });
    (rest.is_empty() && !malformed).then_some(certificate)
}

/// Checks the names that a certificate is for.
fn names(errs: &mut ErrorList, leaf: &X509Certificate<'_>) {
    let names = leaf.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let mut bad = |value: &str, text: &str| errs.push(Error::invalid(&status_path(CHAIN), value, text));
    for name in names {
        let GeneralName::DNSName(name) = name else { continue };
        if name.is_empty() {
            bad(name, "leaf certificate should not contain empty DNSName");
        }
        if name.contains("..") {
            bad(name, "leaf certificate's DNSName should not contain '..'");
        }
        if name.starts_with('.') || name.ends_with('.') {
            bad(name, "leaf certificate's DNSName should not start or end with '.'");
        }
    }
    for name in names {
        if let GeneralName::RFC822Name(name) = name
            && !mail_address(name)
        {
            bad(name, "leaf certificate should not contain invalid EmailAddress");
        }
    }
}

/// The times of a status.
struct Times {
    not_before: Timestamp,
    not_after: Timestamp,
    begin_refresh: Timestamp,
}

impl Times {
    /// `None`, and errors, if one is absent.
    fn of(errs: &mut ErrorList, status: &Value) -> Option<Times> {
        let consistent = "must be present and consistent with the issued certificate";
        let between = "must be present and in the range [notbefore+10min, notafter-10min]";
        let mut time = |field: &str, text: &str| {
            let time = status.text(field).parse().ok();
            if time.is_none() {
                errs.push(Error::required(&status_path(field), text));
            }
            time
        };
        let (not_before, not_after) = (time("notBefore", consistent), time("notAfter", consistent));
        let begin_refresh = time("beginRefreshAt", between)?;
        Some(Times { not_before: not_before?, not_after: not_after?, begin_refresh })
    }

    fn check(&self, now: Timestamp, leaf: &X509Certificate<'_>, max: i64) -> Result<(), Error> {
        let bad = |field: &str, time: Timestamp, text: &str| {
            Err(Error::invalid(&status_path(field), time.to_string(), text))
        };
        let (from, to) = (leaf.validity().not_before.timestamp(), leaf.validity().not_after.timestamp());
        let is = |time: Timestamp, second: i64| Timestamp::from_second(second).is_ok_and(|at| at == time);
        if !is(self.not_before, from) {
            let text = "must be set to the NotBefore time encoded in the leaf certificate";
            return bad("notBefore", self.not_before, text);
        }
        if self.not_before.duration_since(now).abs() >= SKEW {
            let text = "must be set to within 5 minutes of kube-apiserver's current time";
            return bad("notBefore", self.not_before, text);
        }
        if !is(self.not_after, to) {
            let text = "must be set to the NotAfter time encoded in the leaf certificate";
            return bad("notAfter", self.not_after, text);
        }
        self.check_lifetime(max)?;
        if self.begin_refresh.duration_since(self.not_before) < MARGIN {
            let text = "must be at least 10 minutes after status.notBefore";
            return bad("beginRefreshAt", self.begin_refresh, text);
        }
        if self.not_after.duration_since(self.begin_refresh) < MARGIN {
            let text = "must be at least 10 minutes before status.notAfter";
            return bad("beginRefreshAt", self.begin_refresh, text);
        }
        Ok(())
    }

    fn check_lifetime(&self, max: i64) -> Result<(), Error> {
        let lifetime = self.not_after.duration_since(self.not_before);
        let bad = |text: String| {
            // A `time.Duration` prints as its nanoseconds, and has at most 292 years.
            let nanoseconds = lifetime.as_nanos().clamp(i64::MIN.into(), i64::MAX.into());
            let value = i64::try_from(nanoseconds).unwrap_or_default();
            Err(Error::invalid(&status_path(CHAIN), value, text))
        };
        if lifetime < SignedDuration::from_hours(1) {
            return bad("leaf certificate lifetime must be >= 1 hour".to_owned());
        }
        if lifetime > SignedDuration::from_secs(max) {
            return bad(format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({max})"));
        }
        Ok(())
    }
}
