//! Compare-and-set on real etcd members that are killed, paused, put back to older states, and whose answers are lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ashlar_coord::etcd::{CALL_SECONDS_MAX, EtcdCoord, EtcdSettings, VALUE_BYTES_MAX};
use ashlar_coord::{Coord, CoordError};
use ashlar_env::Env;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::certificates::Authority;
use support::members::{Etcd, KEY, coord, post};
use support::proxy::{Fate, Proxy};

/// A call's bound, and what a busy machine adds.
const BOUND: Duration = Duration::from_secs(CALL_SECONDS_MAX + 1);

/// What `call` returns, within the bound.
fn bounded<T>(call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = call();
    assert!(start.elapsed() < BOUND, "took {:?}", start.elapsed());
    outcome
}

fn conflict(outcome: Result<u64, CoordError>) -> (u64, u64) {
    match outcome {
        Err(CoordError::Conflict { expected, found }) => (expected, found),
        other => panic!("no conflict: {other:?}"),
    }
}

/// Adds one to the number that is the value, until nobody is in the way.
fn increment(coord: &dyn Coord) -> u64 {
    loop {
        let (revision, value) = coord.load().unwrap();
        let number = value.try_into().map_or(0, u64::from_le_bytes) + 1;
        match coord.compare_and_set(revision, &number.to_le_bytes()) {
            Ok(new) => {
                assert_eq!(new, revision + 1);
                return number;
            }
            Err(CoordError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// As [`increment`] while members fail: calls may end without success, and say so in time. Tells the number that was asked for.
fn increment_in_the_end(coord: &dyn Coord) -> u64 {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < until, "etcd does not come back");
        let Ok((revision, value)) = bounded(|| coord.load()) else { continue };
        let number = value.try_into().map_or(0, u64::from_le_bytes) + 1;
        if bounded(|| coord.compare_and_set(revision, &number.to_le_bytes())).is_ok() {
            return number;
        }
    }
}

#[test]
fn a_value_is_created_changed_and_refused_to_the_second_of_two() {
    let etcd = Etcd::start(1);
    let (one, other) = (etcd.coord(), etcd.coord());
    assert_eq!(one.load().unwrap(), (0, vec![]));
    assert_eq!(one.changed_since(0).unwrap(), None);
    assert_eq!(conflict(one.compare_and_set(3, b"x")), (3, 0));
    assert_eq!(one.compare_and_set(0, b"one").unwrap(), 1);
    assert_eq!(conflict(other.compare_and_set(0, b"two")), (0, 1));
    assert_eq!(other.load().unwrap(), (1, b"one".to_vec()));
    assert_eq!(other.compare_and_set(1, b"").unwrap(), 2);
    assert_eq!(one.changed_since(1).unwrap(), Some((2, vec![])));
    assert_eq!(one.changed_since(2).unwrap(), None);
    let members = one.members();
    let status = members[0].1.as_ref().unwrap();
    println!("etcd {}", status.version);
    assert!(status.has_leader && status.version.starts_with("3.") && status.database_bytes > 0, "{status:?}");
}

#[test]
fn of_eight_hundred_increments_by_eight_threads_none_is_lost() {
    let etcd = Etcd::start(1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let coord = etcd.coord();
                for _ in 0..100 {
                    increment(&coord);
                }
            });
        }
    });
    assert_eq!(etcd.coord().load().unwrap(), (800, 800u64.to_le_bytes().to_vec()));
}

#[test]
fn a_member_is_missed_by_nobody_and_two_of_three_only_until_one_is_back() {
    let mut etcd = Etcd::start(3);
    let coord = etcd.coord();
    for number in 1..=3 {
        assert_eq!(increment(&coord), number);
    }
    let leader = etcd.leader();
    etcd.members[leader].kill();
    let number = increment_in_the_end(&coord);
    assert!((4..=5).contains(&number), "{number}");
    let members = coord.members();
    assert_eq!(members.iter().filter(|(_, status)| status.is_err()).count(), 1, "{members:?}");

    let second = (leader + 1) % 3;
    etcd.members[second].kill();
    for outcome in [bounded(|| coord.load().map(|_| 0)), bounded(|| coord.compare_and_set(number, b"x"))] {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("is it running"), "{text}");
        for endpoint in etcd.endpoints() {
            assert!(text.contains(endpoint), "{text}");
        }
    }

    etcd.members[second].start();
    etcd.wait_until_ready();
    let (revision, value) = coord.load().unwrap();
    assert!((3..=6).contains(&revision), "{revision}");
    assert_eq!(value, u64::to_le_bytes(number), "the change that found no members was never sent");
    assert_eq!(increment_in_the_end(&coord), number + 1);
}

#[test]
fn a_paused_leader_delays_and_neither_loses_nor_doubles_a_change() {
    let etcd = Etcd::start(3);
    let coord = etcd.coord();
    increment(&coord);
    let leader = etcd.leader();
    let beginning_with_leader = etcd.coord_at(&[
        &etcd.members[leader].endpoint,
        &etcd.members[(leader + 1) % 3].endpoint,
        &etcd.members[(leader + 2) % 3].endpoint,
    ]);
    etcd.members[leader].pause();
    let number = increment_in_the_end(&beginning_with_leader);
    let (revision, _) = bounded(|| coord.load()).unwrap();
    assert_eq!(bounded(|| coord.compare_and_set(revision, b"by others")).unwrap(), revision + 1);
    etcd.members[leader].resume();
    // It may answer with what it knew before; a change that is made from that is refused.
    let woken = etcd.coord_at(&[&etcd.members[leader].endpoint]);
    assert!(number >= 2);
    let outcome = bounded(|| woken.compare_and_set(revision, b"too late"));
    assert!(matches!(outcome, Err(CoordError::Conflict { .. } | CoordError::Io { .. })), "{outcome:?}");
    etcd.wait_until_ready();
    assert_eq!(coord.load().unwrap(), (revision + 1, b"by others".to_vec()));
    assert_eq!(woken.load().unwrap(), (revision + 1, b"by others".to_vec()));
}

fn copy_directory(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn an_older_state_of_etcd_shows_as_an_older_revision() {
    let mut etcd = Etcd::start(1);
    let coord = etcd.coord();
    assert_eq!(coord.compare_and_set(0, b"one").unwrap(), 1);
    assert_eq!(coord.compare_and_set(1, b"two").unwrap(), 2);
    let kept = etcd.directory.path().join("kept");
    etcd.members[0].kill();
    copy_directory(&etcd.members[0].data(), &kept);
    etcd.members[0].start();
    etcd.wait_until_ready();
    for revision in 2..5 {
        assert_eq!(coord.compare_and_set(revision, b"later").unwrap(), revision + 1);
    }

    etcd.members[0].kill();
    std::fs::remove_dir_all(etcd.members[0].data()).unwrap();
    copy_directory(&kept, &etcd.members[0].data());
    etcd.members[0].start();
    etcd.wait_until_ready();
    assert_eq!(coord.changed_since(5).unwrap(), Some((2, b"two".to_vec())));
    assert_eq!(conflict(coord.compare_and_set(5, b"x")), (5, 2));
}

#[test]
fn a_copy_in_another_etcd_keeps_its_revision() {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let (from, to) = (Etcd::start(1), Etcd::start(1));
    let (coord, copy) = (from.coord(), to.coord());
    for revision in 0..7 {
        coord.compare_and_set(revision, b"value").unwrap();
    }
    let key = STANDARD.encode(KEY);
    let read = post(&from.members[0].endpoint, "/v3/kv/range", &format!(r#"{{"key":"{key}"}}"#));
    let value = read["kvs"][0]["value"].as_str().unwrap();
    let put = |value: &str| {
        post(&to.members[0].endpoint, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#))
    };
    put(value);
    assert_eq!(copy.load().unwrap(), (7, b"value".to_vec()));
    assert_eq!(copy.compare_and_set(7, b"next").unwrap(), 8);

    put(&STANDARD.encode("what another program keeps there"));
    let text = copy.load().unwrap_err().to_string();
    assert!(text.contains(KEY) && text.contains("not a cluster state"), "{text}");
    assert!(matches!(copy.compare_and_set(8, b"x"), Err(CoordError::Corrupt { .. })));
}

#[test]
fn the_largest_value_is_stored_and_a_larger_one_refused() {
    let etcd = Etcd::start(1);
    let coord = etcd.coord();
    let mut value = vec![0xa5; VALUE_BYTES_MAX];
    for revision in 0..70 {
        // So that the header has as many tags as it ever has.
        assert_eq!(coord.compare_and_set(revision, b"small").unwrap(), revision + 1);
    }
    assert_eq!(coord.compare_and_set(70, &value).unwrap(), 71);
    assert_eq!(coord.load().unwrap(), (71, value.clone()));
    value.push(0);
    let error = coord.compare_and_set(71, &value).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CoordError::TooLarge { .. }), "{text}");
    assert!(text.contains("1048576") && text.contains("--max-request-bytes"), "{text}");
    assert_eq!(coord.load().unwrap().0, 71);
}

#[test]
fn certificates_are_asked_for_on_both_sides() {
    let authority = Authority::new();
    let etcd = Etcd::start_with(1, Some(&authority));
    let endpoint = etcd.members[0].endpoint.as_str();
    assert_eq!(etcd.coord().compare_and_set(0, b"value").unwrap(), 1);
    assert_eq!(etcd.coord().load().unwrap(), (1, b"value".to_vec()));

    let stranger = Authority::new();
    let refused = |coord: &EtcdCoord| {
        let text = bounded(|| coord.compare_and_set(1, b"x")).unwrap_err().to_string();
        assert!(text.contains(endpoint), "{text}");
        assert!(!text.contains("PRIVATE KEY") && !format!("{coord:?}").contains("BEGIN"), "{text}");
        text
    };
    let wrong_authority = coord(&[endpoint], Some(stranger.tls(Some(authority.issue(&["client"])))));
    let text = refused(&wrong_authority);
    assert!(text.contains("the given CA did not sign"), "{text}");
    let text = refused(&coord(&[endpoint], Some(authority.tls(None))));
    assert!(text.contains("client certificate") && text.contains("none is given"), "{text}");
    let text = refused(&coord(&[endpoint], Some(authority.tls(Some(stranger.issue(&["client"]))))));
    assert!(text.contains("client certificate"), "{text}");
    // Some versions say why, others close the connection.
    let text = refused_plain(endpoint);
    assert!(text.contains("write https") || text.contains("does it want https?"), "{text}");
    assert_eq!(etcd.coord().load().unwrap(), (1, b"value".to_vec()));
}

#[test]
fn a_certificate_of_etcds_that_its_own_gateway_cannot_use_is_named() {
    let mut authority = Authority::new();
    authority.purposes = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let etcd = Etcd::spawn(1, Some(&authority));
    authority.purposes = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let tls = authority.tls(Some(authority.issue(&["client"])));
    let text = bounded(|| coord(&[&etcd.members[0].endpoint], Some(tls)).load()).unwrap_err().to_string();
    assert!(text.contains("must be good for clients too"), "{text}");
}

/// What somebody is told who speaks without TLS to an etcd that wants it.
fn refused_plain(endpoint: &str) -> String {
    let coord = coord(&[&endpoint.replace("https", "http")], None);
    bounded(|| coord.load()).unwrap_err().to_string()
}

#[test]
fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let refused = |endpoint: &str, tls| {
        let settings = EtcdSettings { endpoints: vec![endpoint.to_owned()], key: KEY.to_owned(), tls };
        match EtcdCoord::new(&settings, Env::os().entropy) {
            Err(CoordError::Settings { what }) => what,
            other => panic!("{endpoint}: {other:?}"),
        }
    };
    assert!(refused("https://h:2379", None).contains("needs the CA certificate"));
    assert!(refused("http://h:2379", Some(authority.tls(None))).contains("write https"));
    assert!(!refused("http://user:secret@h:2379", None).contains("secret"));
    for endpoint in ["h:2379", "http://h:2379/v3", "ftp://h", "http://h?x", "", "http://"] {
        refused(endpoint, None);
    }
    let mut mixed = authority.issue(&["client"]);
    mixed.key_pem = stranger.issue(&["client"]).key_pem;
    assert!(
        refused("https://h:2379", Some(authority.tls(Some(mixed.clone())))).contains("do not fit together")
    );
    mixed.key_pem = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n".to_owned();
    assert!(!format!("{mixed:?} {:?}", authority.tls(Some(mixed.clone()))).contains("c2VjcmV0"));
    refused("https://h:2379", Some(authority.tls(Some(mixed))));
}

#[test]
fn a_lost_answer_is_success_if_the_change_was_made() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    let coord = coord(&[&proxy.endpoint], None);
    for revision in 0..3 {
        proxy.next_transaction(Fate::AnswerLost(Box::new(|| {})));
        assert_eq!(bounded(|| coord.compare_and_set(revision, b"ours")).unwrap(), revision + 1);
        assert!(proxy.has_happened());
        assert_eq!(etcd.coord().load().unwrap(), (revision + 1, b"ours".to_vec()));
    }
}

#[test]
fn a_lost_answer_is_success_even_if_others_have_changed_the_value_since() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    let coord = coord(&[&proxy.endpoint], None);
    let other = etcd.coord();
    proxy.next_transaction(Fate::AnswerLost(Box::new(move || {
        for revision in 1..20 {
            assert_eq!(other.compare_and_set(revision, b"theirs").unwrap(), revision + 1);
        }
    })));
    assert_eq!(bounded(|| coord.compare_and_set(0, b"ours")).unwrap(), 1);
    assert!(proxy.has_happened());
    assert_eq!(coord.load().unwrap(), (20, b"theirs".to_vec()));
}

#[test]
fn after_too_many_changes_of_others_a_lost_answer_stays_unknown() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    let coord = coord(&[&proxy.endpoint], None);
    let other = etcd.coord();
    proxy.next_transaction(Fate::AnswerLost(Box::new(move || {
        for revision in 1..80 {
            assert_eq!(other.compare_and_set(revision, b"theirs").unwrap(), revision + 1);
        }
    })));
    let error = coord.compare_and_set(0, b"ours").unwrap_err();
    assert!(matches!(error, CoordError::Io { .. }), "{error}");
    assert!(error.to_string().contains("not known whether it was changed"), "{error}");
}

#[test]
fn a_lost_request_is_sent_again_and_is_a_conflict_if_others_came_first() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    let coord = coord(&[&proxy.endpoint], None);
    proxy.next_transaction(Fate::RequestLost(Box::new(|| {})));
    assert_eq!(bounded(|| coord.compare_and_set(0, b"ours")).unwrap(), 1);
    assert!(proxy.has_happened());

    let other = etcd.coord();
    proxy.next_transaction(Fate::RequestLost(Box::new(move || {
        // The same bytes by somebody else are not our change.
        assert_eq!(other.compare_and_set(1, b"same").unwrap(), 2);
    })));
    assert_eq!(conflict(bounded(|| coord.compare_and_set(1, b"same"))), (1, 2));
    assert!(proxy.has_happened());
    assert_eq!(coord.load().unwrap(), (2, b"same".to_vec()));
}

#[test]
fn a_request_that_arrives_after_it_was_sent_again_changes_nothing() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    let coord = coord(&[&proxy.endpoint], None);
    let (arrive, arrives) = mpsc::channel();
    proxy.next_transaction(Fate::RequestLate(arrives));
    assert_eq!(bounded(|| coord.compare_and_set(0, b"ours")).unwrap(), 1);
    assert_eq!(coord.compare_and_set(1, b"next").unwrap(), 2);
    arrive.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(coord.load().unwrap(), (2, b"next".to_vec()));
}

#[test]
fn a_member_that_never_answers_a_transaction_is_given_up_in_time_and_passed_over_for_another() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::start(&etcd.members[0].endpoint);
    proxy.swallow_transactions(true);
    let coord = coord(&[&proxy.endpoint], None);
    let error = bounded(|| coord.compare_and_set(0, b"ours")).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CoordError::Io { .. }), "{text}");
    assert!(text.contains("not known whether it was changed") && text.contains("within 2 s"), "{text}");
    assert!(text.contains(&proxy.endpoint), "{text}");
    assert_eq!(coord.load().unwrap(), (0, vec![]));

    let both = support::members::coord(&[&proxy.endpoint, &etcd.members[0].endpoint], None);
    assert_eq!(bounded(|| both.compare_and_set(0, b"ours")).unwrap(), 1);
    proxy.swallow_transactions(false);
    assert_eq!(bounded(|| coord.compare_and_set(1, b"ours")).unwrap(), 2);
}
