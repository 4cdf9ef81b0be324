//! The JSON, under `/api/v1`: documented in `docs/guides/console.md`. Fields are added to objects; none changes its meaning or goes within a version.
//!
//! What commands show with `--json` is here as the same objects. The header `Age` (seconds) says how old the oldest part of an answer is.

use super::Site;
use super::pages::refuse;
use crate::health::{self, Finding, ServerState, Situation};
use crate::object::away::Away;
use crate::object::{event, moves, node, pool, session, shard, target};
use crate::watch::{COARSE_STEP, Client, FINE_STEP, History, Rates, Ring, Seen, Server, Span, Watch};
use ashlar_rpc::wire::MoveInfo;
use ashlar_types::message::MoveProgress;
use ashlar_types::{ChainId, ClusterMap, NodeId, Role, ShardId};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{AGE, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Kinds of calls that are told of each server.
const KINDS_MAX: usize = 16;
/// Events that one answer has.
// LIMIT: as many as are kept.
const EVENTS_MAX: usize = 2048;
/// Events of which findings are made.
const EVENTS_JUDGED: usize = 2048;

type Shared = State<Arc<Site>>;

pub(super) fn router() -> Router<Arc<Site>> {
    Router::new()
        .route("/cluster", get(|State(site): Shared| async move { of_map(&site, cluster(&site)) }))
        .route("/health", get(|State(site): Shared| async move { fresh(health(&site)) }))
        .route("/nodes", get(|State(site): Shared| async move { of_map(&site, nodes(&site.watch)) }))
        .route("/pools", get(|State(site): Shared| async move { of_map(&site, pools(&site.watch.map())) }))
        .route(
            "/space",
            get(|State(site): Shared| async move { of_role(&site, Role::Storage, space(&site.watch)) }),
        )
        .route(
            "/targets",
            get(|State(site): Shared| async move { of_role(&site, Role::Storage, targets(&site.watch)) }),
        )
        .route(
            "/moves",
            get(|State(site): Shared| async move { of_role(&site, Role::Storage, chain_moves(&site.watch)) }),
        )
        .route(
            "/shards",
            get(|State(site): Shared| async move { of_role(&site, Role::Meta, shards(&site.watch)) }),
        )
        .route(
            "/sessions",
            get(|State(site): Shared| async move { of_role(&site, Role::Meta, sessions(&site.watch)) }),
        )
        .route("/servers", get(|State(site): Shared| async move { fresh(servers(&site.watch)) }))
        .route("/clients", get(|State(site): Shared| async move { fresh(clients(&site.watch)) }))
        .route("/notes", get(|State(site): Shared| async move { fresh(notes(&site.watch)) }))
        .route("/events", get(events))
        .route("/history", get(history))
}

fn answer(age: Duration, value: &Value) -> Response {
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    ([kind, (AGE, HeaderValue::from(age.as_secs()))], value.to_string()).into_response()
}

fn fresh(value: Value) -> Response {
    answer(Duration::ZERO, &value)
}

/// Of what the map says: as old as the last answer of any manager.
fn of_map(site: &Site, value: Value) -> Response {
    let managers = of_that_role(&site.watch, Role::Manager);
    answer(managers.iter().map(|server| server.silence()).min().unwrap_or_default(), &value)
}

/// Of what all servers of a role say together: as old as the last answer of the most silent one.
fn of_role(site: &Site, role: Role, value: Value) -> Response {
    let servers = of_that_role(&site.watch, role);
    answer(servers.iter().map(|server| server.silence()).max().unwrap_or_default(), &value)
}

fn of_that_role(watch: &Watch, role: Role) -> Vec<Arc<Server>> {
    watch.servers().into_iter().filter(|server| server.role == role).collect()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn cluster(site: &Site) -> Value {
    let map = site.watch.map();
    let (trouble, heard) = site.watch.events_state();
    json!({
        "cluster": map.cluster.to_string(),
        "epoch": map.epoch.0,
        "console": site.watch.cluster().name,
        "version": site.version,
        "now": site.watch.cluster().env.clock.now().utc(),
        "events_heard_ms": heard.map(ms),
        "events_trouble": (!trouble.is_empty()).then_some(trouble),
    })
}

fn nodes(watch: &Watch) -> Value {
    let (map, away) = (watch.map(), watch.away());
    map.nodes.iter().map(|known| node::object(known, &away)).collect()
}

fn pools(map: &ClusterMap) -> Value {
    map.pools.iter().map(|known| pool::object(map, known)).collect()
}

/// What a target has, as its server told it last.
fn space_of(watch: &Watch, map: &ClusterMap) -> BTreeMap<u32, target::Space> {
    let mut spaces = BTreeMap::new();
    for server in of_that_role(watch, Role::Storage) {
        let Some(sample) = server.seen().sample else { continue };
        for (id, state) in &sample.targets {
            let is_there = map.targets.iter().any(|known| known.id.0 == *id && known.node == server.node);
            if is_there && state.size > 0.0 {
                spaces.insert(*id, (state.size as u64, state.free as u64));
            }
        }
    }
    spaces
}

fn targets(watch: &Watch) -> Value {
    let (map, away) = (watch.map(), watch.away());
    let spaces = space_of(watch, &map);
    map.targets.iter().map(|known| target::object(&map, known, &away, spaces.get(&known.id.0))).collect()
}

fn space(watch: &Watch) -> Value {
    let map = watch.map();
    let spaces = space_of(watch, &map);
    let of_pool = |known: &ashlar_types::map::Pool| {
        let ids = pool::targets(&map, known);
        let told: Vec<&target::Space> = ids.iter().filter_map(|id| spaces.get(id)).collect();
        let (total, free) = pool::total(told.iter().copied());
        json!({
            "pool": known.name,
            "targets": ids.len(),
            "targets_told": told.len(),
            "bytes_total": total,
            "bytes_used": total.saturating_sub(free),
            "bytes_free": free,
        })
    };
    map.pools.iter().map(of_pool).collect()
}

fn chain_moves(watch: &Watch) -> Value {
    let told = of_that_role(watch, Role::Storage).into_iter().flat_map(|server| server.seen().progress);
    let progress: BTreeMap<ChainId, MoveProgress> = told.map(|progress| (progress.chain, progress)).collect();
    moves::object(&watch.map(), &progress)
}

fn shards(watch: &Watch) -> Value {
    let map = watch.map();
    let told = of_that_role(watch, Role::Meta).into_iter().flat_map(|server| server.seen().moves);
    let moving: BTreeMap<ShardId, MoveInfo> = told.map(|info| (info.shard, info)).collect();
    let away = watch.away();
    map.shards.iter().map(|known| shard::object(&map, known, &away, moving.get(&known.id))).collect()
}

fn sessions(watch: &Watch) -> Value {
    let map = watch.map();
    let told =
        of_that_role(watch, Role::Meta).into_iter().map(|server| (server.node, server.seen().sessions));
    let merged = session::merged(&told.collect::<Vec<_>>());
    merged.iter().map(|session| session::object(&map, session)).collect()
}

fn servers(watch: &Watch) -> Value {
    let (map, away) = (watch.map(), watch.away());
    watch.servers().iter().map(|server| server_object(&map, &away, server)).collect()
}

fn server_object(map: &ClusterMap, away: &Away, server: &Server) -> Value {
    let Seen { heard, trouble, sample, rates, .. } = server.seen();
    let sample = sample.as_deref();
    json!({
        "node": node::reference(map, server.node),
        "role": server.role.name(),
        "is_away": server.is_away(),
        "away_s": away.seconds(server.node, server.role),
        "heard_ms": heard.map(|heard| ms(heard.elapsed())),
        "trouble": (!trouble.is_empty()).then_some(trouble),
        "version": sample.map(|sample| sample.version.as_str()),
        "started": sample.map(|sample| sample.started_s as u64),
        "certificate_end": sample.and_then(|sample| sample.certificate_end_s).map(|end| end as u64),
        "epoch": sample.map(|sample| sample.epoch),
        "memory_bytes": sample.map(|sample| sample.resident as u64),
        "state": sample.and_then(|sample| sample.store.as_ref()).map(|(store, is_reached)| {
            json!({ "store": store, "is_reached": is_reached })
        }),
        "rates": rates.as_ref().filter(|_| !server.is_away()).map(rates_object),
    })
}

fn rates_object(rates: &Rates) -> Value {
    let kinds: Vec<Value> = rates
        .kinds
        .iter()
        .take(KINDS_MAX)
        .map(|kind| {
            json!({
                "service": kind.service,
                "kind": kind.kind,
                "calls_per_s": kind.per_s,
                "errors_per_s": kind.errors_per_s,
                "mean_s": kind.mean_s,
                "slow_s": kind.slow_s,
            })
        })
        .collect();
    json!({
        "calls_per_s": rates.calls,
        "errors_per_s": rates.errors,
        "read_bytes_per_s": rates.read,
        "written_bytes_per_s": rates.written,
        "mean_s": rates.mean_s,
        "slow_s": rates.slow_s,
        "cpus": rates.cpu,
        "kinds": kinds,
    })
}

fn clients(watch: &Watch) -> Value {
    let map = watch.map();
    let of_client = |(name, traffic): (String, crate::watch::Traffic)| {
        let id = map.nodes.iter().find(|known| known.name == name).map(|known| known.id.0);
        json!({
            "node": { "id": id, "name": name },
            "calls_per_s": traffic.calls,
            "read_bytes_per_s": traffic.read,
            "written_bytes_per_s": traffic.written,
        })
    };
    watch.clients().into_iter().map(of_client).collect()
}

fn notes(watch: &Watch) -> Value {
    let map = watch.map();
    let of_note = |note: crate::watch::Note| {
        let (kind, what) = if note.is_away {
            ("server-away", "does not answer the console")
        } else {
            ("server-back", "answers the console again")
        };
        let why = if note.text.is_empty() { String::new() } else { format!(": {}", note.text) };
        json!({
            "number": note.number,
            "time": note.at.utc(),
            "node": node::reference(&map, note.node),
            "kind": kind,
            "subject": node::name(&map, note.node),
            "text": format!("{} {what}{why}", note.role),
        })
    };
    watch.notes().into_iter().map(of_note).collect()
}

fn state_of(server: &Server) -> ServerState {
    let seen = server.seen();
    ServerState {
        node: server.node,
        role: server.role,
        away: server.is_away().then(|| server.silence()),
        was_never_heard: seen.heard.is_none(),
        trouble: seen.trouble,
        sample: seen.sample,
        moves: seen.moves,
        progress: seen.progress,
    }
}

fn health(site: &Site) -> Value {
    let (watch, map) = (&site.watch, site.watch.map());
    let servers: Vec<ServerState> = watch.servers().iter().map(|server| state_of(server)).collect();
    let (events_trouble, _) = watch.events_state();
    let findings = health::findings(&Situation {
        map: &map,
        servers: &servers,
        events: &watch.events(0, EVENTS_JUDGED),
        events_trouble: &events_trouble,
        version: site.version,
        now_s: watch.cluster().env.clock.now().secs,
    });
    let worst = findings.first().map_or("good", |finding| finding.severity.name());
    let object = |finding: &Finding| {
        json!({
            "severity": finding.severity.name(),
            "subject": finding.subject,
            "what": finding.what,
            "remedy": finding.remedy,
        })
    };
    json!({ "state": worst, "findings": findings.iter().map(object).collect::<Vec<_>>() })
}

/// What is asked for behind `?`: names and values that need no escapes.
fn asked(query: Option<String>) -> Map<String, Value> {
    let query = query.unwrap_or_default();
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn number<T: std::str::FromStr>(asked: &Map<String, Value>, name: &str, default: T) -> Result<T, String> {
    match asked.get(name).and_then(Value::as_str) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| format!("{name} is to be a number")),
    }
}

async fn events(State(site): Shared, RawQuery(query): RawQuery) -> Response {
    let asked = asked(query);
    let (after, max) = match (number(&asked, "after", 0u64), number(&asked, "max", EVENTS_MAX)) {
        (Ok(after), Ok(max)) => (after, max),
        (Err(why), _) | (_, Err(why)) => return refuse(StatusCode::BAD_REQUEST, &why),
    };
    let map = site.watch.map();
    let all = site.watch.events(after, max.min(EVENTS_MAX));
    let (_, heard) = site.watch.events_state();
    answer(heard.unwrap_or_default(), &all.iter().map(|happened| event::object(&map, happened)).collect())
}

async fn history(State(site): Shared, RawQuery(query): RawQuery) -> Response {
    let asked = asked(query);
    let text = |name: &str| asked.get(name).and_then(Value::as_str);
    let (span, step) = match text("span") {
        None | Some("minutes") => (Span::Minutes, FINE_STEP),
        Some("day") => (Span::Day, COARSE_STEP),
        Some(_) => return refuse(StatusCode::BAD_REQUEST, "span is minutes or day"),
    };
    let figures = match (text("client"), text("role")) {
        (Some(name), _) => site.watch.client(name).map(|client| of_client(&client, span)),
        (None, Some(role)) => {
            let node = match number(&asked, "node", u32::MAX) {
                Ok(node) => NodeId(node),
                Err(why) => return refuse(StatusCode::BAD_REQUEST, &why),
            };
            let server = Role::parse(role).and_then(|role| site.watch.server(node, role));
            server.map(|server| of_server(&server.history(), span))
        }
        (None, None) => Some(of_server(&site.watch.total(), span)),
    };
    match figures {
        Some(figures) => fresh(json!({ "step_s": step.as_secs(), "figures": figures })),
        None => refuse(StatusCode::NOT_FOUND, "there is no history of that"),
    }
}

fn of_server(history: &History, span: Span) -> Value {
    let of = |ring: &Ring| ring.figures(span);
    json!({
        "calls_per_s": of(&history.calls),
        "read_bytes_per_s": of(&history.read),
        "written_bytes_per_s": of(&history.written),
        "mean_s": of(&history.mean_s),
    })
}

fn of_client(client: &Client, span: Span) -> Value {
    let of = |ring: &Ring| ring.figures(span);
    json!({
        "calls_per_s": of(&client.calls),
        "read_bytes_per_s": of(&client.read),
        "written_bytes_per_s": of(&client.written),
    })
}
