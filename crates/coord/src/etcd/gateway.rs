//! Requests to the JSON gateway of etcd's members, one at a time: each member in turn, each attempt and the whole bounded.

use super::{ATTEMPT_SECONDS_MAX, CALL_SECONDS_MAX, failure::Failure, tls};
use crate::CoordError;
use crate::etcd::EtcdSettings;
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::tls::{RootCerts, TlsConfig};

/// Longest answer, bytes.
// LIMIT: the largest value in base64 is 1.4 MiB; who answers with more is not holding our value.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Between two rounds over all members, and after a transaction that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// When a call has to come to its end.
pub(super) struct Deadline(Instant);

impl Deadline {
    /// For a call that begins now.
    pub(super) fn of_call() -> Deadline {
        Deadline(Instant::now() + Duration::from_secs(CALL_SECONDS_MAX))
    }

    /// Whether so many attempts, each taking as long as one may, still end in time.
    pub(super) fn has_time_for(&self, attempts: u64) -> bool {
        self.0.saturating_duration_since(Instant::now())
            >= Duration::from_secs(attempts * ATTEMPT_SECONDS_MAX)
    }

    /// Gives etcd a moment to become better.
    pub(super) fn pause(&self) {
        std::thread::sleep(PAUSE.min(self.0.saturating_duration_since(Instant::now())));
    }
}

/// See the module.
pub(super) struct Gateway {
    agent: ureq::Agent,
    /// Without a slash at the end; never none.
    endpoints: RwLock<Arc<[String]>>,
    has_tls: bool,
    has_client_certificate: bool,
    /// Which endpoint to begin with: the last one that answered.
    preferred: AtomicUsize,
}

impl Gateway {
    pub(super) fn new(settings: &EtcdSettings) -> Result<Gateway, CoordError> {
        let has_tls = settings.tls.is_some();
        let endpoints = RwLock::new(checked_endpoints(&settings.endpoints, has_tls)?);
        let tls = match &settings.tls {
            Some(given) => tls::configuration(given)?,
            // Never used: without TLS settings every endpoint is http. The client's own default panics where it is.
            None => TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[])).build(),
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(ATTEMPT_SECONDS_MAX)))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Not through whatever `http_proxy` says: members are near, and the proxy would see the cluster's state.
            .proxy(None)
            .user_agent("ashlar")
            .tls_config(tls)
            .build()
            .new_agent();
        let has_client_certificate = settings.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        Ok(Gateway { agent, endpoints, has_tls, has_client_certificate, preferred: AtomicUsize::new(0) })
    }

    pub(super) fn endpoints(&self) -> Arc<[String]> {
        self.endpoints.read().clone()
    }

    /// Has other members be asked from now on.
    pub(super) fn set_endpoints(&self, endpoints: &[String]) -> Result<(), CoordError> {
        let endpoints = checked_endpoints(endpoints, self.has_tls)?;
        *self.endpoints.write() = endpoints;
        Ok(())
    }

    /// Asks each member in turn, again and again, until one answers, none will ever, or the time is over.
    ///
    /// Only for requests that change nothing. The failures are the last of each member that was asked.
    pub(super) fn ask_any<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &str,
        deadline: &Deadline,
    ) -> Result<T, Vec<Failure>> {
        let endpoints = self.endpoints();
        let mut failures: Vec<Option<Failure>> = endpoints.iter().map(|_| None).collect();
        loop {
            let first = self.preferred.load(Ordering::Relaxed);
            for at in (0..endpoints.len()).map(|turn| (first + turn) % endpoints.len()) {
                if !deadline.has_time_for(1) {
                    return Err(failures.into_iter().flatten().collect());
                }
                match self.ask(&endpoints[at], path, body) {
                    Ok(answer) => {
                        self.preferred.store(at, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(failure) => failures[at] = Some(failure),
                }
            }
            if failures.iter().flatten().all(|failure| failure.is_final) {
                return Err(failures.into_iter().flatten().collect());
            }
            deadline.pause();
        }
    }

    /// Asks the member that answered last, once. After a failure the next call begins with another one.
    pub(super) fn ask_once<T: DeserializeOwned>(&self, path: &str, body: &str) -> Result<T, Failure> {
        let endpoints = self.endpoints();
        let at = self.preferred.load(Ordering::Relaxed) % endpoints.len();
        self.ask(&endpoints[at], path, body)
            .inspect_err(|_| self.preferred.store((at + 1) % endpoints.len(), Ordering::Relaxed))
    }

    /// Asks the member at `endpoint`, once.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
    ) -> Result<T, Failure> {
        let failed = |error| Failure::of_client(endpoint, error, self.has_client_certificate);
        let mut answer = self
            .agent
            .post(format!("{endpoint}{path}"))
            .content_type("application/json")
            .send(body)
            .map_err(failed)?;
        let bytes = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)?;
        if answer.status() != ureq::http::StatusCode::OK {
            return Err(Failure::of_status(endpoint, answer.status().as_u16(), &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|error| Failure::not_etcd(endpoint, &error))
    }
}

fn checked_endpoints(endpoints: &[String], has_tls: bool) -> Result<Arc<[String]>, CoordError> {
    if endpoints.is_empty() {
        let what = "no etcd endpoint is given: name at least one, such as http://127.0.0.1:2379".to_owned();
        return Err(CoordError::Settings { what });
    }
    endpoints.iter().map(|endpoint| checked_endpoint(endpoint, has_tls)).collect()
}

/// The endpoint as it is used, if it is one.
fn checked_endpoint(endpoint: &str, has_tls: bool) -> Result<String, CoordError> {
    // Its text might hold a password, so it is not repeated.
    if endpoint.contains('@') {
        let what =
            "an etcd endpoint has a user's name in it: passwords are not supported, use a client certificate";
        return Err(CoordError::Settings { what: what.to_owned() });
    }
    let wrong = |what: &str| CoordError::Settings { what: format!("etcd endpoint {endpoint:?}: {what}") };
    let example = "must be like https://host:2379, with nothing behind the port";
    let uri: ureq::http::Uri = endpoint.parse().map_err(|_| wrong(example))?;
    if uri.authority().is_none() || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong(example));
    }
    match (uri.scheme_str(), has_tls) {
        (Some("http"), false) | (Some("https"), true) => Ok(endpoint.trim_end_matches('/').to_owned()),
        (Some("https"), false) => Err(wrong("https needs the CA certificate that signed etcd's: give it")),
        (Some("http"), true) => {
            Err(wrong("a CA certificate is given, but http would not use it: write https, or leave it out"))
        }
        _ => Err(wrong(example)),
    }
}
