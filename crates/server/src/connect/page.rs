//! The answer of a proxied server on its way to the client: its links are rewritten (`rewrite`), also in a page that is
//! compressed with gzip.
//!
//! Invariant: a page passes piece by piece; what a compressed piece may become is bounded by taking little of it at a time.

use super::rewrite::{Links, Page};
use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, MultiGzDecoder},
};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use kaji_outbound::reverse_proxy::{ProxiedBody, ProxiedBodyError};
use std::{
    io::Write,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Compressed bytes that are taken at a time; they become a thousand times as many at most.
const SLICE: usize = 1 << 10;

/// The answer with links that lead through the proxy.
pub fn rewritten(mut answer: Response<ProxiedBody>, links: &Links) -> Response<ProxiedBody> {
    let headers = answer.headers_mut();
    if let Some(location) = headers.get(header::LOCATION).cloned() {
        let made = location.to_str().ok().and_then(|url| links.rewritten(url));
        if let Some(made) = made.and_then(|made| HeaderValue::try_from(made).ok()) {
            headers.insert(header::LOCATION, made);
        }
        return answer;
    }
    let Some(coding) = coding(headers) else { return answer };
    headers.remove(header::CONTENT_LENGTH);
    let page = Page::new(links.clone());
    answer.map(|inner| Rewriting { inner, input: Bytes::new(), coding, page, ended: false }.boxed_unsync())
}

/// How a page is encoded; `None` if it is none, or in an encoding that is not read here.
fn coding(headers: &HeaderMap) -> Option<Coding> {
    let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).unwrap_or_default();
    let media = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default();
    if media.trim() != "text/html" {
        return None;
    }
    match text(header::CONTENT_ENCODING) {
        "" => Some(Coding::Identity),
        "gzip" => Some(Coding::Gzip(Box::new(Gzip {
            decoder: MultiGzDecoder::new(vec![]),
            encoder: GzEncoder::new(vec![], Compression::fast()),
        }))),
        _ => None,
    }
}

struct Gzip {
    decoder: MultiGzDecoder<Vec<u8>>,
    encoder: GzEncoder<Vec<u8>>,
}

enum Coding {
    Identity,
    Gzip(Box<Gzip>),
}

impl Coding {
    fn push(&mut self, page: &mut Page, piece: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Coding::Identity => Ok(page.push(piece)),
            Coding::Gzip(gzip) => {
                gzip.decoder.write_all(piece)?;
                gzip.decoder.flush()?;
                let plain = std::mem::take(gzip.decoder.get_mut());
                gzip.encoder.write_all(&page.push(&plain))?;
                // What a client waits for is not kept in the encoder.
                gzip.encoder.flush()?;
                Ok(std::mem::take(gzip.encoder.get_mut()))
            }
        }
    }

    fn finish(&mut self, page: &mut Page) -> std::io::Result<Vec<u8>> {
        match self {
            Coding::Identity => Ok(page.finish()),
            Coding::Gzip(gzip) => {
                gzip.decoder.try_finish()?;
                let plain = std::mem::take(gzip.decoder.get_mut());
                let mut last = page.push(&plain);
                last.extend(page.finish());
                gzip.encoder.write_all(&last)?;
                gzip.encoder.try_finish()?;
                Ok(std::mem::take(gzip.encoder.get_mut()))
            }
        }
    }
}

/// A page while it is rewritten.
struct Rewriting {
    inner: ProxiedBody,
    /// What has come and is not taken yet.
    input: Bytes,
    coding: Coding,
    page: Page,
    ended: bool,
}

impl Body for Rewriting {
    type Data = Bytes;
    type Error = ProxiedBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxiedBodyError>>> {
        let this = &mut *self;
        let broken = |error: std::io::Error| ProxiedBodyError(error.to_string());
        loop {
            if this.ended {
                return Poll::Ready(None);
            }
            let made = if this.input.is_empty() {
                match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        // Trailers say things about bytes that are not the same any more.
                        this.input = frame.into_data().unwrap_or_default();
                        continue;
                    }
                    Some(Err(error)) => {
                        this.ended = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => {
                        this.ended = true;
                        this.coding.finish(&mut this.page)
                    }
                }
            } else {
                let most = if matches!(this.coding, Coding::Identity) { usize::MAX } else { SLICE };
                let piece = this.input.split_to(this.input.len().min(most));
                this.coding.push(&mut this.page, &piece)
            };
            match made {
                Ok(made) if made.is_empty() => {}
                Ok(made) => return Poll::Ready(Some(Ok(Frame::data(made.into())))),
                Err(error) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(broken(error))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use http_body_util::Full;
    use std::io::Read;

    fn links() -> Links {
        Links { prefix: "/p/proxy".into(), server: "10.0.0.1:80".into(), requested: "api".into() }
    }

    fn answer(headers: &[(&'static str, &str)], body: impl Into<Bytes>) -> Response<ProxiedBody> {
        let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
        let mut response = Response::builder();
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        rewritten(response.body(body).unwrap(), &links())
    }

    fn bytes(response: Response<ProxiedBody>) -> Result<Bytes, String> {
        let collected = response.into_body().collect().now_or_never().unwrap();
        collected.map(http_body_util::Collected::to_bytes).map_err(|e| e.to_string())
    }

    #[test]
    fn pages_and_locations_are_rewritten() {
        let page = "<a href=/x>";
        let html = answer(&[("content-type", "text/html; charset=utf-8"), ("content-length", "11")], page);
        assert!(!html.headers().contains_key("content-length"));
        assert_eq!(bytes(html).unwrap(), "<a href=/p/proxy/x>");
        for content_type in ["text/plain", "application/xhtml+xml", ""] {
            assert_eq!(bytes(answer(&[("content-type", content_type)], page)).unwrap(), page);
        }
        let unread = [("content-type", "text/html"), ("content-encoding", "br")];
        assert_eq!(bytes(answer(&unread, page)).unwrap(), page);
        let moved = answer(&[("location", "http://10.0.0.1:80/login"), ("content-type", "text/html")], page);
        assert_eq!(moved.headers()["location"], "/p/proxy/login");
        let away = answer(&[("location", "https://other.example/")], "");
        assert_eq!(away.headers()["location"], "https://other.example/");
    }

    #[test]
    fn compressed_pages_stay_compressed() {
        let page = "<a href='/x'>".repeat(10_000);
        let mut encoder = GzEncoder::new(vec![], Compression::default());
        encoder.write_all(page.as_bytes()).unwrap();
        let packed = encoder.finish().unwrap();
        let headers = [("content-type", "text/html"), ("content-encoding", "gzip")];
        let passed = bytes(answer(&headers, packed.clone())).unwrap();
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(&passed[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, page.replace("/x", "/p/proxy/x"));
        // What is cut or no gzip at all breaks off.
        assert!(bytes(answer(&headers, packed[..packed.len() / 2].to_vec())).is_err());
        assert!(bytes(answer(&headers, "plain")).is_err());
    }
}
