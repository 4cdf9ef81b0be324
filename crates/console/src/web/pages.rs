//! What is at which path, who may see it, and what browsers are told about all of it.

use super::accept::From;
use super::gate::{Refusal, SESSION_LIFE};
use super::{Site, api};
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderName, LOCATION, REFERRER_POLICY,
    RETRY_AFTER, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, body};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The cookie of a session. Its name has browsers refuse it from anything but this very host over TLS.
const COOKIE_NAME: &str = "__Host-ashlar-console";
/// LIMIT: of what a browser may send with a request, and for how long it may be on its way.
const BODY_BYTES_MAX: usize = 1024;
const BODY_MAX: Duration = Duration::from_secs(5);
/// Nothing from elsewhere, nothing inline, and in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Everything that can be asked for.
pub(super) fn router(site: Arc<Site>) -> Router {
    let inside = Router::new()
        .route("/", get(|| async { html(include_str!("../../page/index.html")) }))
        .nest("/api/v1", api::router())
        .layer(from_fn_with_state(site.clone(), require_session));
    Router::new()
        .merge(inside)
        .route("/login", get(|| async { html(include_str!("../../page/login.html")) }).post(log_in))
        .route("/logout", post(log_out))
        .route(
            "/console.css",
            get(|| async { text("text/css; charset=utf-8", include_str!("../../page/console.css")) }),
        )
        .route("/console.js", get(|| async { script(include_str!("../../page/console.js")) }))
        .route("/login.js", get(|| async { script(include_str!("../../page/login.js")) }))
        .route("/icon.svg", get(|| async { text("image/svg+xml", include_str!("../../page/icon.svg")) }))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there is nothing at this path") })
        .with_state(site)
        .layer(from_fn(say_what_browsers_may))
}

fn text(kind: &'static str, content: &'static str) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], content).into_response()
}

fn html(content: &'static str) -> Response {
    text("text/html; charset=utf-8", content)
}

fn script(content: &'static str) -> Response {
    text("text/javascript; charset=utf-8", content)
}

/// An error, for programs and people.
pub(super) fn refuse(status: StatusCode, why: &str) -> Response {
    let body = json!({ "error": why }).to_string();
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

async fn say_what_browsers_may(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The secret of the session that a request belongs to, if it says one.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let named = cookies.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    named.filter(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value).next()
}

async fn require_session(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    if secret(request.headers()).is_some_and(|secret| site.gate.knows(secret)) {
        return next.run(request).await;
    }
    if request.uri().path().starts_with("/api/") {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "log in first: `ashlar console login` on the machine of the console",
        );
    }
    go_to("/login")
}

fn go_to(place: &'static str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, HeaderValue::from_static(place))]).into_response()
}

/// Whether a page of somebody else has sent the browser here.
fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

/// The code in the form of the page, `code=...`.
async fn code_of(body: Body) -> Option<String> {
    let bytes: body::Bytes = timeout(BODY_MAX, to_bytes(body, BODY_BYTES_MAX)).await.ok()?.ok()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    let code = text.split('&').find_map(|field| field.strip_prefix("code="))?;
    // Of hexadecimal digits nothing is written otherwise in a form, but spaces around what was pasted are.
    Some(code.replace(['+', ' '], "").replace("%0A", "").replace("%0D", ""))
}

async fn log_in(
    State(site): State<Arc<Site>>,
    Extension(From(from)): Extension<From>,
    request: Request,
) -> Response {
    if is_foreign(request.headers()) {
        return refuse(StatusCode::FORBIDDEN, "only the page of the console logs in");
    }
    let Some(code) = code_of(request.into_body()).await else {
        return refuse(StatusCode::BAD_REQUEST, "that is no form with a code");
    };
    match site.gate.enter(from, &code) {
        Ok(secret) => {
            tracing::info!(%from, "somebody has logged in to the console");
            with_cookie(go_to("/"), &secret, SESSION_LIFE)
        }
        Err(Refusal::Wrong) => {
            tracing::warn!(%from, "a wrong code for the console, or one that was used or is too old");
            let page = include_str!("../../page/refused.html");
            (StatusCode::FORBIDDEN, html(page)).into_response()
        }
        Err(Refusal::Later) => {
            let mut response =
                refuse(StatusCode::TOO_MANY_REQUESTS, "too many wrong codes from there: wait for a minute");
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
            response
        }
    }
}

async fn log_out(State(site): State<Arc<Site>>, request: Request) -> Response {
    if is_foreign(request.headers()) {
        return refuse(StatusCode::FORBIDDEN, "only the page of the console logs out");
    }
    if let Some(secret) = secret(request.headers()) {
        site.gate.leave(secret);
    }
    with_cookie(go_to("/login"), "", Duration::ZERO)
}

fn with_cookie(mut response: Response, secret: &str, life: Duration) -> Response {
    let cookie = format!(
        "{COOKIE_NAME}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={}",
        life.as_secs()
    );
    // Digits and letters: always a header.
    if let Ok(mut value) = HeaderValue::from_str(&cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_found_among_others_and_nothing_else_is() {
        let of = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, line.parse().unwrap());
            }
            secret(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["a=b; __Host-ashlar-console=s; c=d"]), Some("s".into()));
        assert_eq!(of(&["a=b", "__Host-ashlar-console=s"]), Some("s".into()));
        for wrong in ["ashlar-console=s", "x__Host-ashlar-console=s", "__Host-ashlar-console", ""] {
            assert_eq!(of(&[wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn pages_need_nothing_from_elsewhere_and_nothing_inline() {
        for page in [
            include_str!("../../page/index.html"),
            include_str!("../../page/login.html"),
            include_str!("../../page/refused.html"),
            include_str!("../../page/console.js"),
            include_str!("../../page/login.js"),
            include_str!("../../page/console.css"),
        ] {
            for wrong in [
                "//cdn",
                "https://",
                "style=",
                "onclick",
                "onload",
                "<script>",
                "<style",
                "innerHTML",
                "eval(",
            ] {
                assert!(!page.contains(wrong), "{wrong}");
            }
        }
    }
}
