//! What is served under which path and headers, and how large it is.

use super::*;
use expect_test::expect;

fn get(path: &str, headers: &[(HeaderName, &str)]) -> Option<Response<Bytes>> {
    let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
    serve(&Method::GET, path, &headers, || "n0nce".to_owned())
}

fn module() -> String {
    format!("{ROOT}/{DIGEST}/web/main.js")
}

#[test]
fn the_page_has_a_policy_and_its_nonce_and_is_not_kept() {
    let response = get("/console/", &[]).unwrap();
    let headers = response.headers();
    expect!["default-src 'none'; script-src 'self'; style-src 'self' 'nonce-n0nce'; img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"]
        .assert_eq(headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap());
    assert_eq!(headers[header::CACHE_CONTROL], "no-store");
    assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let text = String::from_utf8(response.into_body().to_vec()).unwrap();
    assert!(
        text.contains("n0nce") && text.contains(&format!("{DIGEST}/web/main.js")) && !text.contains("{{")
    );
    let policy = get("/console/oidc", &[]).unwrap().headers()[header::CONTENT_SECURITY_POLICY].clone();
    assert!(policy.to_str().unwrap().contains("connect-src 'self' https:;"));
}

#[test]
fn every_file_is_served_packed_and_unpacked_with_its_type_and_kept_for_ever() {
    assert!(FILES.len() > 20);
    for file in FILES {
        let path = format!("{ROOT}{}", address(file));
        let packed = get(&path, &[(header::ACCEPT_ENCODING, "br, gzip")]).unwrap();
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(packed.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
        assert_ne!(packed.headers()[header::CONTENT_TYPE], "application/octet-stream", "{path}");
        let plain = get(&path, &[(header::ACCEPT_ENCODING, "gzip;q=0")]).unwrap();
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let mut bytes = vec![];
        GzDecoder::new(&**packed.body()).read_to_end(&mut bytes).unwrap();
        assert!(!bytes.is_empty() && bytes == *plain.body(), "{path}");
        let kept = get(&path, &[(header::IF_NONE_MATCH, &format!("\"a\", W/{}", file.etag))]).unwrap();
        assert_eq!((kept.status(), kept.body().len()), (StatusCode::NOT_MODIFIED, 0));
    }
    let changed = get(&module(), &[(header::IF_NONE_MATCH, "\"another\"")]).unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
}

#[test]
fn other_paths_and_methods_lead_nowhere() {
    let redirect = get("/console", &[]).unwrap();
    assert_eq!(
        (redirect.status().as_u16(), &redirect.headers()[header::LOCATION]),
        (308, &"/console/".parse().unwrap())
    );
    for path in ["/consoles", "/api", "/", "", "/Console/"] {
        assert!(get(path, &[]).is_none(), "{path:?}");
    }
    let other_version = "/console/0000000000000000/web/main.js".to_owned();
    let above = format!("{ROOT}/{DIGEST}/../{DIGEST}/web/main.js");
    let escaped = format!("{ROOT}/{DIGEST}/web/%2e%2e/web/main.js");
    for path in
        [other_version, above, escaped, "/console//".into(), "/console/etc/passwd".into(), module() + "/"]
    {
        assert_eq!(get(&path, &[]).unwrap().status(), StatusCode::NOT_FOUND, "{path:?}");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let refused = serve(&method, "/console/", &HeaderMap::new(), || unreachable!("no page")).unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}

#[test]
fn all_files_take_less_than_a_megabyte() {
    let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum::<usize>() + INDEX.len() + OIDC.len();
    assert!(bytes < 1_000_000, "{bytes}");
}

/// The page's policy forbids both, silently.
#[test]
fn pages_have_no_inline_scripts_and_no_inline_styles() {
    for page in [INDEX, OIDC] {
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains("javascript:"));
        for script in page.split("<script").skip(1) {
            assert!(script.split('>').next().unwrap().contains(" src="), "{script}");
        }
    }
}
